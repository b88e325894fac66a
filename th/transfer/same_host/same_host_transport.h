// The transport between processes of one host: requests go over a Unix socket, and the reader takes
// the bytes straight out of the source's memory (process_vm_readv): one copy, any memory of the
// source's, no help of the source's processor but a word of where each segment lies.
//
//   TH_ASSIGN_OR_RETURN(auto same_host, NewSameHostTransport({}));
//   same_host->Reach(endpoint);  // OK, or "on another host"
//
// A host is what runs under one boot of one kernel; processes meet where they also share a network
// namespace, in which the socket is. Where the kernel does not let a reader read the source's
// memory, the reader hears kConnect with the reason before it is admitted, and takes another
// transport.
//
// Safe without the source's help: a segment counts only if the buffer's ControlBlock, read after
// the bytes, is that of the admission (docs/protocol/data.md, "Same host").
//
// Threads: limits.data_threads loops named th-host-0.., as of a StreamTransport; each copies what
// its connections read. The uplink cap does not count here: nothing leaves the host.
#ifndef TH_TRANSFER_SAME_HOST_SAME_HOST_TRANSPORT_H_
#define TH_TRANSFER_SAME_HOST_SAME_HOST_TRANSPORT_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "th/transfer/transport.h"

namespace th {

inline constexpr char kSameHostTransport[] = "same_host";

// A quarter of the host's memory: what readers may keep of it beside what their owners hold.
uint64_t DefaultAttachLimitBytes();

struct SameHostOptions {
  TransportLimits limits;
  // Limits the arenas of this process that readers use where they lie, together with those that
  // this process has left to them: each may cost as much again once it is written anew. Readers
  // beyond it are refused. 0: nobody attaches.
  uint64_t attach_limit_bytes = DefaultAttachLimitBytes();
};

// INVALID_ARGUMENT: no data thread. UNAVAILABLE: the system does not say which host or network
// namespace this is, or cannot listen. RESOURCE_EXHAUSTED.
absl::StatusOr<std::unique_ptr<Transport>> NewSameHostTransport(const SameHostOptions& options);

}  // namespace th

#endif  // TH_TRANSFER_SAME_HOST_SAME_HOST_TRANSPORT_H_
