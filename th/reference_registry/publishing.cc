#include "th/reference_registry/publishing.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "th/reference_registry/published_again.h"
#include "th/reference_registry/transactions.h"
#include "th/registry_state/holders.h"
#include "th/status/status_macros.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

// The version that has the operation's label; null: none.
Version* LabelledVersion(Model& model, const PublishOperation& publish) {
  const auto label = model.labels.find(publish.label.text());
  return label == model.labels.end() ? nullptr : FindVersion(model, label->second);
}

// Returns the published version that this operation adds a holder or a form to; null when it makes
// a new one.
absl::StatusOr<Version*> ExistingVersion(const RegistryState& state, const Replica& replica,
                                         const PublishOperation& publish) {
  Model& model = *replica.group->model;
  if (publish.derived_from.has_value()) {
    Version* version = FindVersion(model, *publish.derived_from);
    if (version == nullptr || version->phase != VersionPhase::kPublished) {
      return absl::NotFoundError(absl::StrCat("version #", publish.derived_from->ToString(),
                                              ", which this form derives from, is not published"));
    }
    if (!publish.label.empty() && publish.label != version->info.label) {
      return absl::InvalidArgumentError(absl::StrCat("a derived form has its version's label '",
                                                     version->info.label.text(), "', not '",
                                                     publish.label.text(), "'; leave it out"));
    }
    return version;
  }
  Version* version = LabelledVersion(model, publish);
  if (version == nullptr || MayBePublishedAgain(state, *version, replica)) return version;
  TH_RETURN_IF_ERROR(CheckNotDisplaced(*version));
  return nullptr;
}

// True while the workers that hold the version of the operation's label may still come back.
bool MayBeBroughtBack(const RegistryState& state, const Replica& replica,
                      const PublishOperation& publish) {
  if (!state.adopting || publish.derived_from.has_value()) return false;
  const Version* version = LabelledVersion(*replica.group->model, publish);
  return version != nullptr && version->from_earlier_epoch &&
         !MayBePublishedAgain(state, *version, replica);
}

bool HasForm(const Version& version, const std::string& form) {
  auto found = version.shards.lower_bound(ShardKey{form, Digest()});
  return found != version.shards.end() && found->first.form == form;
}

std::string DescribeMissingLayout(const RegistryState& state, const Version& version,
                                  const Buffer& buffer) {
  const std::string who = absl::StrCat("the shard of rank ", NameOf(buffer).ToString(),
                                       " has a layout that the version lacks");
  const ShardLayout* own = FindLayoutOf(state, buffer.layout);
  auto other = version.shards.lower_bound(ShardKey{buffer.form, Digest()});
  if (own == nullptr || other == version.shards.end()) return who;
  const ShardLayout* theirs = FindLayoutOf(state, other->first.layout);
  if (theirs == nullptr) return who;
  return absl::StrCat(who, " (", FirstDifference(*own, *theirs), ")");
}

absl::Status CanAddTo(const RegistryState& state, const Version& version, const Replica& replica,
                      const PublishOperation& publish) {
  if (!publish.attributes.empty() && publish.attributes != version.info.attributes) {
    return LabelInUseError(version, "the attributes differ");
  }
  if (HasForm(version, replica.form)) return absl::OkStatus();
  if (publish.derived_from.has_value() || version.shards.empty()) return absl::OkStatus();
  return LabelInUseError(version,
                         absl::StrCat("nobody has published its form '", replica.form,
                                      "'; a further form names the version it derives from"));
}

absl::Status NoRoomForVersion(const RegistryState& state, const Model& model,
                              uint64_t attribute_bytes) {
  const RegistryLimits& limits = state.limits;
  if (model.versions.size() >= limits.max_versions_per_model) {
    return absl::ResourceExhaustedError(
        absl::StrCat(model.key.ToString(), " has ", model.versions.size(),
                     " versions that are held, pinned or under way, and max_versions_per_model is ",
                     limits.max_versions_per_model, "; unpublish or unpin some"));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("with this version ", model.key.ToString(), " has ", attribute_bytes,
                   " bytes of attributes of versions that are held, pinned or under way, and "
                   "max_attribute_bytes_per_model is ",
                   limits.max_attribute_bytes_per_model, "; unpublish or unpin some, or say less"));
}

