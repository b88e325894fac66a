#include "th/protocol/event.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace th {

std::string EventId::ToString() const {
  return empty() ? "" : absl::StrCat(epoch().value, "-", count());
}

absl::StatusOr<EventId> ParseEventId(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '-');
  uint32_t epoch = 0, count = 0;
  const bool good = parts.size() == 2 && absl::SimpleAtoi(parts[0], &epoch) &&
                    absl::SimpleAtoi(parts[1], &count) && count > 0;
  if (good) return EventId::Of(Epoch(epoch), count);
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is no event id; they look like 7-1234"));
}

std::string EventSuffix(EventId event) {
  return event.empty() ? "" : absl::StrCat(" event=", event.ToString());
}

std::string EventTimeText(absl::Time at) {
  if (at == absl::UnixEpoch()) return "";
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", at, absl::UTCTimeZone());
}

absl::string_view EventKindName(EventKind kind) {
  switch (kind) {
    case EventKind::kNone:
      break;
    case EventKind::kPublished:
      return "published";
    case EventKind::kUpdateBegan:
      return "update began";
    case EventKind::kUpdateMoved:
      return "update moved";
    case EventKind::kOperationFailed:
      return "operation failed";
    case EventKind::kUnpublished:
      return "unpublished";
    case EventKind::kSourceFailed:
      return "source failed";
    case EventKind::kSourceSuspected:
      return "source suspected";
    case EventKind::kRerouted:
      return "re-routed";
    case EventKind::kReadersCut:
      return "readers cut";
    case EventKind::kOffloadBegun:
      return "offload begun";
    case EventKind::kOffloadDone:
      return "offload done";
    case EventKind::kOffloadFailed:
      return "offload failed";
    case EventKind::kOffloadReleased:
      return "offload released";
    case EventKind::kLeaseExpired:
      return "lease expired";
    case EventKind::kWorkerReplaced:
      return "worker replaced";
    case EventKind::kRolledBack:
      return "rolled back";
    case EventKind::kRetainedVersionLost:
      return "retained version lost";
    case EventKind::kClaimRefused:
      return "claim refused";
    case EventKind::kRetainedVersionAtRisk:
      return "retained version at risk";
    case EventKind::kTransportPassedOver:
      return "transport passed over";
    case EventKind::kConnectionsRefused:
      return "connections refused";
    case EventKind::kPublicationLost:
      return "publication lost";
    case EventKind::kModelForgotten:
      return "model forgotten";
    case EventKind::kLatestVersionLost:
      return "latest version lost";
    case EventKind::kPinned:
      return "pinned";
    case EventKind::kPinReleased:
      return "pin released";
    case EventKind::kRetentionSet:
      return "retention set";
    case EventKind::kServerStarted:
      return "server started";
    case EventKind::kServerStops:
      return "server stops";
  }
  return "event";
}

}  // namespace th
