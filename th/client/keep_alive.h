// How often a client pings its server when nothing else crosses the connection.
#ifndef TH_CLIENT_KEEP_ALIVE_H_
#define TH_CLIENT_KEEP_ALIVE_H_

#include <cstdint>

#include "th/worker_session/even_spread.h"

namespace th {

// The longest time between two pings. The server permits them this often (its
// MIN_RECV_PING_INTERVAL must stay below three quarters of this).
inline constexpr uint32_t kKeepAliveMs = 10'000;

// The interval of the n-th channel lies between three quarters of kKeepAliveMs and all of it,
// evenly spread among channels whose numbers follow each other. With one interval for all, workers
// that have heard of a version together would ping together, and an update meanwhile waits behind
// thousands of pings.
constexpr uint32_t KeepAliveOf(uint32_t channel) {
  const uint64_t spread = uint64_t{kKeepAliveMs / 4} * EvenSpread(channel);
  return kKeepAliveMs - static_cast<uint32_t>(spread >> 32);
}

}  // namespace th

#endif  // TH_CLIENT_KEEP_ALIVE_H_
