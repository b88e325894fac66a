// The kernels of kernels.cu, from the same source, run by the calling thread.
#ifndef TH_MEMORY_CUDA_KERNELS_HOST_KERNELS_H_
#define TH_MEMORY_CUDA_KERNELS_HOST_KERNELS_H_

#include <cstdint>
#include <string_view>

#include "th/memory/cuda/kernels/host_warp.h"

namespace th::kernels {

// Runs one kernel over a grid of `blocks` blocks. `arguments` is the kernel's structure of
// arguments.h.
using HostKernel = void (*)(const void* arguments, uint32_t blocks,
                            const DeviceMemoryOnHost& memory);

// nullptr: there is no kernel of this name.
HostKernel FindHostKernel(std::string_view name);

}  // namespace th::kernels

#endif  // TH_MEMORY_CUDA_KERNELS_HOST_KERNELS_H_
