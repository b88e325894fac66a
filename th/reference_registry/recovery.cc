#include "th/reference_registry/recovery.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "th/reference_registry/buffer_registration.h"
#include "th/reference_registry/copy_release.h"
#include "th/reference_registry/membership.h"
#include "th/reference_registry/models.h"
#include "th/reference_registry/publishing.h"
#include "th/reference_registry/retention.h"
#include "th/reference_registry/transactions.h"
#include "th/reference_registry/updating.h"
#include "th/registry_state/claims.h"
#include "th/registry_state/holders.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

void AddHighWaterVersion(Model& model) {
  if (model.durable.high_water == VersionSequence()) return;
  Version& version = model.versions[model.durable.high_water];
  version.model = &model;
  version.info.sequence = model.durable.high_water;
  version.info.lineage = model.durable.lineage;
  if (auto label = VersionLabel::Parse(model.durable.high_water_label); label.ok()) {
    version.info.label = *std::move(label);
    model.labels[version.info.label.text()] = version.info.sequence;
  }
  version.phase = VersionPhase::kPublished;
  version.announced = false;
  version.from_earlier_epoch = true;
}

void RefuseHolding(Turn& turn, const Buffer& buffer, const HeldVersion& held,
                   const absl::Status& why) {
  ++turn.state.counters.messages_refused;
  Send(turn, *buffer.worker,
       PublicationRefused{
           .buffer = buffer.address.buffer,
           .version = held.version.sequence,
           .status = absl::Status(why.code(),
                                  absl::StrCat(held.version.ToString(), " at rank ",
                                               NameOf(buffer).ToString(), ": ", why.message()))});
}

absl::Status Impossible(absl::string_view why) {
  return absl::AbortedError(absl::StrCat(why, "; reset the buffer and update it"));
}

bool IsLostPublication(const Buffer& buffer, const HeldVersion& held) {
  return held.publisher && held.version.sequence == buffer.replica->publication_lost;
}

bool IsOf(const Content& content, const HeldVersion& held) {
  return content.version == held.version.sequence && content.publisher == held.publisher;
}

// The server's record of the content that the worker says it holds, also of content that an update
// has displaced; null when it has none.
const Content* RecordOf(const Buffer& buffer, const HeldVersion& held) {
  if (buffer.content.has_value() && IsOf(*buffer.content, held)) return &*buffer.content;
  const Content* displaced = buffer.displaced.get();
  return displaced != nullptr && held.complete && IsOf(*displaced, held) ? displaced : nullptr;
}

// True when the buffer claims a root or the whole content of a version of this epoch whose
// publisher has not told its sums. Until then nobody but the publisher can have either.
bool SaysWhatOnlyItsPublisherKnows(const Version& version, const Buffer& buffer,
                                   const HeldVersion& held) {
  if (held.publisher || version.from_earlier_epoch) return false;
  if (!held.root.has_value() && !held.complete) return false;
  const auto shard = version.shards.find(ShardKeyOf(buffer));
  return shard == version.shards.end() || !shard->second.root.has_value();
}

// The server knows who has published a version of its own epoch, so a claim that it has not
// recorded is false.
bool FalselyClaimsPublication(const Version& version, const Buffer& buffer,
                              const HeldVersion& held) {
  if (!held.publisher || version.from_earlier_epoch) return false;
  return RecordOf(buffer, held) == nullptr;
}

// True when the label names another version and keeps it. A server gives a label again only to a
// later version: after a roll-back, or where the version that had it was lost. So of two versions
// the later one has the label.
bool IsLabelOfAnother(const Model& model, const VersionInfo& info) {
  const auto label = model.labels.find(info.label.text());
  return label != model.labels.end() && label->second > info.sequence;
}