// True when the version may not be forgotten.
bool IsNeeded(const Model& model, const Version& version) {
  const auto is_held = [](const auto& entry) { return !entry.second.holders.empty(); };
  const auto is_of_version = [&](const DurablePin& pin) {
    return pin.version == version.info.sequence;
  };
  return version.phase == VersionPhase::kPublishing || version.displaced_buffers > 0 ||
         version.info.sequence == model.durable.high_water ||
         model.under_way.contains(version.info.sequence) ||
         std::any_of(version.shards.begin(), version.shards.end(), is_held) ||
         std::any_of(model.durable.pins.begin(), model.durable.pins.end(), is_of_version);
}

// Erases versions that are not needed, the oldest first, until one more with `attributes` fits.
absl::Status MakeRoom(Turn& turn, Model& model, const Attributes& attributes) {
  const RegistryLimits& limits = turn.state.limits;
  const uint64_t wanted = MemoryOf(attributes);
  const auto fits = [&] {
    return model.versions.size() < limits.max_versions_per_model &&
           model.attribute_bytes + wanted <= limits.max_attribute_bytes_per_model;
  };
  for (auto it = model.versions.begin(); !fits();) {
    if (it == model.versions.end()) {
      return NoRoomForVersion(turn.state, model, model.attribute_bytes + wanted);
    }
    Version& version = (it++)->second;
    if (!IsNeeded(model, version)) EraseVersion(turn, version);
  }
  return absl::OkStatus();
}

absl::StatusOr<Version*> NewVersion(Turn& turn, Model& model, const PublishOperation& publish) {
  TH_RETURN_IF_ERROR(MakeRoom(turn, model, publish.attributes));
  const auto sequence = VersionSequence::Of(turn.state.epoch, model.next_version_number++);
  Version& version = model.versions[sequence];
  version.model = &model;
  version.info = {.sequence = sequence,
                  .label = publish.label,
                  .lineage = model.durable.lineage,
                  .attributes = publish.attributes};
  model.attribute_bytes += MemoryOf(version.info.attributes);
  return &version;
}

absl::Status CanPublish(const Replica& replica) {
  if (replica.phase == ReplicaPhase::kIdle) return absl::OkStatus();
  const Version* held = FindVersion(*replica.group->model, replica.version);
  if (held == nullptr || held->phase == VersionPhase::kWithdrawn) return absl::OkStatus();
  const bool refused =
      std::all_of(replica.buffers.begin(), replica.buffers.end(), [](const auto& entry) {
        return !entry.second->content.has_value() || entry.second->content->refused;
      });
  // After a restart a replica counts as holding as soon as one rank says so; where another one came
  // back without it, it is not whole.
  const bool lacks_a_rank =
      replica.phase == ReplicaPhase::kHolding &&
      std::any_of(replica.buffers.begin(), replica.buffers.end(),
                  [](const auto& entry) { return !entry.second->content.has_value(); });
  if (refused || lacks_a_rank) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("buffer ", replica.buffer_name, " of group ",
                                                    replica.group->name, " holds ",
                                                    held->info.ToString(), "; unpublish it first"));
}

absl::Status Begin(Turn& turn, Replica& replica, Transaction& transaction) {
  TH_RETURN_IF_ERROR(CanPublish(replica));
  Model& model = *replica.group->model;
  TH_ASSIGN_OR_RETURN(Version * version,
                      ExistingVersion(turn.state, replica, transaction.publish()));
  if (version != nullptr) {
    TH_RETURN_IF_ERROR(CanAddTo(turn.state, *version, replica, transaction.publish()));
  } else {
    TH_ASSIGN_OR_RETURN(version, NewVersion(turn, model, transaction.publish()));
  }
  BeginWith(replica, transaction, version->info.sequence);
  for (auto& [rank, buffer] : replica.buffers) ClearContent(turn, *buffer);
  SetPhase(turn, replica, ReplicaPhase::kPublishing, transaction.version);
  return absl::OkStatus();
}

// FAILED_PRECONDITION when the rank joined before the model's last roll-back: its weights derive
// from versions that were withdrawn.
absl::Status CheckLineage(const Model& model, const Buffer& buffer) {
  const Lineage known = buffer.worker->lineage;
  if (TH_MUTATE(kAcceptOldLineage, known >= model.durable.lineage, true)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", NameOf(buffer).ToString(), " knows lineage ", known.value, ", and ",
      model.key.ToString(), " was rolled back since (lineage ", model.durable.lineage.value,
      "); load the weights it was rolled back to and join again"));
}

