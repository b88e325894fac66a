// The transport between processes of one host that have GPUs: requests go over a Unix socket, and
// the reader's GPU takes the bytes straight out of the source's, whose allocations it imports: one
// copy within a GPU, or over NVLink or PCIe, no help of the source's but a word of where each
// segment lies.
//
//   TH_ASSIGN_OR_RETURN(auto cuda_ipc, NewCudaIpcTransport({}));
//   auto attached = cuda_ipc->Attach(regions);  // the caller's GPU memory among them
//   cuda_ipc->Reach(endpoint);                  // OK, or "on another host"
//
// Memory of either end may lie on GPUs, in the host, or in both: what has no byte on a GPU is read
// as over same_host, what has goes through pinned memory where only one end is a GPU's. A process
// that has attached no GPU memory reads over other transports: it would make a context on a GPU
// for nothing.
//
// Safe without the source's help: a segment counts only if the buffer's ControlBlock, read after
// the bytes, is that of the admission (docs/protocol/data.md, "GPUs of one host").
//
// Threads: limits.data_threads loops named th-cuda-0.., as of a StreamTransport; as many
// th-cuda-copy-0.., which wait for the GPUs; a th-cuda-keep for each source process that memory is
// imported from. The uplink cap does not count here: nothing leaves the host.
#ifndef TH_TRANSFER_CUDA_IPC_CUDA_IPC_TRANSPORT_H_
#define TH_TRANSFER_CUDA_IPC_CUDA_IPC_TRANSPORT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "th/memory/cuda/driver.h"
#include "th/transfer/cuda_ipc/cuda_memory.h"
#include "th/transfer/transport.h"

namespace th {

inline constexpr char kCudaIpcTransport[] = "cuda_ipc";

struct CudaIpcOptions {
  std::string driver = std::string(kCudaLibrary);  // the CUDA driver's library
  TransportLimits limits;
  cuda_ipc::ExportedMemory::Options exports;
  cuda_ipc::ImportCache::Options imports;
  // Counts what readers have copied. Null: nobody asks.
  std::shared_ptr<cuda_ipc::CopyCounters> counters;
};

// INVALID_ARGUMENT: no data thread. UNAVAILABLE: no CUDA driver here, or no GPU, with the reason;
// or as of NewSameHostTransport. RESOURCE_EXHAUSTED.
absl::StatusOr<std::unique_ptr<Transport>> NewCudaIpcTransport(const CudaIpcOptions& options);

}  // namespace th

#endif  // TH_TRANSFER_CUDA_IPC_CUDA_IPC_TRANSPORT_H_