// Why what a worker says it holds cannot be; empty when it can.
std::string WhyImpossible(const RegistryState& state, const Model& model, const Buffer& buffer,
                          const HeldVersion& held) {
  const VersionInfo& info = held.version;
  const Version* known = FindVersion(model, info.sequence);
  if (known != nullptr && known->phase == VersionPhase::kWithdrawn) return "it was rolled back";
  const bool withdrawn =
      TH_MUTATE(kReviveWithdrawn, WasWithdrawn(model, info.sequence, info.lineage), false);
  if (withdrawn) return "it was rolled back, or never published";
  if (known != nullptr && known->phase == VersionPhase::kPublishing) return "it is not published";
  if (known == nullptr && info.sequence.epoch() >= state.epoch) return "it is unknown";
  if (known != nullptr && FalselyClaimsPublication(*known, buffer, held)) {
    return "its group has not published it";
  }
  if (known != nullptr && SaysWhatOnlyItsPublisherKnows(*known, buffer, held)) {
    return "its publisher has not reported its checksums";
  }
  if (known != nullptr && !known->info.label.empty() && known->info.label != info.label) {
    return absl::StrCat("its label is '", known->info.label.text(), "'");
  }
  if (IsLabelOfAnother(model, info)) return "its label belongs to another version";
  if (info.label.empty() || !ValidateAttributes(info.attributes).ok()) {
    return "its label is empty or its attributes are invalid";
  }
  if (!held.segments.empty() && held.segments.ranges().back().end.value > buffer.segment_count) {
    return "it names segments that its layout lacks";
  }
  return "";
}

void EvaluateWaiting(Turn& turn) {
  for (ReplicaId replica : turn.state.waiting_for_recovery) turn.to_evaluate.insert(replica);
  turn.state.waiting_for_recovery.clear();
}

// The high-water mark may have lost its label (TakeLabelFromUnannounced).
void KeepLabelOfHighWater(Turn& turn, Model& model, const VersionInfo& info) {
  const bool lacks_label =
      info.sequence == model.durable.high_water && model.durable.high_water_label.empty();
  if (!lacks_label) return;
  model.durable.high_water_label = info.label.text();
  Persist(turn, model);
}

Version& EnsureVersion(Turn& turn, Model& model, const VersionInfo& info) {
  Version& version = model.versions[info.sequence];
  if (version.model == nullptr || !version.announced) {
    model.attribute_bytes -= MemoryOf(version.info.attributes);
    version.model = &model;
    version.info = info;
    model.attribute_bytes += MemoryOf(version.info.attributes);
    version.phase = VersionPhase::kPublished;
    version.announced = true;
    version.from_earlier_epoch = true;
    ClaimLabel(turn, version);
    KeepLabelOfHighWater(turn, model, info);
    EvaluateWaiting(turn);  // a publish under its label may wait for it
  }
  return version;
}

// Why there is no room for a version that is announced; empty: there is.
std::string WhyNoRoom(const RegistryState& state, const Model& model, const VersionInfo& info) {
  const RegistryLimits& limits = state.limits;
  const Version* known = FindVersion(model, info.sequence);
  if (known != nullptr && known->announced) return "";
  if (known == nullptr && model.versions.size() >= limits.max_versions_per_model) {
    return absl::StrCat("max_versions_per_model is ", limits.max_versions_per_model);
  }
  const uint64_t bytes = model.attribute_bytes + MemoryOf(info.attributes);
  if (bytes <= limits.max_attribute_bytes_per_model) return "";
  return absl::StrCat("max_attribute_bytes_per_model is ", limits.max_attribute_bytes_per_model);
}

void AdoptEdges(Turn& turn, Buffer& buffer, const std::vector<BufferAddress>& sources) {
  Shard& shard = *buffer.shard;
  std::vector<BufferAddress> adopted;
  SetSources(turn, shard, buffer.address, {});
  for (const BufferAddress& source : sources) {
    const bool again = std::count(adopted.begin(), adopted.end(), source) > 0;
    const bool cycle = WouldCycle(shard, buffer.address, source);
    if (again || cycle || adopted.size() >= kMaxExclusions) continue;
    const Buffer* known = FindBuffer(turn.state, source);
    const bool elsewhere = known != nullptr && known->shard != &shard;
    if (elsewhere || (known == nullptr && !turn.state.adopting)) continue;
    adopted.push_back(source);
  }
  buffer.sources_confirmed = adopted.size() == sources.size() && !adopted.empty();
  if (buffer.fill != nullptr) {
    buffer.fill->confirmed = buffer.sources_confirmed;
    if (adopted.empty()) turn.to_assign.insert(buffer.address);
  }
  if (!adopted.empty()) shard.waiting.erase(buffer.address);
  SetSources(turn, shard, buffer.address, std::move(adopted));
  Reindex(turn, buffer);
}

bool AllRanksHold(const Replica& replica, VersionSequence version) {
  return replica.buffers.size() == replica.group->ranks &&
         std::all_of(replica.buffers.begin(), replica.buffers.end(), [&](const auto& entry) {
           const std::optional<Content>& content = entry.second->content;
           return content.has_value() && content->complete && content->committed &&
                  !content->refused && content->version == version;
         });
}

