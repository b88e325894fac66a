// The name of one operation across client, server and source, and what the server remembers of
// what happened of late.
//
//   const EventId event = EventId::Of(Epoch(7), 1234);   // the server counts them in each epoch
//   LOG(INFO) << "update began event=" << event.ToString();          // "event=7-1234"
//   EventOf(capability.claims) == event;                 // what a source is read for
//
// Pure, plain values. Deterministic: the server mints ids by counting.
#ifndef TH_PROTOCOL_EVENT_H_
#define TH_PROTOCOL_EVENT_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/capability.h"

namespace th {

// One operation of a group (or what happens without one), never used twice: the epoch of the server
// that minted it is the high half. Zero: none, or a server that tells none.
struct EventId {
  uint64_t value = 0;

  constexpr EventId() = default;
  constexpr explicit EventId(uint64_t raw) : value(raw) {}
  static constexpr EventId Of(Epoch epoch, uint32_t count) {
    return EventId((uint64_t{epoch.value} << 32) | count);
  }
  constexpr Epoch epoch() const { return Epoch(static_cast<uint32_t>(value >> 32)); }
  constexpr uint32_t count() const { return static_cast<uint32_t>(value); }
  constexpr bool empty() const { return value == 0; }
  friend constexpr auto operator<=>(EventId, EventId) = default;
  // "7-1234": epoch, then count. "" when there is none.
  std::string ToString() const;
  friend std::ostream& operator<<(std::ostream& os, EventId id) { return os << id.ToString(); }
};
// From "7-1234". INVALID_ARGUMENT.
absl::StatusOr<EventId> ParseEventId(absl::string_view text);
// " event=7-1234" for the end of a log line or error text; "" when there is none.
std::string EventSuffix(EventId event);

// Assignments carry their operation in the high half, so that a source, which sees nothing of an
// operation but a reader's capability, knows which one it is read for.
constexpr AssignmentId AssignmentOf(EventId event, uint32_t count) {
  return AssignmentId((uint64_t{event.count()} << 32) | count);
}
constexpr EventId EventOf(const CapabilityClaims& claims) {
  const uint32_t count = static_cast<uint32_t>(claims.assignment.value >> 32);
  return count == 0 ? EventId() : EventId::Of(claims.epoch, count);
}

enum class EventKind : uint8_t {
  kNone = 0,  // for the log only
  kPublished = 1,
  kUpdateBegan = 2,
  kUpdateMoved = 3,
  kOperationFailed = 4,
  kUnpublished = 5,
  kSourceFailed = 6,
  kSourceSuspected = 7,
  kRerouted = 8,
  kReadersCut = 9,
  kOffloadBegun = 10,
  kOffloadDone = 11,
  kOffloadFailed = 12,
  kOffloadReleased = 13,
  kLeaseExpired = 14,
  kWorkerReplaced = 15,
  kRolledBack = 16,
  kRetainedVersionLost = 17,
  kClaimRefused = 18,
  kRetainedVersionAtRisk = 19,  // its last replica has a notice: who asks by then saves it
  // For a reason that the group had not at its last update.
  kTransportPassedOver = 20,
  kConnectionsRefused = 21,  // by the server, which has no file descriptor left for them
  // A rank of the group that published it is gone, or was replaced: the others publish again.
  kPublicationLost = 22,
  kModelForgotten = 23,
  // Nobody holds all of the latest version any more, and no operation of its holder meant that.
  kLatestVersionLost = 24,
  kPinned = 25,
  kPinReleased = 26,  // by command, or as its time has passed
  kRetentionSet = 27,
  kServerStarted = 28,
  kServerStops = 29,
};
// "update began"; "event" for what this build does not know.
absl::string_view EventKindName(EventKind kind);

// "2026-11-26T18:30:00.125Z" (RFC 3339, UTC); "" where the server told no time.
std::string EventTimeText(absl::Time at);

// One thing that happened, as the server remembers it.
struct RecentEvent {
  uint64_t number = 0;  // its place among the remembered ones of this epoch, from 1
  EventId id;
  EventKind kind = EventKind::kNone;
  absl::Duration age;
  // By the server's clock: wall time at its start, moved on steadily. The epoch of Unix: a server
  // that tells none.
  absl::Time at = absl::UnixEpoch();
  ModelKey key;
  std::string who;   // "rollout-3/1", "trainer", "controller at 10.0.0.5", "server", or empty
  std::string what;  // for people
};

// The answer to a question for recent events.
struct RecentEvents {
  Epoch epoch;
  uint64_t last = 0;                // the number of the newest that was looked at: ask on from here
  bool lost = false;                // some between `after` and the first below are forgotten
  std::vector<RecentEvent> events;  // oldest first
};
// At most so many events are in one answer.
inline constexpr size_t kMaxEventsOfAnswer = 1000;

}  // namespace th

#endif  // TH_PROTOCOL_EVENT_H_