absl::Status CanTakePart(const RegistryState& state, Version& version, const Buffer& buffer) {
  TH_RETURN_IF_ERROR(CheckLineage(*version.model, buffer));
  const bool further = version.phase == VersionPhase::kPublished && HasForm(version, buffer.form);
  if (!further) return absl::OkStatus();
  TH_RETURN_IF_ERROR(CheckComparable(state, version, buffer));
  if (version.from_earlier_epoch) return absl::OkStatus();
  if (FindShard(version, ShardKeyOf(buffer)) != nullptr) return absl::OkStatus();
  return LabelInUseError(version, DescribeMissingLayout(state, version, buffer));
}

// A further holder must have every shard that the version has in its form.
absl::Status CheckCoversAllShards(const Version& version, const Replica& replica) {
  std::set<Digest> own;
  for (const auto& [rank, buffer] : replica.buffers) own.insert(buffer->layout);
  for (const auto& [key, shard] : version.shards) {
    if (key.form == replica.form && !own.contains(key.layout)) {
      return LabelInUseError(
          version, absl::StrCat("group ", replica.group->name, " lacks its shard with layout ",
                                key.layout.ShortHex()));
    }
  }
  return absl::OkStatus();
}

void MakePublished(Turn& turn, Model& model, Version& version) {
  version.phase = VersionPhase::kPublished;
  ++turn.state.counters.versions_published;
  ++model.totals.publishes;
  if (version.info.sequence > model.durable.high_water) {
    model.durable.high_water = version.info.sequence;
    model.durable.high_water_label = version.info.label.text();
    Persist(turn, model);
  }
  ClaimLabel(turn, version);
}

void CountSeal(Turn& turn, Version& version) {
  if (version.counted_as_sealed || !IsSealed(version)) return;
  version.counted_as_sealed = true;
  ++turn.state.counters.versions_sealed;
}

void ServeWhenAllAgree(Turn& turn, Replica& replica) {
  const bool all =
      std::all_of(replica.buffers.begin(), replica.buffers.end(), [](const auto& entry) {
        return entry.second->content.has_value() && entry.second->content->agreed;
      });
  if (!all) return;
  for (auto& [rank, buffer] : replica.buffers) {
    buffer->content->replica_agreed = true;
    Reindex(turn, *buffer);
  }
}

void Hold(Turn& turn, Replica& replica, Version& version, bool further) {
  SetPhase(turn, replica, ReplicaPhase::kHolding, version.info.sequence);
  for (auto& [rank, buffer] : replica.buffers) {
    SetContent(turn, *buffer, version,
               {.complete = true,
                .publisher = true,
                .committed = true,
                .agreed = !further,
                .replica_agreed = !further});
  }
  for (auto& [rank, buffer] : replica.buffers) SealIfNoChecksums(turn, *buffer);
}

// Sends a further publisher the roots that are known; after a restart it presents them with their
// receipts.
void SendRoots(Turn& turn, const Replica& replica) {
  for (const auto& [rank, buffer] : replica.buffers) {
    if (buffer->content.has_value()) SendRoot(turn, *buffer);
  }
}

// Clears the ranks whose later unpublish has ended already: they did not wait for this publish.
void ReleaseDrained(Turn& turn, Replica& replica, OperationNumber publish) {
  bool any = false;
  for (auto& [rank, buffer] : replica.buffers) {
    if (buffer->last_drained_alone <= publish) continue;
    ClearContent(turn, *buffer);
    any = true;
  }
  if (any) InvalidateReplica(turn, replica);
}

// Decides which version the operation publishes, now that every rank has asked, and binds it to
// that one: normally the version that it began with; where another group has published under the
// label since, that group's; where it began with a published version that has been lost since, a
// new one. A version that this operation alone had begun is erased where it is not used.
absl::StatusOr<Version*> ChooseVersion(Turn& turn, Replica& replica, Transaction& transaction) {
  Model& model = *replica.group->model;
  Version* begun = FindVersion(model, transaction.version);
  TH_ASSIGN_OR_RETURN(Version * version,
                      ExistingVersion(turn.state, replica, transaction.publish()));
  const bool begun_is_new = begun->phase == VersionPhase::kPublishing;
  if (version == begun || (version == nullptr && begun_is_new)) return begun;
  if (version == nullptr) {
    // It is of the present lineage, which may have begun after the operation.
    for (const auto& [rank, buffer] : replica.buffers) {
      TH_RETURN_IF_ERROR(CheckLineage(model, *buffer));
    }
    TH_ASSIGN_OR_RETURN(version, NewVersion(turn, model, transaction.publish()));
  } else {
    TH_RETURN_IF_ERROR(CanAddTo(turn.state, *version, replica, transaction.publish()));
  }
  if (begun_is_new) EraseVersion(turn, *begun);
  BeginWith(replica, transaction, version->info.sequence);
  return version;
}

