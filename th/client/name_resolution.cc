#include "th/client/name_resolution.h"

#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "th/client/task_loop.h"

namespace th {
namespace {

std::atomic<int> look_ups_left_behind{0};

// Shared by who waits and by the thread that asks: whichever ends last.
struct LookUp {
  const HostPort target;
  const addrinfo hints;
  absl::Mutex mu;
  std::optional<absl::StatusOr<Addresses>> result ABSL_GUARDED_BY(mu);
  bool left_behind ABSL_GUARDED_BY(mu) = false;  // nobody waits for the result any more
};

absl::StatusOr<Addresses> Resolve(const HostPort& target, const addrinfo& hints,
                                  const HostResolver& resolver) {
  addrinfo* found = nullptr;
  if (const int error = resolver(target, hints, &found)) {
    return absl::UnavailableError(gai_strerror(error));
  }
  return Addresses(found, freeaddrinfo);
}

void StartLookUp(const std::shared_ptr<LookUp>& look_up, const HostResolver& resolver) {
  const SignalsBlocked blocked;  // the host's signals are not handled on this thread
  std::thread([look_up, resolver] {
    absl::StatusOr<Addresses> result = Resolve(look_up->target, look_up->hints, resolver);
    absl::MutexLock lock(&look_up->mu);
    if (look_up->left_behind) look_ups_left_behind.fetch_sub(1);
    look_up->result = std::move(result);
  }).detach();
}

}  // namespace

HostResolver SystemResolver() {
  return [](const HostPort& target, const addrinfo& hints, addrinfo** found) {
    return getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, found);
  };
}

absl::StatusOr<Addresses> ResolveHost(const HostPort& target, int socktype, absl::Duration timeout,
                                      const HostResolver& resolver) {
  const addrinfo numeric{.ai_flags = AI_NUMERICHOST, .ai_socktype = socktype};
  if (auto addresses = Resolve(target, numeric, SystemResolver()); addresses.ok()) return addresses;
  if (look_ups_left_behind.load() >= kMaxLookUpsLeftBehind) {
    return absl::UnavailableError(
        absl::StrCat(kMaxLookUpsLeftBehind, " look-ups of hosts have not been answered yet"));
  }
  const std::shared_ptr<LookUp> look_up(
      new LookUp{.target = target, .hints = {.ai_socktype = socktype}});
  StartLookUp(look_up, resolver);
  absl::MutexLock lock(&look_up->mu);
  const auto answered = [&]() ABSL_SHARED_LOCKS_REQUIRED(look_up->mu) {
    return look_up->result.has_value();
  };
  if (look_up->mu.AwaitWithTimeout(absl::Condition(&answered), timeout)) {
    return *std::move(look_up->result);
  }
  look_up->left_behind = true;
  look_ups_left_behind.fetch_add(1);
  return absl::UnavailableError(
      absl::StrCat("the resolver has not answered within ", absl::FormatDuration(timeout)));
}

}  // namespace th
