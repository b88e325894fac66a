// How often a client pings its server when nothing else crosses the connection.
#ifndef TH_CLIENT_KEEP_ALIVE_H_
#define TH_CLIENT_KEEP_ALIVE_H_

#include <cstdint>

namespace th {

// The longest time between two pings. The server permits them this often (its
// MIN_RECV_PING_INTERVAL must stay below three quarters of this).
inline constexpr uint32_t kKeepAliveMs = 10'000;

// Of the n-th channel: from three quarters of kKeepAliveMs to all of it, evenly among channels
// whose numbers follow each other. With one interval for all, workers that have heard of a version
// together would ping together, and an update meanwhile waits behind thousands of pings.
constexpr uint32_t KeepAliveOf(uint32_t channel) {
  constexpr uint32_t kGoldenRatio = 0x9e3779b9;  // of 2^32: multiples of it lie far apart
  const uint64_t spread = uint64_t{kKeepAliveMs / 4} * (channel * kGoldenRatio);
  return kKeepAliveMs - static_cast<uint32_t>(spread >> 32);
}

}  // namespace th

#endif  // TH_CLIENT_KEEP_ALIVE_H_