// Sets the replica's phase from what its ranks have announced so far.
void SettlePhase(Turn& turn, Buffer& buffer) {
  Replica& replica = *buffer.replica;
  const Content& content = *buffer.content;
  if (replica.released) {  // its rank is about to hear that it may go
    return SetPhase(turn, replica, ReplicaPhase::kDraining, content.version);
  }
  if (replica.phase == ReplicaPhase::kHolding && replica.version == content.version) {
    if (content.complete) CommitContent(buffer);
    return Reindex(turn, buffer);
  }
  if (const Transaction* head = HeadOf(replica); head != nullptr && head->has_begun()) return;
  const bool whole = AllRanksHold(replica, content.version);
  if (content.committed && content.complete && replica.role != BufferRole::kStreaming) {
    const bool other_fill = replica.phase == ReplicaPhase::kFilling;
    if (whole || (turn.state.adopting && replica.group->adopted && !other_fill)) {
      SetPhase(turn, replica, ReplicaPhase::kHolding, content.version);
    }
    return;
  }
  // The fill began before the server restarted; its rank is about to send the operation again.
  if (turn.state.adopting && replica.group->adopted && !replica.finished_here) {
    SetPhase(turn, replica, ReplicaPhase::kFilling, content.version);
  }
}

void LoseContent(Turn& turn, Buffer& buffer) {
  if (!buffer.content.has_value()) return;
  const Transaction* head = HeadOf(*buffer.replica);
  const bool draining = head != nullptr && head->is_draining();
  const bool filling = buffer.replica->phase == ReplicaPhase::kFilling;
  buffer.drained_while_away = true;
  if (draining) {
    ClearContent(turn, buffer);
  } else {
    DisplaceContent(turn, buffer);  // it may drain for an update, which may fail
  }
  if (!draining && !filling) InvalidateReplica(turn, *buffer.replica);
}

// Invalidates the replica when this rank, which had reported that it was done, lacks the group's
// version or a part of it.
void EndFalseHolding(Turn& turn, Buffer& buffer) {
  Replica& replica = *buffer.replica;
  const bool has_it = buffer.content->complete && buffer.content->version == replica.version;
  if (replica.phase != ReplicaPhase::kHolding || has_it || turn.state.adopting) return;
  InvalidateReplica(turn, replica);
}

// Settles the root with what the worker knows: first the receipt, then the root that it has
// received or summed. Returns false when that differs, and the buffer is refused.
bool SettleRootOf(Turn& turn, Buffer& buffer, const HeldVersion& held) {
  const bool was_known = buffer.shard->root.has_value();
  const bool genuine =
      held.receipt.has_value() && IsGenuineFor(turn.state, *buffer.shard, *held.receipt);
  if (genuine) TakeReceipt(turn, *buffer.shard, *held.receipt);
  if (buffer.content->refused) return false;
  if (held.root.has_value() && !TakeRootReport(turn, buffer, *held.root)) return false;
  const bool lacks_receipt = was_known && !genuine && buffer.content->complete;
  if (lacks_receipt) SendRoot(turn, buffer);
  return true;
}

// A rank that was replaced while its group was away holds nothing, and none of its group has heard.
void EndPartialPublication(Turn& turn, Buffer& buffer) {
  Replica& replica = *buffer.replica;
  if (!HoldsPublication(buffer) || !replica.group->adopted || HeadOf(replica) != nullptr) return;
  for (const auto& [rank, member] : replica.group->members) {
    if (member->came_with.has_value()) continue;
    const auto part = replica.buffers.find(rank);
    const bool has_part = part != replica.buffers.end() && part->second->content.has_value() &&
                          part->second->content->version == buffer.content->version;
    if (!has_part) {
      if (replica.phase != ReplicaPhase::kIdle) InvalidateReplica(turn, replica);
      return LosePublication(turn, replica, member->name, kReplaced);
    }
  }
}

