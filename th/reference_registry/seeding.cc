#include "th/reference_registry/seeding.h"

#include <algorithm>
#include <string>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "th/reference_registry/retention.h"
#include "th/reference_registry/transactions.h"
#include "th/registry_state/holders.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

using ShardKeys = absl::btree_set<ShardKey>;

bool HasAllRanks(const Replica& replica) {
  return replica.group->members.size() == replica.group->ranks &&
         replica.buffers.size() == replica.group->ranks;
}

// The shards that the replica's ranks lack and nobody in the site holds whole.
ShardKeys LackingIn(const std::string& site, const Replica& replica, const Version& version) {
  ShardKeys lacking;
  for (const auto& [rank, buffer] : replica.buffers) {
    const bool has_it = buffer->content.has_value() && buffer->content->complete &&
                        buffer->content->version == version.info.sequence;
    if (has_it) continue;
    const ShardKey key = ShardKeyOf(*buffer);
    const auto shard = version.shards.find(key);
    if (shard != version.shards.end() && !shard->second.sites.contains(site)) lacking.insert(key);
  }
  return lacking;
}

bool ReservationStands(const Turn& turn, const Replica& replica) {
  return replica.reservation.has_value() && turn.now < replica.reservation->until &&
         HasAllRanks(replica) && replica.reservation->generation == replica.group->generation;
}

void EraseShardsOf(const Replica& replica, ShardKeys* keys) {
  for (const auto& [rank, buffer] : replica.buffers) keys->erase(ShardKeyOf(*buffer));
}

// True when others of the site fill all of `lacking`, or a group there (this one too) has reserved
// it for a copy.
bool IsOnItsWay(const Turn& turn, const Replica& replica, const Version& version,
                const std::string& site, ShardKeys lacking) {
  const auto found = version.site_seedings.find({replica.form, site});
  if (found == version.site_seedings.end()) return false;
  const SiteSeeding& seeding = found->second;
  const Replica* reserving = FindReplica(turn.state, seeding.reserved_by);
  if (reserving != nullptr && ReservationStands(turn, *reserving) &&
      reserving->reservation->version == version.info.sequence) {
    EraseShardsOf(*reserving, &lacking);
  }
  size_t looked_at = 0;
  for (const ReplicaId id : seeding.filling) {
    if (lacking.empty() || ++looked_at > kMaxSiteCopiesLookedAt) break;
    if (id != replica.id) EraseShardsOf(*FindReplica(turn.state, id), &lacking);
  }
  return TH_MUTATE(kElectASecondSeeder, lacking.empty(), false);
}

// The version of a replica of site copies; zero while that is not known.
VersionSequence VersionOfSiteCopy(const Replica& copy) {
  if (copy.phase != ReplicaPhase::kIdle) return copy.version;
  if (copy.pending.empty()) return VersionSequence();
  const UpdateOperation* update = copy.pending.begin()->second.if_update();
  if (update == nullptr) return VersionSequence();
  const auto* exact = std::get_if<VersionSequence>(&update->selector);
  return exact == nullptr ? VersionSequence() : *exact;
}

// True when the group is told to make, or is about to lose, a copy of another version: it asks
// again when that is over, rather than be refused for lack of room.
bool WaitsForOwnCopy(const Turn& turn, const Replica& replica) {
  const auto& replicas = replica.group->replicas;
  return std::any_of(replicas.begin(), replicas.end(), [&](const auto& entry) {
    const Replica& other = entry.second;
    // Also of another of its buffers: the room is the ranks', and a copy that was asked for has
    // taken none of it yet.
    if (ReservationStands(turn, other)) return true;
    if (TH_MUTATE(kReserveRoomTwice, AwaitsCopy(turn, other), false)) return true;
    if (other.role != BufferRole::kSiteCopy || other.form != replica.form) return false;
    return other.released || (other.unwanted && !IsLastCopyOfRetained(other));
  });
}

// Why the group does not copy it but fills its own buffers.
absl::Status MayCopy(const Replica& replica, const Version& version) {
  if (!HasAllRanks(replica)) return absl::FailedPreconditionError("some rank is not there");
  if (replica.copies_unused >= kMaxCopiesUnused) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it has made ", replica.copies_unused, " copies and moved to none"));
  }
  // Its content may have to be offloaded before it moves to the copy.
  const Version* held = VersionToOffload(replica);
  const bool retained = held != nullptr && IsRetained(*held, replica.form);
  return HasRoomForCopy(replica, version, /*copies=*/retained ? 2 : 1);
}