absl::Status CheckFurtherHolder(const RegistryState& state, Version& version,
                                const Replica& replica) {
  TH_RETURN_IF_ERROR(CheckCoversAllShards(version, replica));
  for (const auto& [rank, buffer] : replica.buffers) {
    TH_RETURN_IF_ERROR(CanTakePart(state, version, *buffer));
  }
  return absl::OkStatus();
}

// Publishes the version, now that every rank has asked.
absl::Status Complete(Turn& turn, Replica& replica, Transaction& transaction) {
  TH_ASSIGN_OR_RETURN(Version * version, ChooseVersion(turn, replica, transaction));
  const bool is_new = version->phase == VersionPhase::kPublishing;
  const bool further = !is_new && HasForm(*version, replica.form);
  if (further) TH_RETURN_IF_ERROR(CheckFurtherHolder(turn.state, *version, replica));
  Model& model = *replica.group->model;
  if (is_new) MakePublished(turn, model, *version);
  Note(turn, model.key, {EventKind::kPublished, transaction.event, replica.group->name},
       version->info.ToString());
  Hold(turn, replica, *version, further);
  replica.publication_lost = VersionSequence();
  replica.group->published_at = turn.now;
  ReleaseDrained(turn, replica, transaction.number);
  FinishOperation(turn, replica, transaction.number, {.version = version->info});
  if (further) SendRoots(turn, replica);
  return absl::OkStatus();
}

// Takes the publish as far as it goes. An error ends it.
absl::Status Advance(Turn& turn, Replica& replica, Transaction& transaction) {
  if (!transaction.has_begun()) {
    for (const auto& [rank, participant] : transaction.participants) {
      TH_RETURN_IF_ERROR(CheckLineage(*replica.group->model, *replica.buffers.at(rank)));
    }
    TH_RETURN_IF_ERROR(Begin(turn, replica, transaction));
  }
  Version* version = FindVersion(*replica.group->model, transaction.version);
  for (const Rank rank : std::exchange(transaction.arrivals, {})) {
    TH_RETURN_IF_ERROR(CanTakePart(turn.state, *version, *replica.buffers.at(rank)));
  }
  if (transaction.participants.size() < replica.group->ranks) return absl::OkStatus();
  // While the operation waits, its version keeps its number, and so comes before versions that are
  // published meanwhile.
  const bool waits = MayBeBroughtBack(turn.state, replica, transaction.publish());
  if (!waits) return Complete(turn, replica, transaction);
  WaitForRecovery(turn, replica);
  return absl::OkStatus();
}

void RefuseBuffer(Turn& turn, Buffer& buffer, const absl::Status& status, const LastHolder& last) {
  const VersionSequence version = buffer.content->version;
  RefuseContent(turn, buffer, last);
  Send(turn, *buffer.worker,
       PublicationRefused{.buffer = buffer.address.buffer, .version = version, .status = status});
}

// A further publisher is refused as a whole; of the first one only the rank that differs. Ranks
// that have moved on to another version keep that.
void RefusePublication(Turn& turn, Buffer& buffer) {
  const VersionSequence version = buffer.content->version;
  const absl::Status status = absl::AlreadyExistsError(
      absl::StrCat("the content of rank ", NameOf(buffer).ToString(), " differs from what ",
                   buffer.shard->version->info.ToString(),
                   " is known to hold; unpublish it, and publish it under another label"));
  Log(turn, std::string(status.message()));
  const bool whole = !buffer.content->replica_agreed;
  const LastHolder last{EventId(), NameOf(buffer).ToString(), "had other content"};
  if (!whole) return RefuseBuffer(turn, buffer, status, last);
  for (auto& [rank, other] : buffer.replica->buffers) {
    const bool holds_it = other->content.has_value() && other->content->version == version;
    if (holds_it && !other->content->refused) RefuseBuffer(turn, *other, status, last);
  }
  if (buffer.replica->version == version) InvalidateReplica(turn, *buffer.replica);
}

bool Fills(const Buffer& buffer) {
  const Transaction* head = HeadOf(*buffer.replica);
  return head != nullptr && head->is_filling() && head->version == buffer.content->version;
}

