// The libibverbs of this machine, with adapters that reach the memory of the fake GPUs: what stands
// in for the ways of GPUDirect RDMA where the devices are Soft-RoCE's, which read and write what
// the host can map.
//
//   auto verbs = ReachingVerbs(GpuReach::kDmaBuf);
//   NewIbverbsTransport({..., .gpus = [&] { return device.cuda(); }, .verbs = verbs});
//
// The processor still cannot touch a device address: whoever takes one for host memory crashes.
#ifndef TH_TRANSFER_IBVERBS_REACHING_VERBS_H_
#define TH_TRANSFER_IBVERBS_REACHING_VERBS_H_

#include <cstdint>
#include <memory>

#include "th/transfer/ibverbs/verbs_library.h"

namespace th::ibverbs {

enum class GpuReach : uint8_t {
  kNone,     // as the kernel has it: neither way works
  kPeermem,  // a device address can be registered
  kDmaBuf,   // so can what the fake driver exports
};

// Fails the test where there is no libibverbs.
std::shared_ptr<const VerbsLibrary> ReachingVerbs(GpuReach reach);

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_REACHING_VERBS_H_