void LogSeeding(Turn& turn, const Replica& replica, const Version& version, absl::string_view what,
                absl::string_view why) {
  Log(turn, absl::StrCat(replica.group->model->key.ToString(), " group=", replica.group->name,
                         " buffer=", replica.buffer_name, " ", what, " ", version.info.ToString(),
                         " for its site", why.empty() ? "" : ": ", why));
}

void End(Turn& turn, Replica& replica, const Transaction& transaction, const Version& version,
         bool site_copy) {
  ++turn.state.counters.updates_not_available;
  FinishOperation(turn, replica, transaction.number,
                  {.outcome = UpdateOutcome::kNotAvailable,
                   .not_available = NotAvailableReason::kSeeding,
                   .version = version.info,
                   .site_copy = site_copy});
}

bool HasReaders(const Replica& replica) {
  return std::any_of(replica.buffers.begin(), replica.buffers.end(), [](const auto& entry) {
    const Buffer& buffer = *entry.second;
    return buffer.shard != nullptr && ReaderCount(*buffer.shard, buffer.address) > 0;
  });
}

// True when replicas that are no copies hold all its shards in the site.
bool LastsIn(const std::string& site, const Replica& copy) {
  return std::all_of(copy.buffers.begin(), copy.buffers.end(), [&](const auto& entry) {
    const Shard* shard = entry.second->shard;
    if (shard == nullptr) return false;
    const auto share = shard->sites.find(site);
    return share != shard->sites.end() && share->second.lasting > 0;
  });
}

}  // namespace

bool EndIfSeeding(Turn& turn, Replica& replica, const Transaction& transaction, Version& version) {
  const WhenSeeding when_seeding = transaction.update().when_seeding;
  if (when_seeding == WhenSeeding::kWait || IsHostCopy(replica.role)) return false;
  const std::string site = SiteOf(*replica.group);
  if (site.empty()) return false;
  const ShardKeys lacking = LackingIn(site, replica, version);
  if (lacking.empty()) return false;
  const bool asks_to_copy = when_seeding == WhenSeeding::kCopy;
  if (IsOnItsWay(turn, replica, version, site, lacking) ||
      (asks_to_copy && WaitsForOwnCopy(turn, replica))) {
    End(turn, replica, transaction, version, /*site_copy=*/false);
    return true;
  }
  if (!asks_to_copy) return false;
  if (const absl::Status may = MayCopy(replica, version); !may.ok()) {
    LogSeeding(turn, replica, version, "fills its own buffers with", may.message());
    return false;
  }
  LogSeeding(turn, replica, version, "copies", "");
  ++replica.copies_unused;
  Reserve(turn, replica,
          {.version = version.info.sequence,
           .site = site,
           .generation = replica.group->generation,
           .until = turn.now + kSiteCopyReservationLasts});
  End(turn, replica, transaction, version, /*site_copy=*/true);
  return true;
}

void LoseInterestInOthers(Turn& turn, const Replica& replica, VersionSequence version) {
  if (replica.role != BufferRole::kPrimary || replica.group->model->host_copies.empty()) return;
  for (auto& [name, other] : replica.group->replicas) {
    if (other.role != BufferRole::kSiteCopy || other.unwanted || other.form != replica.form)
      continue;
    const VersionSequence copied = VersionOfSiteCopy(other);
    if (copied == version || copied == VersionSequence()) continue;
    other.unwanted = true;
    turn.to_review.insert(replica.group->model->key);
  }
}

bool SiteCopyIsOfUse(const Replica& replica) {
  if (HasReaders(replica)) return true;
  if (replica.unwanted) return false;
  if (replica.phase != ReplicaPhase::kHolding) return true;
  const Version* version = FindVersion(*replica.group->model, replica.version);
  if (version == nullptr || version->phase != VersionPhase::kPublished) return false;
  const std::string site = SiteOf(*replica.group);
  return !TH_MUTATE(kKeepSiteCopies, LastsIn(site, replica), (static_cast<void>(site), false));
}

}  // namespace th::registry