ReceiptSubject SubjectOf(const Shard& shard) {
  return {.model = shard.version->model->key,
          .version = shard.version->info.sequence,
          .form = shard.key.form,
          .layout = shard.key.layout};
}

// Sends the root to holders that fill the shard, which compare with it, and to those that have all
// of it, which keep the receipt.
void SetRoot(Turn& turn, Shard& shard, const Digest& root) {
  shard.root = root;
  shard.receipt = MakeRootReceipt(turn.state.identity.key, SubjectOf(shard), root);
  for (const auto& [address, holder] : shard.holders) {
    if (Fills(*holder) || holder->content->complete) SendRoot(turn, *holder);
  }
  CountSeal(turn, *shard.version);
}

// True when the buffer's content is what the shard is known to hold; else it is refused.
bool CompareWithRoot(Turn& turn, Buffer& buffer, const Digest& root) {
  if (TH_MUTATE(kAcceptAnyRoot, *buffer.shard->root != root, false)) {
    RefusePublication(turn, buffer);
    return false;
  }
  if (buffer.content->agreed) return true;
  buffer.content->agreed = true;
  ServeWhenAllAgree(turn, *buffer.replica);
  return true;
}

// Gives the shard its root, and compares with it what its publishers have told before.
void SettleRoot(Turn& turn, Shard& shard, const Digest& root) {
  SetRoot(turn, shard, root);
  for (auto& [address, holder] : shard.holders) {
    const Content& content = *holder->content;
    if (!content.checksums.has_value() || content.refused) continue;
    const Digest reported = *content.checksums;
    CompareWithRoot(turn, *holder, reported);
  }
}

WorkerId OldestWorkerOf(const Replica& replica) {
  WorkerId oldest = replica.buffers.begin()->second->worker->id;
  for (const auto& [rank, buffer] : replica.buffers) oldest = std::min(oldest, buffer->worker->id);
  return oldest;
}

// Returns the publisher whose checksums decide the root; null when there is none. The version's
// first publishing replica precedes further ones, then the replica with the oldest worker, so that
// one replica decides about all shards. Of its ranks, one that has reported precedes the others.
const Buffer* FirstPublisher(const Shard& shard) {
  const auto order = [](const Buffer& publisher) {
    return std::tuple(!publisher.content->replica_agreed, OldestWorkerOf(*publisher.replica),
                      !publisher.content->checksums.has_value(), publisher.address);
  };
  const Buffer* first = nullptr;
  for (const auto& [address, holder] : shard.holders) {
    if (!MaySendRoot(*holder->content)) continue;
    if (first == nullptr || order(*holder) < order(*first)) first = holder;
  }
  return first;
}

// The root is what the first publisher has summed; while that is not known, what others have summed
// is kept.
void SettleByFirstPublisher(Turn& turn, Shard& shard) {
  const Buffer* first = FirstPublisher(shard);
  if (first == nullptr || !first->content->checksums.has_value()) return;
  const Digest root = *first->content->checksums;
  SettleRoot(turn, shard, root);
}

// True when what the buffer says of the shard's root may be what its own worker has summed: of what
// it published, or of the copy that it made of that while there was no server.
bool IsOwnWord(const Buffer& buffer) {
  return buffer.content->publisher || buffer.replica->role == BufferRole::kOffload;
}

// True while a worker that an earlier server sent the root to may still come back, and overrule
// this buffer's own checksums.
bool MayBeOverruled(const RegistryState& state, const Buffer& buffer) {
  return TH_MUTATE(kBelieveTheFirstPublisher, state.adopting, false) &&
         !LacksChecksums(state, buffer.layout) && IsOwnWord(buffer) &&
         buffer.shard->version->from_earlier_epoch;
}

}  // namespace

void EvaluatePublish(Turn& turn, Replica& replica, Transaction& transaction) {
  // A label may be in use by a version that is not announced yet.
  if (turn.state.recovering) return WaitForRecovery(turn, replica);
  const absl::Status status = Advance(turn, replica, transaction);
  if (!status.ok()) FailOperation(turn, replica, transaction.number, status);
}

absl::Status SealShard::CanApply(const RegistryState& state) const {
  const Buffer* own = FindBuffer(state, buffer);
  if (own == nullptr || !own->content.has_value() || !own->content->publisher ||
      own->content->version != message.version || own->content->refused) {
    return absl::FailedPreconditionError(
        absl::StrCat("buffer ", buffer.buffer.value, " of worker ", buffer.worker.value,
                     " does not publish version #", message.version.ToString()));
  }
  return absl::OkStatus();
}

