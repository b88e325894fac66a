// Which sources a reader gets, and what becomes of it when one fails: the scheduler's policy put to
// the registry's state.
//
// A source that failed a reader is excluded for that fill. When nobody else is left it is tried
// again, as often as the failure allows, after a pause; when every try is spent the operation
// fails, naming source, reason and tries. Tries recover when the reader gets on: a source that
// stands still now and then, in a fill of hours, is not one that is gone. Wrong bytes stay counted.
#ifndef TH_REFERENCE_REGISTRY_ASSIGNMENT_H_
#define TH_REFERENCE_REGISTRY_ASSIGNMENT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"
#include "th/scheduler/scheduler.h"

namespace th::registry {

// How long a source that was reported comes after all others of its distance.
inline constexpr absl::Duration kSuspicionLasts = absl::Seconds(10);
// A reader that was silent itself blames no source for this long afterwards: it was cut off, and
// could hear nobody.
inline constexpr absl::Duration kOwnSilenceExcuses = absl::Seconds(1);
// The time for which a reader whose own uplink is slow lets others ask first.
inline constexpr absl::Duration kSlowAsksLater = absl::Milliseconds(100);
// One whose link is known to be slow waits this part of the time that its shard takes over it, and
// no longer than that: so the slower of two waits longer.
inline constexpr double kSlowAsksLaterPart = 0.01;
// Less by up to this part, the longer its limit is unproved: of those alike each goes first in
// turn.
inline constexpr double kUnprovedAskEarlier = 0.25;
// Before a failed source is tried again for want of another; times the tries so far.
inline constexpr absl::Duration kRetryPause = absl::Milliseconds(200);

// Gives the reader sources and tells it, or lets it wait, or fails its group's operation when
// nobody is left to hope for. No effect on a buffer that is not filling.
void AssignFill(Turn& turn, Buffer& buffer);
// Gives the reader others, where somebody who stays can serve, if one of its sources leaves or the
// other is nearer than all of them; else it keeps what it has. Nothing to do for a buffer that is
// not filling or has no source.
void MoveFill(Turn& turn, Buffer& buffer);
// True when one of the reader's sources has a notice, maybe since the reader was away.
bool ASourceLeaves(const Buffer& reader);
// Tells the reader its present sources again, under a new assignment.
void RepeatAssignment(Turn& turn, Buffer& buffer);

// The source from which `reader` would pull if it left `source`; none when there is nobody.
std::optional<SchedulerChoice> BestOtherThan(const Turn& turn, const Buffer& reader,
                                             const BufferAddress& source);
// The sources that `reader` would be given if it were assigned anew, without those that failed it
// and `without`; best first.
std::vector<SchedulerChoice> ChoicesBeside(const Turn& turn, const Buffer& reader,
                                           const std::vector<BufferAddress>& without);
// The reader, which is filling, has these sources from now on, and is told.
void GiveSources(Turn& turn, Buffer& reader, const std::vector<SchedulerChoice>& choices);
// `reader` leaves `source`, which did not fail: it is excluded without a try spent, and other
// readers get it after all others of its distance until `slow_until`. Others are assigned at the
// end of the turn.
void LeaveSource(Turn& turn, Buffer& reader, const Buffer& source, absl::Time slow_until,
                 const std::string& why);

// True when a reader of the shard may hope to complete it: somebody holds it whole, or is fed by
// somebody who does.
bool IsCompletable(const Shard& shard);

struct ReportSourceFailed {
  BufferAddress buffer;
  SourceFailed message;

  // FAILED_PRECONDITION: nothing is filling under this key, the assignment was replaced since, or
  // the source is none of it.
  absl::Status CanApply(const RegistryState& state) const;
  void Apply(Turn& turn) const;
};

// A source that sent wrong bytes and is kept: other readers get it last for kSuspicionLasts.
struct SuspectSource {
  BufferAddress buffer;
  SourceSuspected message;

  // FAILED_PRECONDITION as above.
  absl::Status CanApply(const RegistryState& state) const;
  void Apply(Turn& turn) const;
};

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_ASSIGNMENT_H_
