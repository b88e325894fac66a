#include "th/reference_registry/retention.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "th/protocol/copy_name.h"
#include "th/protocol/messages.h"
#include "th/reference_registry/resolution.h"
#include "th/reference_registry/transactions.h"
#include "th/registry_state/holders.h"
#include "th/text/byte_size.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

bool IsPinned(const DurableModel& durable, VersionSequence version, const std::string& form) {
  return std::any_of(durable.pins.begin(), durable.pins.end(), [&](const DurablePin& pin) {
    return pin.version == version && (pin.form.empty() || pin.form == form);
  });
}

uint32_t KeepLatestOf(const DurableModel& durable, const std::string& form) {
  auto found = durable.keep_latest_of_form.find(form);
  return found == durable.keep_latest_of_form.end() ? durable.keep_latest : found->second;
}

// True when every distinct shard of the form has a holder that stays.
bool StaysComplete(const Version& version, const std::string& form) {
  return version.phase == VersionPhase::kPublished &&
         EveryShardOf(version, form, [](const Shard& shard) { return shard.complete_staying > 0; });
}

// Also of a version that nobody has announced since a restart.
bool IsRetained(const Model& model, VersionSequence version, const std::string& form) {
  if (IsPinned(model.durable, version, form)) return true;
  const uint32_t keep = KeepLatestOf(model.durable, form);
  uint32_t newer = 0;
  for (auto it = model.versions.rbegin(); newer < keep; ++it) {
    if (it == model.versions.rend() || it->first <= version) return true;
    if (StaysComplete(it->second, form)) ++newer;
  }
  return false;
}

// How many published versions of the model are newer.
uint32_t NewerPublished(const Version& version) {
  const auto& versions = version.model->versions;
  return static_cast<uint32_t>(
      std::count_if(versions.upper_bound(version.info.sequence), versions.end(),
                    [](const auto& one) { return one.second.phase == VersionPhase::kPublished; }));
}

// The extent of a loss: the replica alone, or its whole group.
enum class Going : uint8_t { kReplica, kGroup };

// How many of its holders that stay each shard of `replica` loses with what goes.
absl::flat_hash_map<const Shard*, uint32_t> StayingHoldersLost(const Replica& replica,
                                                               Going going) {
  absl::flat_hash_map<const Shard*, uint32_t> lost;
  for (const auto& [rank, buffer] : replica.buffers) {
    if (buffer->shard != nullptr) lost[buffer->shard] += buffer->counted_staying ? 1 : 0;
  }
  if (going == Going::kReplica) return lost;
  for (const auto& [name, other] : replica.group->replicas) {
    if (&other == &replica) continue;
    for (const auto& [rank, buffer] : other.buffers) {
      auto found = lost.find(buffer->shard);
      if (found != lost.end() && buffer->counted_staying) ++found->second;
    }
  }
  return lost;
}

// True when some shard of `replica` then has no holder left that stays.
bool IsLastOfSomeShard(const Replica& replica, Going going) {
  const auto lost = StayingHoldersLost(replica, going);
  return std::any_of(lost.begin(), lost.end(), [](const auto& entry) {
    return entry.first->complete_staying == entry.second;
  });
}

// True when `held`, which `replica` holds (null: nothing that counts), is retained, and would lack
// some shard without what goes.
bool IsLastOfRetained(const Replica& replica, const Version* held, Going going) {
  return held != nullptr && IsLastOfSomeShard(replica, going) && IsRetained(*held, replica.form);
}

// True when an operation that takes away what `replica` holds takes the last of something retained.
// Never from spot workers, who keep nothing for others; also where a rank has a notice.
bool TakesLastOfRetained(const Replica& replica) {
  return IsLastOfRetained(replica, VersionToOffload(replica), Going::kReplica);
}

// True when a rank of it leaves soon.
bool HasNotice(const Replica& replica) {
  return std::any_of(replica.buffers.begin(), replica.buffers.end(),
                     [](const auto& entry) { return entry.second->worker->leaving(); });
}

// True for a copy that was released, as it is about to be freed, and for a site copy, which can be
// made again, unless it is all that there is of a retained version.
bool MayMakeRoom(const Replica& copy) {
  return copy.released || (copy.role == BufferRole::kSiteCopy && !IsLastCopyOfRetained(copy));
}