void SealShard::Apply(Turn& turn) const {
  Buffer& publisher = *FindBuffer(turn.state, buffer);
  // A root that becomes known now is sent to all that hold the shard.
  const bool was_known = publisher.shard->root.has_value();
  if (TakeRootReport(turn, publisher, message.root) && was_known) SendRoot(turn, publisher);
}

void SendRoot(Turn& turn, const Buffer& buffer) {
  const Shard& shard = *buffer.shard;
  if (!shard.root.has_value()) return;
  Send(turn, *buffer.worker,
       RootKnown{.version = shard.version->info.sequence,
                 .shard = {.layout = shard.key.layout, .root = *shard.root},
                 .receipt = shard.receipt});
}

bool IsGenuineFor(const RegistryState& state, const Shard& shard, const RootReceipt& receipt) {
  if (shard.root.has_value()) return receipt == shard.receipt;
  return TH_MUTATE(kBelieveAnyReceipt, IsGenuine(receipt, state.identity.key, SubjectOf(shard)),
                   true);
}

void TakeReceipt(Turn& turn, Shard& shard, const RootReceipt& receipt) {
  if (!shard.root.has_value()) SettleRoot(turn, shard, receipt.root);
}

bool TakeRootReport(Turn& turn, Buffer& buffer, const Digest& root) {
  Shard& shard = *buffer.shard;
  const bool own = IsOwnWord(buffer);
  if (own) {
    buffer.content->checksums = root;
    Reindex(turn, buffer);
  }
  if (!shard.root.has_value() && !own) SettleRoot(turn, shard, root);
  if (!shard.root.has_value() && !MayBeOverruled(turn.state, buffer)) {
    SettleByFirstPublisher(turn, shard);
  }
  if (buffer.content->refused) return false;
  return !shard.root.has_value() || CompareWithRoot(turn, buffer, root);
}

void SettleRootsByFirstPublishers(Turn& turn, Version& version) {
  if (version.from_earlier_epoch && turn.state.adopting) return;
  for (auto& [key, shard] : version.shards) {
    if (!shard.root.has_value()) SettleByFirstPublisher(turn, shard);
  }
}

void SealIfNoChecksums(Turn& turn, Buffer& buffer) {
  const bool publishes = buffer.content.has_value() && buffer.content->publisher;
  if (publishes && LacksChecksums(turn.state, buffer.layout))
    TakeRootReport(turn, buffer, Digest());
}

bool HoldsPublication(const Buffer& buffer) {
  return buffer.content.has_value() && buffer.content->publisher && !buffer.content->refused;
}

void LosePublication(Turn& turn, Replica& replica, const RankName& gone, absl::string_view why) {
  if (IsHostCopy(replica.role)) return;
  const LastHolder last{EventId(), gone.ToString(), std::string(why), turn.worker_leaves};
  std::string lost;
  for (auto& [rank, buffer] : replica.buffers) {
    if (!HoldsPublication(*buffer)) continue;
    const Version& version = *buffer->shard->version;
    if (version.phase != VersionPhase::kPublished) continue;  // its ranks heard of the roll-back
    lost = version.info.ToString();
    replica.publication_lost = version.info.sequence;
    RefuseBuffer(
        turn, *buffer,
        absl::UnavailableError(absl::StrCat("rank ", gone.ToString(), " ", why, "; its part of ",
                                            lost, " is lost; publish it again on all ranks")),
        last);
  }
  if (lost.empty() || turn.worker_leaves) return;
  Note(turn, replica.group->model->key,
       {EventKind::kPublicationLost, EventId(), replica.group->name},
       absl::StrCat(lost, ": rank ", gone.ToString(), " ", why, "; the others publish it again"));
}

void RepeatLoss(Turn& turn, const Buffer& buffer, const FinishedOperation& result) {
  const VersionSequence lost = buffer.replica->publication_lost;
  const bool published = result.kind == OperationKind::kPublish && result.status.ok();
  if (!published || lost == VersionSequence() || result.version.sequence != lost) return;
  Send(turn, *buffer.worker,
       PublicationRefused{
           .buffer = buffer.address.buffer, .version = lost, .status = LostWhileAway()});
}

absl::Status LostWhileAway() {
  return absl::UnavailableError(
      "another rank of the group has lost its part of it meanwhile; publish it again on all ranks");
}

}  // namespace th::registry
