#include "th/transfer/stream/inbound_connections.h"

namespace th::stream {

InboundConnections::Verdict InboundConnections::Take(const std::string& peer) {
  const absl::MutexLock lock(&mu_);
  if (open_ >= limits_.most) return Verdict::kClose;
  const auto found = of_peers_.find(peer);
  const uint32_t of_peer = found == of_peers_.end() ? 0 : found->second;
  if (of_peer >= limits_.most_of_a_peer + kMaxRefusedOfAPeer) return Verdict::kClose;
  ++open_;
  of_peers_[peer] = of_peer + 1;
  return of_peer < limits_.most_of_a_peer ? Verdict::kServe : Verdict::kRefuse;
}

void InboundConnections::Release(const std::string& peer) {
  const absl::MutexLock lock(&mu_);
  --open_;
  const auto found = of_peers_.find(peer);
  if (--found->second == 0) of_peers_.erase(found);
}

}  // namespace th::stream