// "": its last result asks for none.
std::string NameOfCopyAskedFor(const Replica& replica) {
  if (replica.results.empty()) return "";
  const FinishedOperation& last = replica.results.rbegin()->second.finished;
  if (!last.must_offload || !last.status.ok()) return "";
  return CopyName(replica.buffer_name, CopyFor::kRetention, last.version.sequence,
                  replica.group->generation, last.number);
}

// Which copies count as taking room: all, or only those that stay when room has to be made.
enum class Counted : uint8_t { kAllCopies, kCopiesThatStay };

// `begun` names a copy that is not counted; "": none.
uint64_t OffloadedBytes(const Worker& worker, Counted counted, const std::string& begun) {
  uint64_t bytes = 0;
  for (const auto& [id, buffer] : worker.buffers) {
    if (!IsHostCopy(buffer.replica->role) || buffer.name == begun) continue;
    if (counted == Counted::kCopiesThatStay && MayMakeRoom(*buffer.replica)) continue;
    bytes += buffer.bytes;
  }
  return bytes;
}

absl::Status HasRoom(const Replica& replica, const Version& version, uint64_t copies,
                     Counted counted, const std::string& begun) {
  for (const auto& [rank, buffer] : replica.buffers) {
    const Worker& worker = *buffer->worker;
    const uint64_t used = OffloadedBytes(worker, counted, begun);
    const uint64_t room = worker.offload_limit_bytes - std::min(used, worker.offload_limit_bytes);
    if (room / copies >= buffer->bytes) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", NameOf(*buffer).ToString(), " has no room to offload ",
        copies == 1 ? "its " : absl::StrCat(copies, " times its "), ByteSizeText(buffer->bytes),
        " of ", version.info.ToString(), ": its offload limit is ",
        ByteSizeText(worker.offload_limit_bytes), ", of which ", ByteSizeText(used), " are taken"));
  }
  return absl::OkStatus();
}

// Lets the group's copies go that may.
void DropSiteCopies(Turn& turn, Group& group) {
  for (auto& [name, copy] : group.replicas) {
    if (copy.released || copy.unwanted || !MayMakeRoom(copy)) continue;
    copy.unwanted = true;
    turn.to_review.insert(group.model->key);
  }
}

// OK when there is room once site copies are out of the way, which takes a while.
absl::Status WillHaveRoom(const Replica& replica, const Version& version,
                          const std::string& begun) {
  const absl::Status room =
      HasRoom(replica, version, /*copies=*/1, Counted::kCopiesThatStay, begun);
  if (room.ok()) return room;
  return absl::FailedPreconditionError(
      absl::StrCat("group ", replica.group->name, " holds the last replica of ",
                   version.info.ToString(), ", which is retained, and ", room.message(),
                   "; raise the limit, end the retention, or drop the version"));
}

void EndForWantOfRoom(Turn& turn, Replica& replica, const Transaction& transaction,
                      const Version& version, absl::Status room) {
  Model& model = *replica.group->model;
  ++model.totals.offloads_failed;
  Note(turn, model.key, {EventKind::kOffloadFailed, transaction.event, replica.group->name},
       std::string(room.message()));
  FinishOperation(turn, replica, transaction.number,
                  {.status = std::move(room), .version = version.info, .must_offload = true});
}

void EndWithMustOffload(Turn& turn, Replica& replica, const Transaction& transaction,
                        const Version& version) {
  Model& model = *replica.group->model;
  Note(turn, model.key, {EventKind::kOffloadBegun, transaction.event, replica.group->name},
       absl::StrCat(version.info.ToString(), " before its ",
                    std::string(OperationKindName(transaction.kind()))));
  ++turn.state.counters.offloads;
  ++model.totals.offloads;
  FinishOperation(turn, replica, transaction.number,
                  {.version = version.info, .must_offload = true});
}

void NoteLost(Turn& turn, EventKind kind, const Model& model, const VersionInfo& version,
              const std::string& form, const LastHolder& last) {
  const bool retained = kind == EventKind::kRetainedVersionLost;
  if (retained) ++turn.state.counters.retained_lost;
  const std::string why =
      retained ? absl::StrCat(" is lost: it is retained, and its last replica ", last.how)
               : absl::StrCat(
                     " is the latest version, and nobody holds all of it any more: its last "
                     "replica ",
                     last.how, "; newcomers wait for the next publish or a roll-back");
  Note(turn, model.key, {kind, last.operation, last.who},
       absl::StrCat(version.ToString(), FormSuffix(form), why));
}

