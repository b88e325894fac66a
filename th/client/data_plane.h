// The data transports that all memberships of a process under one reference server share. Made by
// the first client of that server, ended with the last. One a server: workers are numbered by their
// server, so two servers' workers may have the same number.
#ifndef TH_CLIENT_DATA_PLANE_H_
#define TH_CLIENT_DATA_PLANE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/memory/memory_region.h"
#include "th/protocol/messages.h"
#include "th/transfer/transport.h"

namespace th {

struct DataPlaneOptions {
  std::string address;  // to listen on, with or without a port; empty: what leads to the server
  uint32_t threads = 2;
  uint32_t connections_per_source = 2;
  uint64_t uplink_bytes_per_second = 0;  // 0: no cap
  // Names of KnownTransports, the first tried first. Empty: all of them; one other than TCP that
  // cannot begin is left out (absent_transports).
  std::vector<std::string> transports;
  // A source is read over the first of its transports that leads there, or lost with the reason,
  // instead of being read over the next one.
  bool strict_transport = false;
  // Becomes SameHostOptions::attach_limit_bytes; empty for that one's default.
  std::optional<uint64_t> attach_limit_bytes;
  // Become IbverbsOptions::devices and max_registered_bytes; empty for the defaults of those.
  // Devices are named for a transport that is used: where it cannot begin with them that is an
  // error.
  std::vector<std::string> rdma_devices;
  std::optional<uint64_t> rdma_registered_limit_bytes;
};
// The names that DataPlaneOptions::transports may have, the best first.
const std::vector<std::string>& KnownTransports();
// The counters, by name of the transport, of all data planes that this process has had; none in a
// child of the process that had them. Thread-safe.
std::map<std::string, Transport::Counters> TransportCountersOfProcess();
inline constexpr uint32_t kMaxDataThreads = 64;
inline constexpr uint32_t kMaxConnectionsPerSource = 32;

// Memory that all transports know of (Transport::Attach), until this ends.
struct DataPlaneMemory {
  std::vector<std::unique_ptr<AttachedMemory>> attached;
  // The reasons, by name, of the transports that could not take it.
  std::map<std::string, absl::Status> refused_by;
  // How each registered memory of GPUs, by name.
  std::map<std::string, std::string> registered_by;

  // "ibverbs: memory of GPU ... registered by DMA-BUF with mlx5_0", and each refusal likewise.
  std::vector<std::string> Describe() const;
};

// Thread-safe.
class DataPlane {
 public:
  // The one of this process for `server`. FAILED_PRECONDITION naming the option in which it differs
  // from what the first client of that server asked for; INVALID_ARGUMENT for an option out of its
  // bounds or an address; UNAVAILABLE when the server's name is not resolved within
  // `resolve_timeout`; what listening comes to.
  static absl::StatusOr<std::shared_ptr<DataPlane>> Acquire(const DataPlaneOptions& options,
                                                            absl::string_view server,
                                                            absl::Duration resolve_timeout);

  // Its counters go on to count for TransportCountersOfProcess.
  ~DataPlane();
  DataPlane(const DataPlane&) = delete;
  DataPlane& operator=(const DataPlane&) = delete;

  std::vector<Transport*> transports() const;
  // The names of the transports in the order in which they are tried, those that could not begin
  // too.
  const std::vector<std::string>& transport_order() const;
  // The reasons, by name, of the transports that could not begin and were left out. OUT_OF_RANGE:
  // of one that is of no use in this process.
  const std::map<std::string, absl::Status>& absent_transports() const { return absent_; }
  // The parts of this host that the transports do without, for logs: "ibverbs: mlx5_1: port 1 is
  // down ...". Those that are of no use in this process are not named.
  std::vector<std::string> LeftOut() const;
  bool strict_transport() const { return options_.strict_transport; }
  // Where others can read our buffers, the endpoint that they try first before the others.
  const std::vector<Endpoint>& endpoints() const { return endpoints_; }

  // Tells all transports of `regions`. One that cannot take them is named in the result; a fill
  // into this memory passes it over with the reason. Blocks for as long as registering takes (RDMA:
  // about 0.1 s for 10 GB).
  DataPlaneMemory Attach(absl::Span<const MemoryRegion> regions);

  // As of Transport, for all of them.
  bool AddHolder(WorkerId worker, HolderDelegate* delegate);
  void RemoveHolder(WorkerId worker);
  void FinishTransfer(TransferId transfer);
  void CutTransfer(TransferId transfer);

 private:
  explicit DataPlane(DataPlaneOptions options);
  absl::Status Begin(const std::string& transport, absl::string_view server,
                     absl::Duration resolve_timeout);
  static absl::StatusOr<std::shared_ptr<DataPlane>> Open(const DataPlaneOptions& options,
                                                         absl::string_view server,
                                                         absl::Duration resolve_timeout);
  absl::Status CheckSame(const DataPlaneOptions& wanted) const;

  const DataPlaneOptions options_;
  // Not changed once the data plane is open.
  std::vector<std::unique_ptr<Transport>> transports_;
  std::map<std::string, absl::Status> absent_;
  std::vector<Endpoint> endpoints_;
};

}  // namespace th

#endif  // TH_CLIENT_DATA_PLANE_H_
