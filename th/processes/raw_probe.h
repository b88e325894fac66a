// The machine's TCP without us: the same bytes, from the same memory into the same memory, over as
// many connections, by plain blocking send and recv, without checksums, framing or relays. The
// yardstick of `th bench transfer` and `th bench fanout`.
//
// The sender listens on an IPv4 address of its host; each reader opens `connections` connections,
// and connection i carries the i-th part of the bytes. As the transport does, they use cubic on
// loopback, where pacing ones (bbr) are slow, and the system's congestion control elsewhere.
#ifndef TH_PROCESSES_RAW_PROBE_H_
#define TH_PROCESSES_RAW_PROBE_H_

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace th {

// The most bytes of one send or recv call.
inline constexpr size_t kProbeCallBytes = size_t{1} << 20;
// The most connections of one reader, and in all.
inline constexpr uint32_t kMaxProbeConnections = 256;
inline constexpr char kProbeLoopback[] = "127.0.0.1";

// Pieces of memory taken as one stream of bytes. The memory outlives it.
class MemoryStream {
 public:
  explicit MemoryStream(std::vector<iovec> pieces);
  uint64_t bytes() const { return bytes_; }
  // The pieces of [begin, end).
  std::vector<iovec> Range(uint64_t begin, uint64_t end) const;

 private:
  std::vector<iovec> pieces_;
  std::vector<uint64_t> begins_;  // of each piece
  uint64_t bytes_ = 0;
};

struct ProbeShape {
  uint32_t readers = 1;
  uint32_t connections = 1;  // of each reader
};

// Serves `memory` once to each reader, on threads of its own.
class RawProbeSender {
 public:
  // Listens on `host`, a numeric address. INVALID_ARGUMENT: a shape of nothing or too much, no
  // address; UNAVAILABLE: no socket. The memory outlives it.
  static absl::StatusOr<std::unique_ptr<RawProbeSender>> Start(
      const MemoryStream* memory, ProbeShape shape, const std::string& host = kProbeLoopback);
  // Stops listening; waits for what is under way.
  ~RawProbeSender();

  uint16_t port() const;
  // Until every reader has everything. UNAVAILABLE when one has gone.
  absl::Status Await();

 private:
  struct State;
  explicit RawProbeSender(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Receives all of `memory` from a sender on `host`. Returns the name of the congestion control that
// was used. INVALID_ARGUMENT: no such number of connections, no address; UNAVAILABLE: the sender is
// not there or has gone.
absl::StatusOr<std::string> ReadRawProbe(const MemoryStream& memory, uint16_t port,
                                         uint32_t connections,
                                         const std::string& host = kProbeLoopback);

}  // namespace th

#endif  // TH_PROCESSES_RAW_PROBE_H_