std::set<std::string> FormsOf(const Version& version) {
  std::set<std::string> forms;
  for (const auto& [key, shard] : version.shards) forms.insert(key.form);
  return forms;
}

bool IsWholeSomewhere(const Version& version, const std::string& form) {
  return IsSomewhere(version, form) && !LacksUnknownShards(version, form);
}

struct Missing {
  VersionInfo version;
  std::string form;  // empty: any
  LastHolder last{EventId(), "", kNotBackSinceRestart};
};
using MissingVersions = std::map<VersionSequence, Missing>;

// Adds the versions that groups say they unpublished, with or without a server, in the group's
// form.
void AddUnpublished(const Group& group, MissingVersions& missing) {
  for (const auto& [buffer_name, replica] : group.replicas) {
    for (const auto& [number, kept] : replica.results) {
      const FinishedOperation& result = kept.finished;
      const VersionInfo& version = result.version;
      const bool took_away = result.kind == OperationKind::kUnpublish && result.status.ok();
      if (!took_away || version.sequence == VersionSequence()) continue;
      if (WasWithdrawn(*group.model, version.sequence, version.lineage)) continue;
      missing[version.sequence] = {
          version, replica.form, {EventId(), group.name, kUnpublishedWhileAway}};
    }
  }
}

// The versions that may be retained and that nobody has held since the restart: those that were
// announced by ranks with a part of them, and those that are known by their number alone.
std::vector<Missing> MissingSinceRestart(const Model& model) {
  MissingVersions by_number;
  for (const DurablePin& pin : model.durable.pins) {
    by_number[pin.version] = {{.sequence = pin.version}, pin.form};
  }
  for (const auto& [name, group] : model.groups) AddUnpublished(group, by_number);
  std::vector<Missing> missing;
  for (const auto& [sequence, version] : model.versions) {
    Missing known = by_number[sequence];
    known.version = version.info;
    by_number.erase(sequence);
    if (version.phase != VersionPhase::kPublished) continue;
    if (version.shards.empty()) missing.push_back(known);
    for (const std::string& form : FormsOf(version)) {
      if (IsWholeSomewhere(version, form)) continue;
      missing.push_back({version.info, form, known.last});
    }
  }
  for (auto& [sequence, known] : by_number) missing.push_back(std::move(known));
  return missing;
}

}  // namespace

bool IsRetained(const Version& version, const std::string& form) {
  return version.phase == VersionPhase::kPublished &&
         IsRetained(*version.model, version.info.sequence, form);
}

std::vector<std::string> FormsWithoutHolder(const RegistryState& state, const Version& version) {
  if (state.adopting || version.phase != VersionPhase::kPublished) return {};
  std::set<std::string> forms = FormsOf(version);
  if (forms.empty()) return {""};
  std::vector<std::string> missing;
  for (const std::string& form : forms) {
    if (!IsWholeSomewhere(version, form)) missing.push_back(form);
  }
  return missing;
}

std::vector<std::string> LostForms(const RegistryState& state, const Version& version) {
  const DurableModel& durable = version.model->durable;
  if (!MayRetain(durable)) return {};
  std::vector<std::string> lost = FormsWithoutHolder(state, version);
  if (lost.empty()) return lost;
  const uint32_t newer = NewerPublished(version);
  std::erase_if(lost, [&](const std::string& form) {
    return !IsPinned(durable, version.info.sequence, form) && newer >= KeepLatestOf(durable, form);
  });
  return lost;
}

absl::Status HasRoomForCopy(const Replica& replica, const Version& version, uint64_t copies) {
  return HasRoom(replica, version, copies, Counted::kAllCopies, /*begun=*/"");
}

const Version* VersionHeldWhole(const Replica& replica) {
  if (replica.phase != ReplicaPhase::kHolding || replica.role == BufferRole::kStaged)
    return nullptr;
  if (replica.buffers.size() != replica.group->ranks) return nullptr;
  const bool differs =
      std::any_of(replica.buffers.begin(), replica.buffers.end(), [](const auto& entry) {
        return entry.second->content.has_value() && entry.second->content->refused;
      });
  if (differs) return nullptr;
  return FindVersion(*replica.group->model, replica.version);
}

const Version* VersionToOffload(const Replica& replica) {
  const bool spot = std::any_of(replica.buffers.begin(), replica.buffers.end(),
                                [](const auto& entry) { return entry.second->worker->spot; });
  return spot ? nullptr : VersionHeldWhole(replica);
}