void TakeContent(Turn& turn, Buffer& buffer, const HeldVersion& held) {
  Version& version = EnsureVersion(turn, *buffer.replica->group->model, held.version);
  if (IsLostPublication(buffer, held)) {
    return RefuseHolding(turn, buffer, held, LostWhileAway());
  }
  const Content* known = RecordOf(buffer, held);
  if (known != nullptr && known->refused) {
    return RefuseHolding(turn, buffer, held,
                         Impossible("it differs from what the version is known to hold"));
  }
  Content content = known != nullptr ? *known : Content{};
  const Shard* shard = FindShard(version, ShardKeyOf(buffer));
  const bool checksums_known_elsewhere =
      held.receipt.has_value() || (shard != nullptr && shard->root.has_value());
  // The root of displaced content may have become known meanwhile.
  const bool may_differ =
      known == nullptr || (known == buffer.displaced.get() && !known->checksums);
  if (may_differ && held.publisher && !held.root.has_value() && checksums_known_elsewhere) {
    content.agreed = content.replica_agreed = false;  // it may yet turn out to differ
  }
  content.complete = held.complete;
  content.publisher = held.publisher;
  content.committed =
      known != nullptr ? content.committed : (held.group_committed || held.publisher);
  content.segments = held.complete ? SegmentSet() : held.segments;
  // The rank has written over what an update has displaced.
  if (!held.complete && buffer.fill == nullptr) ForgetDisplaced(buffer);
  if (held.complete) ClearFill(turn, buffer);  // it was completed while the stream was broken
  SetContent(turn, buffer, version, std::move(content));
  EndFalseHolding(turn, buffer);
  AdoptEdges(turn, buffer, held.complete ? std::vector<BufferAddress>() : held.sources);
  if (!SettleRootOf(turn, buffer, held)) return;
  SealIfNoChecksums(turn, buffer);
  SettlePhase(turn, buffer);
  EndPartialPublication(turn, buffer);
}

// Ends a streaming receive, whose ranks keep nothing.
void EndReceive(Turn& turn, Replica& replica) {
  for (auto& [rank, buffer] : replica.buffers) ClearContent(turn, *buffer);
  SetPhase(turn, replica, ReplicaPhase::kIdle);
}

// A rank that has drained without a copy has reported that to an earlier server. The ranks that
// were told to copy first must not wait for it.
void EndWaitForCopy(Turn& turn, Replica& replica, const FinishedOperation& result) {
  const auto known = replica.results.find(result.number);
  const bool waits = known != replica.results.end() && known->second.finished.must_offload;
  if (!waits || result.must_offload || !result.status.ok()) return;
  EndMustOffload(turn, replica, result.number);
}

void TakeResult(Turn& turn, Buffer& buffer, const FinishedOperation& result) {
  Replica& replica = *buffer.replica;
  if (!AdoptResult(turn, replica, result)) return EndWaitForCopy(turn, replica, result);
  const bool holds = result.status.ok() && result.kind != OperationKind::kUnpublish &&
                     result.outcome != UpdateOutcome::kNotAvailable;
  if (!holds) return;
  if (replica.role == BufferRole::kStreaming) return EndReceive(turn, replica);
  for (auto& [rank, other] : replica.buffers) {
    if (!other->content.has_value() || other->content->version != result.version.sequence) continue;
    if (other->content->complete) CommitContent(*other);
  }
  const bool here =
      buffer.content.has_value() && buffer.content->version == result.version.sequence;
  if (here && (turn.state.adopting || AllRanksHold(replica, result.version.sequence))) {
    SetPhase(turn, replica, ReplicaPhase::kHolding, result.version.sequence);
  }
}

std::vector<Rank> RanksNotBack(const Group& group) {
  std::vector<Rank> missing;
  for (uint32_t rank = 0; group.adopted && rank < group.ranks; ++rank) {
    if (!group.members.contains(Rank(rank))) missing.emplace_back(rank);
  }
  return missing;
}

// Call while ranks may still come back: what is lost then is noted once, when they may no more
// (ReportLostSinceRestart).
void EndPublicationsOfPartlyBack(Turn& turn, Group& group) {
  const std::vector<Rank> missing = RanksNotBack(group);
  if (missing.empty()) return;
  for (auto& [buffer_name, replica] : group.replicas) {
    if (replica.phase != ReplicaPhase::kHolding) continue;
    InvalidateReplica(turn, replica);
    LosePublication(turn, replica, {group.name, missing.front()}, kNotBackSinceRestart);
  }
}

void EndGroupAdoption(Turn& turn, Group& group) {
  const std::vector<Rank> missing = RanksNotBack(group);
  if (missing.empty()) return;
  FailAllOperations(turn, group,
                    absl::UnavailableError(absl::StrCat("rank ", NameRanks(group, missing), " ",
                                                        kNotBackSinceRestart)));
}

