#include "th/client/memberships.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "th/client/process_guard.h"

namespace th {
namespace {

struct Registered {
  OwningProcess owner;  // another one does not touch `mu`
  absl::Mutex mu;
  std::vector<std::weak_ptr<SessionDriver>> memberships ABSL_GUARDED_BY(mu);
};

// Never destroyed: a thread may still join, or ask for metrics, while the process exits.
Registered& TheRegistered() {
  static Registered* registered = new Registered;
  return *registered;
}

}  // namespace

void RegisterMembership(const std::shared_ptr<SessionDriver>& membership) {
  Registered& registered = TheRegistered();
  registered.owner.TakeOver();
  absl::MutexLock lock(&registered.mu);
  std::erase_if(registered.memberships, [](const auto& one) { return one.expired(); });
  registered.memberships.push_back(membership);
}

std::vector<std::shared_ptr<SessionDriver>> LiveMemberships() {
  Registered& registered = TheRegistered();
  std::vector<std::shared_ptr<SessionDriver>> live;
  if (!registered.owner.IsThis()) return live;
  absl::MutexLock lock(&registered.mu);
  for (const std::weak_ptr<SessionDriver>& one : registered.memberships) {
    if (auto membership = one.lock()) live.push_back(std::move(membership));
  }
  return live;
}

}  // namespace th
