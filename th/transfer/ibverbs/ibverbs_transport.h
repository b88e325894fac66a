// The transport over RDMA: requests go over a TCP connection, and the reader's adapter takes the
// bytes straight out of the source's memory (RDMA READ) and puts them where they belong: no copy,
// and no help of the source's processor but a word of where each segment lies.
//
//   TH_ASSIGN_OR_RETURN(auto ibverbs, NewIbverbsTransport({.listen_address = "0.0.0.0:0",
//                                                          .advertised_hosts = {"10.0.0.7"}}));
//   TH_ASSIGN_OR_RETURN(auto memory, ibverbs->Attach(store->regions()));  // registers it
//
// GPU memory is registered too where the machine can (gpu_registrations.h): the adapter reads it
// and writes it without the host. Attach says which way, or why it cannot.
//
// InfiniBand and RoCEv2, several devices at once: the connections of a pull take them in turn. A
// machine without libibverbs, a device or an active port hears which of them is missing, and what
// to do.
//
// Each connection has a queue pair. The source destroys its end before a transfer is released, and
// a segment counts only if the buffer's ControlBlock, read after the bytes, is that of the
// admission (docs/protocol/data.md, "RDMA").
//
// Threads: limits.data_threads loops named th-rdma-0.., as of a StreamTransport. The uplink cap
// counts only what goes through the socket.
#ifndef TH_TRANSFER_IBVERBS_IBVERBS_TRANSPORT_H_
#define TH_TRANSFER_IBVERBS_IBVERBS_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "th/memory/cuda/cuda_memory_devices.h"
#include "th/transfer/ibverbs/gpu_registrations.h"
#include "th/transfer/ibverbs/rdma_memory.h"
#include "th/transfer/ibverbs/verbs_library.h"
#include "th/transfer/transport.h"

namespace th {

inline constexpr char kIbverbsTransport[] = "ibverbs";

inline constexpr uint64_t kDefaultMaxRegisteredBytes = uint64_t{1} << 40;

struct IbverbsOptions {
  // The TCP connections' addresses, as in TcpOptions.
  std::string listen_address = "127.0.0.1:0";
  std::vector<std::string> advertised_hosts;
  // Names of the devices to use ("mlx5_0"). Empty: all that can be used; Transport::left_out names
  // the others.
  std::vector<std::string> devices;
  // Registered memory of the process, hosts' and GPUs', over all its buffers. A buffer beyond it is
  // refused by Attach.
  uint64_t max_registered_bytes = kDefaultMaxRegisteredBytes;
  TransportLimits limits;
  ibverbs::FabricDeadlines deadlines;
  // Counts the READs of connections that have ended. Null: nobody asks.
  std::shared_ptr<ibverbs::ReadCounters> counters;
  // The GPUs whose memory may be registered: those of this process, once somebody has loaded a CUDA
  // driver.
  ibverbs::FindGpus gpus = &ProcessMemoryDevices;
  // The library of a test; null: that of this machine.
  std::shared_ptr<const ibverbs::VerbsLibrary> verbs;
};

// UNAVAILABLE: the kernel has no RDMA device, and what to do. OK says nothing about whether one can
// be used. Neither loads the library nor opens anything.
absl::Status HasRdma();

// UNAVAILABLE: no libibverbs, no device that can be used, with the reason of each; or cannot
// listen. NOT_FOUND, FAILED_PRECONDITION: a named device is not there, or cannot be used.
// RESOURCE_EXHAUSTED: nothing can be registered, or no descriptor. INVALID_ARGUMENT as of
// NewTcpTransport.
absl::StatusOr<std::unique_ptr<Transport>> NewIbverbsTransport(const IbverbsOptions& options);

}  // namespace th

#endif  // TH_TRANSFER_IBVERBS_IBVERBS_TRANSPORT_H_
