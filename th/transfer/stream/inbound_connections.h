// The connections that a transport has accepted: how many there are of all peers and of each, and
// so what becomes of the next one. A peer that opens connections without end takes its own share of
// the process's, and no other peer's.
//
//   switch (inbound.Take(peer)) { ... }
//   inbound.Release(peer);  // when the connection has ended; not after kClose
//
// Thread-safe.
#ifndef TH_TRANSFER_STREAM_INBOUND_CONNECTIONS_H_
#define TH_TRANSFER_STREAM_INBOUND_CONNECTIONS_H_

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace th::stream {

// Connections beyond its limit that a peer may have open at a time while it is told of it; further
// ones are closed at once.
inline constexpr uint32_t kMaxRefusedOfAPeer = 64;

class InboundConnections {
 public:
  enum class Verdict : uint8_t {
    kServe,
    kRefuse,  // it may say what it wants, and is refused with the reason
    kClose,   // without a word
  };
  struct Limits {
    uint32_t most = 0;
    uint32_t most_of_a_peer = 0;
  };

  explicit InboundConnections(const Limits& limits) : limits_(limits) {}

  Verdict Take(const std::string& peer);
  void Release(const std::string& peer);

 private:
  const Limits limits_;
  absl::Mutex mu_;
  uint32_t open_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<std::string, uint32_t> of_peers_ ABSL_GUARDED_BY(mu_);  // none is 0
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_INBOUND_CONNECTIONS_H_