// True when the operation that the fill was announced with has been sent again. After a change of
// the group's generation its ranks send other operations instead.
bool FillGoesOn(Replica& replica) {
  const Transaction* head = HeadOf(replica);
  const UpdateOperation* update = head == nullptr ? nullptr : head->if_update();
  if (update == nullptr || update->phase == UpdatePhase::kAsked) return false;
  return update->phase == UpdatePhase::kFilling || update->answer.sequence == replica.version;
}

// Invalidates a replica that not all ranks hold, or whose fill does not go on.
void EndReplicaAdoption(Turn& turn, Replica& replica) {
  const bool holding = replica.phase == ReplicaPhase::kHolding;
  const bool abandoned_fill = replica.phase == ReplicaPhase::kFilling && !FillGoesOn(replica);
  if ((holding && !AllRanksHold(replica, replica.version)) || abandoned_fill) {
    InvalidateReplica(turn, replica);
  }
}

void DropMissingSources(Turn& turn, Shard& shard) {
  std::vector<BufferAddress> missing;
  for (const auto& [source, readers] : shard.readers_of) {
    if (!shard.holders.contains(source)) missing.push_back(source);
  }
  std::sort(missing.begin(), missing.end());
  for (const BufferAddress& source : missing) DropSource(turn, shard, source, /*was_whole=*/true);
}

// Readers that waited for a source to come back are assigned now. The others keep their sources
// unless a nearer one has come back since those were adopted.
void ReassignFills(Turn& turn, Shard& shard) {
  for (const auto& [address, holder] : shard.holders) {
    if (holder->fill == nullptr) continue;
    const bool waits = holder->sources.empty() || IsUnsealable(shard);
    (waits ? turn.to_assign : turn.to_move).insert(address);
  }
}

// True when the content is a publication whose result the rank, which has heard the results up to
// `heard`, has not heard yet. Such a rank cannot name what it holds, so it announces nothing.
bool IsUnawareOfPublication(const Buffer& buffer, OperationNumber heard) {
  if (!buffer.content.has_value()) return false;
  const auto& results = buffer.replica->results;
  return std::any_of(results.upper_bound(heard), results.end(), [&](const auto& entry) {
    return TH_MUTATE(kExcuseEverySilence, MadePublisher(entry.second.finished, *buffer.content),
                     buffer.content->publisher);
  });
}

// True when the buffer is empty because its last operation was an unpublish.
bool WasUnpublished(const AnnouncedBuffer& announced) {
  return !announced.held.has_value() && announced.last_finished.has_value() &&
         announced.last_finished->kind == OperationKind::kUnpublish;
}

Numbering NumberingOf(const RegistryState& state, const Group& group, const JoinRequest& request) {
  if (!request.resume.has_value() || request.resume->group_generation != group.generation) {
    return Numbering::kOther;
  }
  return request.resume->epoch < state.epoch ? Numbering::kOfEarlierEpoch : Numbering::kOfThisEpoch;
}

bool IsAnnounced(const JoinRequest& request, const Buffer& buffer) {
  return std::any_of(request.buffers.begin(), request.buffers.end(),
                     [&](const auto& other) { return other.buffer == buffer.address.buffer; });
}

// True when the request announces another buffer under this buffer's name.
bool IsNameTaken(const JoinRequest& request, const Buffer& buffer) {
  return std::any_of(request.buffers.begin(), request.buffers.end(),
                     [&](const auto& other) { return other.buffer_name == buffer.name; });
}

std::vector<BufferAddress> BuffersThat(const Worker& worker,
                                       absl::FunctionRef<bool(const Buffer&)> are) {
  std::vector<BufferAddress> found;
  for (const auto& [id, buffer] : worker.buffers) {
    if (are(buffer)) found.push_back(buffer.address);
  }
  return found;
}

void RemoveBuffers(Turn& turn, const std::vector<BufferAddress>& buffers) {
  for (const BufferAddress& address : buffers) RemoveBuffer{address}.Apply(turn);
}

void OpenWindows(RegistryState& state, absl::Time now) {
  state.recovering = state.adopting = true;
  state.deadlines.insert(
      {.at = now + state.limits.recovery_window, .kind = DeadlineKind::kRecoveryWindow});
  const absl::Duration adoption = std::max(state.limits.recovery_window, state.limits.lease);
  state.deadlines.insert({.at = now + adoption, .kind = DeadlineKind::kAdoption});
}

