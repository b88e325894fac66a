// Membership: joining, replacing, resuming, leaving, leases.
//
// A rank joins afresh (a new process) or resumes (the same process on a new stream, after its
// stream or the server broke). A fresh join takes the place of a member whose stream has broken, at
// once; a member with a live stream is never replaced by one.
#ifndef TH_REFERENCE_REGISTRY_MEMBERSHIP_H_
#define TH_REFERENCE_REGISTRY_MEMBERSHIP_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/reference_registry/buffer_registration.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

inline constexpr size_t kMaxEndpoints = 64;
inline constexpr size_t kMaxEndpointBytes = 256;

struct JoinGroup {
  ConnectionId connection;
  const JoinRequest* request = nullptr;  // the message, which outlives this

  // INVALID_ARGUMENT naming the field: bad names, rank outside the group, too many endpoints, a
  // claim that cannot be. FAILED_PRECONDITION: no protocol version in common. PERMISSION_DENIED:
  // the claim lacks its membership's secret.
  static absl::StatusOr<JoinGroup> Build(const RegistryState& state, ConnectionId connection,
                                         const JoinRequest& request);
  // ALREADY_EXISTS naming the holder: the rank has a live stream. ABORTED: the claimed membership
  // was replaced or has ended. FAILED_PRECONDITION naming both numbers and the rank: the group's
  // size is another. UNAVAILABLE: likewise, for a member that comes back while ranks may
  // still come back. RESOURCE_EXHAUSTED naming the limit.
  absl::Status CanApply(const RegistryState& state) const;
  // Joined goes to the connection; who was replaced hears Refused. The request's buffers are the
  // caller's to announce.
  Worker& Apply(Turn& turn) const;
};

// A member that comes back and finds no room (see RegistryLimits) has not lost its membership.
inline constexpr absl::Duration kRetryWithoutRoom = absl::Seconds(1);
// A member that comes back and was refused for its group's size, while ranks may still come back.
inline constexpr absl::Duration kRetryOfOtherSize = absl::Seconds(1);
// When a refused joiner may try again: soon, when the live stream that refuses it has been silent,
// and a member of the two kinds above. Infinite: never.
absl::Duration RetryAfter(const RegistryState& state, const JoinRequest& request,
                          const absl::Status& refusal, absl::Time now);

// The stream has broken; the lease runs on.
void LoseStream(Turn& turn, Worker& worker);

// The worker is no member any more: operations of its group end with the code of `cause`, naming
// the rank and the cause; what it held is gone for readers, and so is what the rest of its replica
// held. Its stream, when it has one, hears ABORTED. The group's record stays.
void RemoveWorker(Turn& turn, Worker& worker, const absl::Status& cause,
                  OthersPublications others = OthersPublications::kAreLost);
// A worker has a notice (see Preempt): it comes last as a source, its readers move to others, its
// replica stays no more (see retention.h). What the group does goes on. The earliest one counts.
struct TakeNotice {
  WorkerId worker;
  Preempt message;

  // INVALID_ARGUMENT: the deadline is not above zero.
  absl::Status CanApply(const RegistryState& state) const;
  void Apply(Turn& turn) const;
};

// The group's record goes when it has no member, and its model's when it has nothing to remember.
void ForgetIfEmpty(Turn& turn, Group& group);

// The group numbers its operations from 1 again, because of what has become of a rank.
void BumpGroupGeneration(Turn& turn, Group& group, Rank rank, absl::string_view why);
// A new process has its place, and holds nothing of what it held.
inline constexpr absl::string_view kReplaced = "was replaced by a new process";
// It lost one of its calls to a change of the group that it heard of late, and would be an
// operation behind for ever where the caller of all ranks waits for all of them.
inline constexpr absl::string_view kLags = "is an operation behind the others";
// It unpublished without a server, while its group was told to offload first: what the others hold
// is no whole replica any more.
inline constexpr absl::string_view kDrainedAlone = "has unpublished what its group was to offload";
// Its part of an operation failed before it heard that its group was told to offload first: the
// others' copy would wait for it in vain.
inline constexpr absl::string_view kFailedAlone = "has failed what its group was to offload for";
// It has registered a buffer under a name whose numbers are used in this generation, or were by the
// buffer that it freed: results of that one are never told to the new one.
void BumpGroupGenerationIfAgain(Turn& turn, Worker& worker, const AnnouncedBuffer& announced);

// The lease's time has come: removes the worker, or looks again later when it was heard since.
void CheckLease(Turn& turn, Worker& worker);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_MEMBERSHIP_H_
