// What the machine's TCP can do: the same bytes, from the same memory into the same memory, over as
// many connections, by plain blocking send and recv, without checksums, framing or relays. The
// yardstick of `th bench transfer`.
//
// The sender listens on loopback; each reader opens `connections` connections, and connection i
// carries the i-th part of the bytes.
#ifndef TH_CLI_RAW_PROBE_H_
#define TH_CLI_RAW_PROBE_H_

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
  // INVALID_ARGUMENT: a shape of nothing or too much; UNAVAILABLE: no socket. The memory outlives
  // it.
  static absl::StatusOr<std::unique_ptr<RawProbeSender>> Start(const MemoryStream* memory,
                                                               ProbeShape shape);
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

// Receives all of `memory` from a sender. Returns the name of the congestion control that was used.
absl::StatusOr<std::string> ReadRawProbe(const MemoryStream& memory, uint16_t port,
                                         uint32_t connections);

}  // namespace th

#endif  // TH_CLI_RAW_PROBE_H_
