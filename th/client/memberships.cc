#include "th/client/memberships.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "th/client/process_guard.h"

namespace th {
namespace {

struct Listed {
  const ProcessGuard guard;
  absl::Mutex mu;
  std::vector<std::weak_ptr<SessionDriver>> memberships ABSL_GUARDED_BY(mu);
};

// Never destroyed: a client may still end during the host's exit.
Listed& AllListed() {
  static Listed* listed = new Listed;
  return *listed;
}

}  // namespace

void ListMembership(const std::shared_ptr<SessionDriver>& membership) {
  Listed& listed = AllListed();
  absl::MutexLock lock(&listed.mu);
  std::erase_if(listed.memberships, [](const auto& one) { return one.expired(); });
  listed.memberships.push_back(membership);
}

std::vector<std::shared_ptr<SessionDriver>> LivingMemberships() {
  Listed& listed = AllListed();
  std::vector<std::shared_ptr<SessionDriver>> living;
  if (listed.guard.forked()) return living;
  absl::MutexLock lock(&listed.mu);
  for (const std::weak_ptr<SessionDriver>& one : listed.memberships) {
    if (auto membership = one.lock()) living.push_back(std::move(membership));
  }
  return living;
}

}  // namespace th
