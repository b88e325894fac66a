#include "th/client/name_resolution.h"

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "th/client/detached_call.h"

namespace th {
namespace {

std::atomic<int> look_ups_left_behind{0};

absl::StatusOr<Addresses> Resolve(const HostPort& target, const addrinfo& hints,
                                  const HostResolver& resolver) {
  addrinfo* found = nullptr;
  if (const int error = resolver(target, hints, &found)) {
    return absl::UnavailableError(gai_strerror(error));
  }
  return Addresses(found, freeaddrinfo);
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
  // A look-up counts as left behind from the end of the wait to the end of its thread. Both set the
  // flag when they are done; whoever is second takes the look-up off the count.
  const auto first_is_done = std::make_shared<std::atomic<bool>>(false);
  const auto look_up = DetachedCall<absl::StatusOr<Addresses>>::Start([=] {
    absl::StatusOr<Addresses> result = Resolve(target, addrinfo{.ai_socktype = socktype}, resolver);
    if (first_is_done->exchange(true)) look_ups_left_behind.fetch_sub(1);
    return result;
  });
  std::optional<absl::StatusOr<Addresses>> result = look_up->AwaitFor(timeout);
  if (result.has_value()) return *std::move(result);
  look_ups_left_behind.fetch_add(1);
  if (first_is_done->exchange(true)) look_ups_left_behind.fetch_sub(1);  // the thread ended first
  return absl::UnavailableError(
      absl::StrCat("the resolver has not answered within ", absl::FormatDuration(timeout)));
}

}  // namespace th
