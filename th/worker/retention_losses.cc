#include "th/worker/retention_losses.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "glog/logging.h"

namespace th {
namespace {

// The limit of each question: a user who ends a process does not want to wait for a server.
constexpr absl::Duration kPatience = absl::Seconds(1);
constexpr size_t kMaxAnswers = 100;  // that are read of a server with much to tell

}  // namespace

std::vector<std::string> LossesOf(const RecentEvents& events, absl::string_view group) {
  std::vector<std::string> losses;
  for (const RecentEvent& event : events.events) {
    const bool ours = event.who == group || absl::StartsWith(event.who, absl::StrCat(group, "/"));
    if (ours && event.kind == EventKind::kRetainedVersionLost) losses.push_back(event.what);
  }
  return losses;
}

RetentionLosses::RetentionLosses(const ConnectionFlags& connection, std::string group)
    : group_(std::move(group)) {
  ConnectionFlags soon = connection;
  soon.connect_timeout = std::min(soon.connect_timeout, kPatience);
  absl::StatusOr<std::unique_ptr<Controller>> controller = soon.Connect();
  if (!controller.ok()) return;
  absl::StatusOr<RecentEvents> before = (*controller)->Events(0, {}, kPatience);
  if (!before.ok()) return;
  before_ = *std::move(before);
  controller_ = *std::move(controller);
}

std::optional<RecentEvents> RetentionLosses::Since(const RecentEvents& before) {
  if (controller_ == nullptr) return std::nullopt;
  RecentEvents all{.epoch = before.epoch, .last = before.last};
  for (size_t answer = 0; answer < kMaxAnswers; ++answer) {
    absl::StatusOr<RecentEvents> more = controller_->Events(all.last, {}, kPatience);
    if (!more.ok() || more->epoch != before.epoch || more->lost) return std::nullopt;
    all.last = more->last;
    if (more->events.empty()) return all;
    std::move(more->events.begin(), more->events.end(), std::back_inserter(all.events));
  }
  return std::nullopt;
}

void RetentionLosses::Log() {
  const std::optional<RecentEvents> since = Since(before_);
  if (!since.has_value()) {
    LOG(WARNING) << "the server does not answer, or knows too much since: whether a retained "
                    "version is lost with "
                 << group_ << " is not known; th events and th list say so once it is back";
    return;
  }
  for (const std::string& loss : LossesOf(*since, group_)) {
    LOG(WARNING) << "RETAINED VERSION LOST: " << loss
                 << "; what a process holds ends with it: publish it again to have it back";
  }
}

}  // namespace th