// True when the version can have been published while the claimed membership lasted.
bool CanBeFromMembership(const RegistryState& state, const ResumeClaim& claim,
                         const VersionInfo& info) {
  return !info.label.empty() && info.sequence.epoch() <= claim.epoch &&
         info.sequence.epoch() < state.epoch && info.lineage <= kLastLineage;
}

// A reader hears of the roll-back that its version's lineage began with when its update ends.
Lineage NewestLineage(const RegistryState& state, const JoinRequest& request) {
  Lineage newest = request.resume->lineage;
  for (const AnnouncedBuffer& announced : request.buffers) {
    if (!announced.held.has_value()) continue;
    const VersionInfo& info = announced.held->version;
    if (CanBeFromMembership(state, *request.resume, info)) newest = std::max(newest, info.lineage);
  }
  return newest;
}

// True when the label belongs to a version of the same epoch, or of a later one. A version beyond
// the high-water mark is not believed then: within an epoch a label is hardly ever given again.
bool RepeatsLabelOfEpoch(const Model& model, const VersionInfo& info) {
  const auto label = model.labels.find(info.label.text());
  return label != model.labels.end() && label->second.epoch() >= info.sequence.epoch();
}

// Where the state was lost, nobody but its workers knows how far the versions had come.
void LearnHighWater(Turn& turn, Model& model, const ResumeClaim& claim, const VersionInfo& info) {
  if (!CanBeFromMembership(turn.state, claim, info) || info.sequence <= model.durable.high_water)
    return;
  if (RepeatsLabelOfEpoch(model, info)) return;
  for (const DurableRollBack& roll_back : model.durable.roll_backs) {
    if (info.lineage < roll_back.lineage && info.sequence > roll_back.to) return;
  }
  model.durable.high_water = info.sequence;
  model.durable.high_water_label = info.label.text();
  Persist(turn, model);
}

// The latest version may have been withdrawn by a roll-back that the state has forgotten: where
// nobody has announced it, whoever publishes its label publishes another version. Who comes back
// with it first gives it the label again.
void TakeLabelFromUnannounced(Model& model) {
  Version* version = FindVersion(model, model.durable.high_water);
  if (version == nullptr || version->announced) return;
  ClearLabel(*version);
  model.durable.high_water_label.clear();
}

// The lineage began with a roll-back that the state has forgotten.
void LearnLineage(Turn& turn, Model& model, Lineage lineage) {
  if (TH_MUTATE(kForgetLineage, lineage <= model.durable.lineage, true)) return;
  for (auto& [name, group] : model.groups) {
    for (auto& [rank, member] : group.members) {
      const bool up_to_date =
          IsUpToDate(turn.state, member->came_with, member->lineage, model.durable);
      if (up_to_date) member->lineage = std::max(member->lineage, lineage);
    }
  }
  model.durable.lineage = lineage;
  TakeLabelFromUnannounced(model);
  Persist(turn, model);
}

}  // namespace

void LearnFrom(Turn& turn, const Worker& worker, const JoinRequest& request) {
  RegistryState& state = turn.state;
  const ResumeClaim& claim = *request.resume;
  Model& model = *worker.group->model;
  LearnLineage(turn, model, NewestLineage(state, request));
  for (const AnnouncedBuffer& announced : request.buffers) {
    if (announced.held.has_value()) LearnHighWater(turn, model, claim, announced.held->version);
  }
  const bool first = !IsKnown(state, claim) && state.foreign_epochs.size() < kMaxForeignEpochs &&
                     state.foreign_epochs.insert(claim.epoch_id).second;
  if (!first || state.adopting) return;
  Log(turn, absl::StrCat("worker ", worker.id.value, " comes from a server whose state this one ",
                         "has not: the recovery window begins again"));
  OpenWindows(state, turn.now);
}

void BeginEpoch(RegistryState& state, const RegistryStart& start) {
  state.epoch = start.epoch;
  state.identity = start.identity;
  state.began = start.now;
  state.last_ended_generation = GroupGeneration(uint64_t{start.epoch.value} << 32);
  state.durable = start.durable;
  for (size_t i = 0; i < state.secret.bytes.size(); ++i) {
    state.secret.bytes[i] = static_cast<uint8_t>(start.key_seed[i / 8] >> (8 * (i % 8)));
  }
  for (const auto& [key, durable] : start.durable.models) {
    Model& model = EnsureModel(state, key);
    model.durable = durable;
    AddHighWaterVersion(model);
    ExpectExpiry(state, model);
    NoteUse(state, model, start.now);
  }
  if (start.recovering) OpenWindows(state, start.now);
}