bool IsLastCopyOfRetained(const Replica& replica) {
  return IsLastOfRetained(replica, VersionHeldWhole(replica), Going::kGroup);
}

bool AwaitsCopy(const Turn& turn, const Replica& replica) {
  if (!replica.pending.empty()) return false;
  const std::string name = NameOfCopyAskedFor(replica);
  if (name.empty()) return false;
  const auto copy = replica.group->replicas.find(name);
  if (copy == replica.group->replicas.end()) return turn.now < replica.copy_awaited_until;
  return copy->second.results.empty() && copy->second.buffers.size() < replica.group->ranks;
}

void StopAwaiting(const Replica& copy) {
  for (auto& [name, replica] : copy.group->replicas) {
    if (NameOfCopyAskedFor(replica) == copy.buffer_name) {
      replica.copy_awaited_until = absl::InfinitePast();
    }
  }
}

bool DeferToOffload(Turn& turn, Replica& replica, Transaction& transaction) {
  if (!MayDemandOffload(transaction)) return false;
  if (TH_MUTATE(kDropTheLastRetained, !TakesLastOfRetained(replica), true)) return false;
  const Version& version = *FindVersion(*replica.group->model, replica.version);
  // While there was no server its ranks may have begun this very copy.
  const std::string begun =
      CopyName(replica.buffer_name, CopyFor::kRetention, version.info.sequence,
               replica.group->generation, transaction.number);
  if (absl::Status room = WillHaveRoom(replica, version, begun); !room.ok()) {
    EndForWantOfRoom(turn, replica, transaction, version, std::move(room));
  } else if (!MissingRanks(*replica.group, transaction).empty()) {
    // All ranks make the copy. Where one is an operation behind, this one runs out of time.
    return true;
  } else if (HasRoom(replica, version, /*copies=*/1, Counted::kAllCopies, begun).ok()) {
    EndWithMustOffload(turn, replica, transaction, version);
  } else {
    DropSiteCopies(turn, *replica.group);
    replica.group->model->waiting_for_room.insert(replica.id);
  }
  return true;
}

void ReportLosses(Turn& turn) {
  for (const auto& [left, last] : std::exchange(turn.forms_left, {})) {
    Model* model = FindModel(turn.state, left.model);
    const Version* version = model == nullptr ? nullptr : FindVersion(*model, left.version);
    if (version == nullptr || IsSomewhere(*version, left.form)) continue;
    if (IsRetained(*version, left.form)) {
      NoteLost(turn, EventKind::kRetainedVersionLost, *model, version->info, left.form, last);
    } else if (!last.meant && left.version == LatestOf(*model)) {
      NoteLost(turn, EventKind::kLatestVersionLost, *model, version->info, left.form, last);
    }
  }
}

void ReportLatestWithoutHolder(Turn& turn, const Model& model, const std::string& how) {
  const Version* latest = FindVersion(model, LatestOf(model));
  if (latest == nullptr || model.groups.empty()) return;
  for (const std::string& form : FormsWithoutHolder(turn.state, *latest)) {
    if (IsRetained(*latest, form)) continue;  // its loss is an event of its own
    NoteLost(turn, EventKind::kLatestVersionLost, model, latest->info, form, {EventId(), "", how});
  }
}

void ReportLostSinceRestart(Turn& turn, Model& model) {
  ReportLatestWithoutHolder(turn, model, kNotBackSinceRestart);
  if (!MayRetain(model.durable)) return;
  for (const Missing& lost : MissingSinceRestart(model)) {
    const bool retained = IsRetained(model, lost.version.sequence, lost.form);
    if (!retained) continue;
    NoteLost(turn, EventKind::kRetainedVersionLost, model, lost.version, lost.form, lost.last);
  }
}

void WarnOfLastReplicas(Turn& turn, const Worker& worker, absl::Duration notice) {
  for (const auto& [id, buffer] : worker.buffers) {
    const Replica& replica = *buffer.replica;
    const Version* version = VersionToOffload(replica);
    if (HasNotice(replica) || !IsLastOfRetained(replica, version, Going::kGroup)) continue;
    Note(turn, replica.group->model->key,
         {EventKind::kRetainedVersionAtRisk, EventId(), replica.group->name},
         absl::StrCat("holds the last replica of ", version->info.ToString(),
                      ", which is retained, and leaves in ", absl::FormatDuration(notice),
                      ": who asks for it by then saves it"));
  }
}

}  // namespace th::registry
