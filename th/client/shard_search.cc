#include "th/client/shard_search.h"

#include <algorithm>
#include <utility>

#include "th/client/client.h"
#include "th/client/client_state.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

// The longest wait for one answer of the server while the shard is looked up.
constexpr absl::Duration kLongestAnswer = absl::Seconds(10);

// The time that is left until `deadline` for one of them.
absl::Duration TimeForAnswer(absl::Time deadline) {
  return std::clamp(deadline - MonotonicNow(), absl::Milliseconds(1), kLongestAnswer);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ShardLayout>> Client::Impl::LayoutOf(Controller& asked,
                                                                          const Digest& digest,
                                                                          absl::Duration timeout) {
  {
    absl::MutexLock lock(&mu);
    if (last_received != nullptr && last_received->digest() == digest) return last_received;
  }
  TH_ASSIGN_OR_RETURN(ShardLayout fetched, asked.GetLayout(digest, timeout));
  auto layout = std::make_shared<const ShardLayout>(std::move(fetched));
  absl::MutexLock lock(&mu);
  last_received = layout;
  return layout;
}

absl::StatusOr<ShardToRead> Client::Impl::FindShard(const VersionSelector& version,
                                                    const ShardChoice& choice,
                                                    absl::Time deadline) {
  TH_ASSIGN_OR_RETURN(const auto asked, ConnectedController(TimeForAnswer(deadline)));
  FoundShard found;
  if (choice.layout.has_value()) {
    found.layout = *choice.layout;
  } else {
    TH_ASSIGN_OR_RETURN(found, asked->FindShard({.selector = version,
                                                 .form = choice.form,
                                                 .group = choice.group,
                                                 .rank = Rank(choice.rank)},
                                                TimeForAnswer(deadline)));
  }
  ShardToRead shard{.not_available = found.not_available, .layout = nullptr};
  if (shard.not_available != NotAvailableReason::kNone) return shard;
  TH_ASSIGN_OR_RETURN(shard.layout, LayoutOf(*asked, found.layout, TimeForAnswer(deadline)));
  return shard;
}

}  // namespace th
