// The options with which a client joins: of its own, and of its process.
//
//   TH_ASSIGN_OR_RETURN(auto hub, th::Client::Join({.server = "10.0.0.1:7077", .run = "r1",
//                                                   .model = "qwen3-8b", .group = "rollout-3",
//                                                   .rank = rank, .ranks = 8,
//                                                   .staging_limit_bytes = shard_bytes}));
#ifndef TH_CLIENT_CLIENT_OPTIONS_H_
#define TH_CLIENT_CLIENT_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/event.h"
#include "th/topology/location.h"

namespace th {

// The end of one reader of this process's buffers. With `event`, the name of the reader's
// operation, the reader's, the server's and this source's logs are read side by side. A value.
struct ReaderReport {
  enum class What { kAdmitted, kRefused, kReleased };
  What what = What::kAdmitted;
  EventId event;
  WorkerId reader;
  VersionSequence version;
  uint64_t bytes_sent = 0;  // kReleased
  absl::Status refusal;     // kRefused
  // kReleased: why this process ended the transfer at once, as when the reader takes no bytes while
  // others wait; empty: it did not.
  std::string why_ended;
};

// The names that ClientOptions::transports may have, the best first.
const std::vector<std::string>& TransportNames();

struct ClientOptions {
  // "host:port" of the reference server, or several of one cluster with commas: tried in turn. Or
  // "file:PATH", of a file that the server has written them to (tensorhub_server --address-file):
  // waited for, and read again whenever the server is lost.
  std::string server;
  std::string run;
  std::string model;
  std::string group;
  uint32_t rank = 0;
  uint32_t ranks = 1;  // of the group
  // A field that is left empty is found out (the host; the rack in a job of Slurm's, SlurmRack) or
  // stays unknown.
  Location location;
  bool spot = false;  // may vanish at short notice
  // Host memory for copies of retained versions whose last replica would go with this rank's
  // buffers. 0: none, and such an unpublish or update fails unless it says kDrop (an unpublish
  // without a server drains). Twice the shard is enough for a trainer that keeps one version: the
  // copy before may still be let go.
  uint64_t offload_limit_bytes = 0;
  // Host memory for versions that are received beside what the buffers hold (Stage), until they are
  // applied. 0: none, and Stage fails where it would need it. Where it is set Update stages too.
  // All ranks of a group declare it, or none.
  uint64_t staging_limit_bytes = 0;
  // Host memory for snapshots of published buffers (PublishOptions::snapshot), kept for the next.
  uint64_t snapshot_limit_bytes = 0;
  std::string credentials;  // reserved: passed on, not checked yet
  // For logs, on a TensorHub thread; must not block or call into TensorHub. Reports are dropped
  // where it is too slow for them.
  std::function<void(const ReaderReport&)> on_reader;
  absl::Duration join_timeout = absl::Seconds(10);
  // The data plane, one a process and server. The first client decides; a later one that differs is
  // refused with FAILED_PRECONDITION naming the option.

  // Where to listen: ADDRESS, INTERFACE or NETWORK/BITS of this machine, with ":PORT" or
  // ":FIRST-LAST". Empty: the address that reaches the server. Without a port: the system's choice.
  std::string data_address = "";
  uint32_t data_threads = 2;
  uint32_t connections_per_source = 2;
  // Caps the bytes sent over TCP; readers that use cuda_ipc or same_host are not held back, and
  // ibverbs is not used beside it. 0: no cap.
  uint64_t uplink_bytes_per_second = 0;
  // How bytes may move, the best first: "cuda_ipc" (GPUs of this host take them out of each other's
  // memory, where both processes have some and had loaded the CUDA driver when they joined, or
  // name this), "same_host" (readers on this host take them out of this process's memory),
  // "ibverbs" (RDMA, where both hosts have it), "tcp". Each transfer uses the first one that both
  // ends have and that reaches; SourceShare says which and why. Empty: all that there are.
  std::vector<std::string> transports;
  // Readers of this host may use versions where they lie in arenas of TensorHub's in this process
  // (Client::Attach). Such an arena stays theirs when it is to be written again: the most bytes
  // that readers may have attached or been left so; beyond it they are refused. 0: nobody attaches.
  // Empty: a quarter of the host's memory.
  std::optional<uint64_t> attach_limit_bytes;
  // The RDMA devices ("mlx5_0") that ibverbs uses; empty: all that can be used, and
  // Client::left_out names the others. If any is named, Join fails where ibverbs cannot begin, or
  // one cannot be used.
  std::vector<std::string> rdma_devices;
  // Memory of hosts and GPUs that ibverbs registers with them, over all buffers of the process. One
  // beyond it is served and received over the next transport, with the reason. Empty: 1 TiB.
  std::optional<uint64_t> rdma_registered_limit_bytes;
  // A source is read over the first of these transports that it has too and that leads there, or
  // the update fails with the reason, rather than over a slower one. One that is amiss counts: not
  // begun in this process (ibverbs without an RDMA device, where `transports` is empty), memory
  // that could not be registered, another network namespace. One that does not lead there does not:
  // cuda_ipc without memory of GPUs, cuda_ipc and same_host to another host.
  bool strict_transport = false;
};

}  // namespace th

#endif  // TH_CLIENT_CLIENT_OPTIONS_H_
