// The state of a group operation as plain data: what its ranks have asked for, and how far it and
// each of them has come. What only one kind of operation has is in its part; transactions.h and the
// files of the kinds (publishing.h, unpublishing.h, updating.h) have the rules.
//
//   if (const UpdateOperation* update = transaction.if_update()) Use(update->selector);
//
// A Transaction is owned by its Replica (state.h). Not thread-safe.
#ifndef TH_REGISTRY_STATE_TRANSACTION_H_
#define TH_REGISTRY_STATE_TRANSACTION_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <variant>

#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/messages.h"
#include "th/weights/version.h"

namespace th::registry {

// The part of a rank as a participant depends on the kind of the operation.

// A publish needs nothing of a rank but its request.
struct PublishParticipant {};

struct UnpublishParticipant {
  std::optional<absl::Time> done_at;  // when the rank's buffer was drained (RankDone)
};

struct UpdateParticipant {
  bool ready = false;                 // the rank's buffer is drained (ReadyToFill)
  bool began_at_once = false;         // its fill has begun before its ReadyToFill, which is to come
  bool root_sent = false;             // the rank has been sent the root of its shard
  std::optional<absl::Time> done_at;  // when the rank had its whole shard (RankDone)
  absl::Duration stall;               // that the rank reported at `done_at`
  // Received bytes by the rank's own count at `done_at`; the group's metrics and copies use them.
  uint64_t from_publisher_bytes = 0;
  uint64_t from_relays_bytes = 0;
  // Given other sources in mid-fill, by the server's count; the rank's own count comes with
  // RankDone.
  uint64_t reroutes = 0;
};

struct Participant {
  std::variant<PublishParticipant, UnpublishParticipant, UpdateParticipant> part;
  absl::Time asked;  // when the rank first asked for the operation

  // When the rank reported RankDone; no value before that, and in a publish.
  std::optional<absl::Time> done_at() const;
  // Requires an operation of that kind.
  UnpublishParticipant& unpublish() { return std::get<UnpublishParticipant>(part); }
  UpdateParticipant& update() { return std::get<UpdateParticipant>(part); }
  const UpdateParticipant& update() const { return std::get<UpdateParticipant>(part); }
  // Returns null for other kinds.
  UpdateParticipant* if_update() { return std::get_if<UpdateParticipant>(&part); }
  const UpdateParticipant* if_update() const { return std::get_if<UpdateParticipant>(&part); }
};

// The state of an operation depends on its kind, too. An operation has begun when its phase is
// kBegun: from then on its replica is busy with it, and Transaction::version is set. Part is the
// type of its participants' parts.

enum class PublishPhase : uint8_t {
  kAsked,
  kPublishing,  // it has a version, which waits for the other ranks
};

struct PublishOperation {
  using Part = PublishParticipant;
  static constexpr OperationKind kKind = OperationKind::kPublish;
  static constexpr PublishPhase kBegun = PublishPhase::kPublishing;

  PublishPhase phase = PublishPhase::kAsked;
  VersionLabel label;
  Attributes attributes;
  std::optional<VersionSequence> derived_from;
};

enum class UnpublishPhase : uint8_t {
  kKeeping,   // asked; if it would take away the last of a retained version, that is copied first
  kDropping,  // asked by a rank that keeps nothing, or drained by one already: no copy can be made
  kDraining,  // the replica is no source any more
};

struct UnpublishOperation {
  using Part = UnpublishParticipant;
  static constexpr OperationKind kKind = OperationKind::kUnpublish;
  static constexpr UnpublishPhase kBegun = UnpublishPhase::kDraining;

  UnpublishPhase phase = UnpublishPhase::kKeeping;
  uint32_t ranks_done = 0;

  // Called when a rank does not keep what is retained, or has nothing left to be kept.
  void StopKeeping();
};

enum class UpdatePhase : uint8_t {
  kAsked,     // not resolved yet
  kAnswered,  // resolved by an earlier server, or by ranks that copy without one: to `answer`
  kFilling,   // resolved here, and under way
};

struct UpdateOperation {
  using Part = UpdateParticipant;
  static constexpr OperationKind kKind = OperationKind::kUpdate;
  static constexpr UpdatePhase kBegun = UpdatePhase::kFilling;

  UpdatePhase phase = UpdatePhase::kAsked;
  VersionSelector selector = LatestVersion{};
  VersionSequence floor;  // the highest floor that any rank has asked for
  WhenSeeding when_seeding = WhenSeeding::kWait;
  // All its ranks keep what is retained, or none does. No value: no rank's request has told which.
  std::optional<bool> keep_retained;
  VersionInfo answer;        // meaningless unless kAnswered
  uint32_t assignments = 0;  // made in it so far
  uint32_t ranks_done = 0;
};

using OperationPart = std::variant<PublishOperation, UnpublishOperation, UpdateOperation>;

// A group operation from its first rank's request to its end.
struct Transaction {
  OperationNumber number;
  EventId event;
  absl::Time started;  // when the first rank asked
  Rank first_rank;
  absl::Time deadline;  // the earliest deadline that any rank asked for
  // Ranks that have lost a call must have joined it by then; see kCallsAgainWithin.
  absl::Time complete_by = absl::InfiniteFuture();
  // The version that it has begun with. Before an update begins: the version that it would have
  // moved to when it was last evaluated, which the result of a failure names.
  VersionSequence version;
  std::map<Rank, Participant> participants;
  std::set<Rank> arrivals;  // participants that have asked, or asked again, since the last look
  OperationPart part;       // by its kind

  OperationKind kind() const;
  // The operation's entry in RegistryState::deadlines is at this time.
  absl::Time ends_at() const { return std::min(deadline, complete_by); }
  bool has_begun() const;
  bool is_publishing() const { return has_begun() && kind() == OperationKind::kPublish; }
  bool is_draining() const { return has_begun() && kind() == OperationKind::kUnpublish; }
  bool is_filling() const { return has_begun() && kind() == OperationKind::kUpdate; }
  // The rank takes part from here on, if it did not; then `asked` is now.
  void AddParticipant(Rank rank, absl::Time asked);
  // Requires an operation of that kind.
  PublishOperation& publish() { return std::get<PublishOperation>(part); }
  const PublishOperation& publish() const { return std::get<PublishOperation>(part); }
  UnpublishOperation& unpublish() { return std::get<UnpublishOperation>(part); }
  const UnpublishOperation& unpublish() const { return std::get<UnpublishOperation>(part); }
  UpdateOperation& update() { return std::get<UpdateOperation>(part); }
  const UpdateOperation& update() const { return std::get<UpdateOperation>(part); }
  // Returns null for other kinds.
  const PublishOperation* if_publish() const { return std::get_if<PublishOperation>(&part); }
  UnpublishOperation* if_unpublish() { return std::get_if<UnpublishOperation>(&part); }
  const UnpublishOperation* if_unpublish() const { return std::get_if<UnpublishOperation>(&part); }
  UpdateOperation* if_update() { return std::get_if<UpdateOperation>(&part); }
  const UpdateOperation* if_update() const { return std::get_if<UpdateOperation>(&part); }
};

// True for an operation that has not begun, and that ends with must_offload rather than take away
// the last replica of a retained version.
bool MayDemandOffload(const Transaction& transaction);

}  // namespace th::registry

#endif  // TH_REGISTRY_STATE_TRANSACTION_H_