void Announce(Turn& turn, Worker& worker, const AnnouncedBuffer& announced, Numbering numbering) {
  const AnnounceBuffer update{worker.id, announced};
  if (absl::Status status = update.CanApply(turn.state); !status.ok()) {
    ++turn.state.counters.messages_refused;
    FailReceiveOfGroup(turn, worker, announced, status);
    return Send(turn, worker, BufferRegistered{.buffer = announced.buffer, .status = status});
  }
  BumpGroupGenerationIfAgain(turn, worker, announced);
  update.Apply(turn);
  Buffer& buffer = worker.buffers.at(announced.buffer);
  const OperationNumber heard =
      announced.last_finished.has_value() ? announced.last_finished->number : OperationNumber();
  const bool counts_as_here = numbering != Numbering::kOther;
  const bool unaware = counts_as_here && IsUnawareOfPublication(buffer, heard);
  if (announced.held.has_value() || !unaware) ReconcileContent(turn, buffer, announced.held);
  if (counts_as_here && WasUnpublished(announced)) {
    buffer.last_drained_alone = std::max(buffer.last_drained_alone, heard);
  }
  if (numbering == Numbering::kOfEarlierEpoch && announced.last_finished.has_value()) {
    TakeResult(turn, buffer, *announced.last_finished);
  }
  RepeatRelease(turn, buffer);
}

void AnnounceAll(Turn& turn, Worker& worker, const JoinRequest& request) {
  RemoveBuffers(turn, BuffersThat(worker, [&](const Buffer& buffer) {
                  return !IsAnnounced(request, buffer) && IsNameTaken(request, buffer);
                }));
  for (const AnnouncedBuffer& announced : request.buffers) {
    const bool fits = AnnounceBuffer{worker.id, announced}.CanApply(turn.state).ok();
    if (fits) BumpGroupGenerationIfAgain(turn, worker, announced);
  }
  const Numbering numbering = NumberingOf(turn.state, *worker.group, request);
  for (const AnnouncedBuffer& announced : request.buffers) {
    Announce(turn, worker, announced, numbering);
  }
  RemoveBuffers(turn, BuffersThat(worker, [&](const Buffer& buffer) {
                  return !IsAnnounced(request, buffer);
                }));
}

void ReconcileContent(Turn& turn, Buffer& buffer, const std::optional<HeldVersion>& held) {
  if (!held.has_value()) {
    LoseContent(turn, buffer);
    return EndUpdateThatCountsOn(turn, buffer);
  }
  const Model& model = *buffer.replica->group->model;
  std::string impossible = WhyImpossible(turn.state, model, buffer, *held);
  if (impossible.empty()) impossible = WhyNoRoom(turn.state, model, held->version);
  if (!impossible.empty()) return RefuseHolding(turn, buffer, *held, Impossible(impossible));
  TakeContent(turn, buffer, *held);
  EndUpdateThatCountsOn(turn, buffer);
}

void EndRecoveryWindow(Turn& turn) {
  turn.state.recovering = false;
  EvaluateWaiting(turn);
}

void EndAdoption(Turn& turn) {
  for (auto& [key, model] : turn.state.models) {
    for (auto& [name, group] : model.groups) EndPublicationsOfPartlyBack(turn, group);
  }
  turn.state.adopting = false;
  for (auto& [key, model] : turn.state.models) {
    for (auto& [name, group] : model.groups) {
      EndGroupAdoption(turn, group);
      for (auto& [buffer_name, replica] : group.replicas) EndReplicaAdoption(turn, replica);
    }
    for (auto& [sequence, version] : model.versions) {
      SettleRootsByFirstPublishers(turn, version);
      for (auto& [shard_key, shard] : version.shards) {
        DropMissingSources(turn, shard);
        ReassignFills(turn, shard);
      }
    }
  }
  EvaluateWaiting(turn);
  for (auto& [key, model] : turn.state.models) {
    if (!model.host_copies.empty()) turn.to_review.insert(key);
    ReportLostSinceRestart(turn, model);
  }
}

}  // namespace th::registry
