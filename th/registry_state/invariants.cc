#include "th/registry_state/invariants.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "th/registry_state/holders.h"
#include "th/status/status_macros.h"

namespace th::registry {
namespace {

// The names are put into words only when a rule is broken.
absl::Status Broken(absl::string_view rule, absl::string_view who) {
  return absl::InternalError(absl::StrCat(rule, ": ", who));
}
absl::Status Broken(absl::string_view rule, const RankName& who) {
  return Broken(rule, who.ToString());
}
absl::Status Broken(absl::string_view rule, const Shard& shard) {
  return Broken(
      rule, absl::StrCat(shard.version->info.ToString(), " layout ", shard.key.layout.ShortHex()));
}
absl::Status Broken(absl::string_view rule, const Replica& replica) {
  return Broken(rule, absl::StrCat(replica.group->name, " ", replica.buffer_name));
}
absl::Status Broken(absl::string_view rule, const Model& model) {
  return Broken(rule, model.key.ToString());
}

absl::Status CheckWorkers(const RegistryState& state) {
  size_t connected = 0;
  for (const auto& [id, worker] : state.workers) {
    const RankName& who = worker->name;
    const auto member = worker->group->members.find(worker->name.rank);
    if (member == worker->group->members.end() || member->second != worker.get()) {
      return Broken("a worker is its group's member", who);
    }
    if (worker->name.rank.value >= worker->group->ranks) return Broken("rank < ranks", who);
    if (!worker->connection.has_value()) continue;
    ++connected;
    auto found = state.connections.find(*worker->connection);
    if (found == state.connections.end() || found->second != worker.get()) {
      return Broken("a worker's stream leads to it", who);
    }
  }
  if (connected != state.connections.size()) return Broken("every stream has a worker", "streams");
  return absl::OkStatus();
}

absl::Status CheckFill(const Buffer& buffer) {
  const RankName& who = buffer.worker->name;
  const Fill& fill = *buffer.fill;
  if (!buffer.content.has_value() || buffer.content->complete) {
    return Broken("who fills is not complete", who);
  }
  if (!buffer.replica->pending.contains(fill.operation)) {
    return Broken("a fill belongs to a pending operation", who);
  }
  const bool has_sources = !SourcesOf(*buffer.shard, buffer.address).empty();
  if (has_sources == buffer.shard->waiting.contains(buffer.address)) {
    return Broken("who fills has a source or waits for one", who);
  }
  return absl::OkStatus();
}

// True when a candidate is indexed where it belongs. A suspicion ends with time alone: the place is
// that of a suspected one until the buffer is next indexed.
bool IsInItsPlace(const RegistryState& state, const Buffer& buffer) {
  CandidateKey key = KeyOf(state, buffer, absl::InfinitePast());
  key.suspected = buffer.indexed->suspected;
  return key == *buffer.indexed;
}

absl::Status CheckBuffer(const RegistryState& state, const Buffer& buffer) {
  const RankName& who = buffer.worker->name;
  const auto slot = buffer.replica->buffers.find(RankOf(buffer));
  if (slot == buffer.replica->buffers.end() || slot->second != &buffer) {
    return Broken("a buffer is its replica's", who);
  }
  if (buffer.content.has_value() != (buffer.shard != nullptr)) {
    return Broken("content has a shard", who);
  }
  auto layout = state.layouts.find(buffer.layout);
  if (layout == state.layouts.end() || !layout->second.buffers.contains(buffer.address)) {
    return Broken("a buffer's layout is counted", who);
  }
  if (buffer.displaced != nullptr) {
    const bool committed = buffer.content.has_value() && buffer.content->committed;
    if (committed || !buffer.displaced->committed) {
      return Broken("displaced content is committed, and its replacement is not", who);
    }
  }
  if (buffer.shard == nullptr) {
    if (!buffer.sources.empty()) return Broken("who fills from somebody has content", who);
    return buffer.fill != nullptr ? Broken("a fill has content", who) : absl::OkStatus();
  }
  if (buffer.shard->version->info.sequence != buffer.content->version ||
      !buffer.shard->holders.contains(buffer.address)) {
    return Broken("content is listed with its shard", who);
  }
  if (buffer.content->replica_agreed && !buffer.content->agreed && !buffer.content->refused) {
    return Broken("a replica agrees when each rank does", who);
  }
  if (IsCandidate(buffer) != buffer.indexed.has_value()) {
    return Broken("the candidates are exactly those that may serve", who);
  }
  if (buffer.indexed.has_value() && !IsInItsPlace(state, buffer)) {
    return Broken("a candidate is in its place", who);
  }
  if (buffer.indexed.has_value() && buffer.shard->version->phase != VersionPhase::kPublished) {
    return Broken("nothing withdrawn is a source", who);
  }
  if (buffer.indexed.has_value() && buffer.replica->role == BufferRole::kStreaming) {
    return Broken("who keeps nothing is no source", who);
  }
  return buffer.fill != nullptr ? CheckFill(buffer) : absl::OkStatus();
}

absl::Status CheckEdges(const Shard& shard) {
  size_t edges = 0;
  for (const auto& [reader, holder] : shard.holders) {
    for (const BufferAddress& source : holder->sources) {
      ++edges;
      auto readers = shard.readers_of.find(source);
      if (readers == shard.readers_of.end() || !readers->second.contains(reader)) {
        return Broken("edges are mirrored", shard);
      }
    }
  }
  for (const auto& [source, readers] : shard.readers_of) {
    if (readers.empty()) return Broken("no empty list of readers", shard);
    edges -= readers.size();
  }
  return edges == 0 ? absl::OkStatus() : Broken("edges are mirrored", shard);
}

// Readers that wait for so many of their sources to be reached, in the order of their addresses.
using Waiting = absl::InlinedVector<std::pair<BufferAddress, size_t>, 16>;

size_t* SourcesLeft(Waiting& waiting, const BufferAddress& reader) {
  const auto found =
      std::lower_bound(waiting.begin(), waiting.end(), reader,
                       [](const auto& entry, const BufferAddress& at) { return entry.first < at; });
  return found == waiting.end() || found->first != reader ? nullptr : &found->second;
}

// After CheckEdges: every edge is listed at both of its ends.
absl::Status CheckAcyclic(const Shard& shard) {
  if (shard.readers_of.empty()) return absl::OkStatus();
  Waiting waiting;
  for (const auto& [reader, holder] : shard.holders) {
    if (!holder->sources.empty()) waiting.emplace_back(reader, holder->sources.size());
  }
  absl::InlinedVector<BufferAddress, 16> ready;
  for (const auto& [source, readers] : shard.readers_of) {
    if (SourcesLeft(waiting, source) == nullptr) ready.push_back(source);
  }
  size_t reached = 0;
  while (!ready.empty()) {
    const BufferAddress next = ready.back();
    ready.pop_back();
    const auto readers = shard.readers_of.find(next);
    if (readers == shard.readers_of.end()) continue;
    for (const BufferAddress& reader : readers->second) {
      size_t* const left = SourcesLeft(waiting, reader);
      if (left == nullptr || --*left != 0) continue;
      ++reached;
      ready.push_back(reader);
    }
  }
  return reached == waiting.size() ? absl::OkStatus() : Broken("no cycle of fills", shard);
}

// The shares of sites in the holders of one shard; few sites have any.
using SharesBySite = absl::InlinedVector<std::pair<const std::string*, SiteShare>, 4>;

SiteShare& ShareOf(SharesBySite& shares, const std::string& site) {
  for (auto& [name, share] : shares) {
    if (*name == site) return share;
  }
  return shares.emplace_back(&site, SiteShare()).second;
}

size_t ListedIn(const Shard& shard, absl::string_view place) {
  if (shard.candidates.empty()) return 0;
  const auto found = shard.candidates.find(place);
  return found == shard.candidates.end() ? 0 : found->second.size();
}

// Such shards are many: those of versions that nobody holds any more.
bool IsBare(const Shard& shard) {
  return shard.holders.empty() && shard.readers_of.empty() && shard.candidates.empty() &&
         shard.sites.empty() && shard.leaving.empty() && shard.complete_promising == 0 &&
         shard.complete_staying == 0 && shard.publishers == 0;
}

absl::Status CheckShard(const Shard& shard) {
  if (IsBare(shard)) return absl::OkStatus();  // all that is counted below is nothing
  uint32_t promising = 0;
  uint32_t staying = 0;
  uint32_t publishers = 0;
  size_t candidates = 0, complete = 0, leaving = 0;
  SharesBySite sites;
  for (const auto& [address, holder] : shard.holders) {
    if (holder->shard != &shard) return Broken("a holder knows its shard", shard);
    // Nobody else is listed: that follows from the sizes, which are compared below.
    if (holder->worker->leaving()) {
      ++leaving;
      if (!shard.leaving.contains(address)) {
        return Broken("who leaves is known to the shard", shard);
      }
    }
    promising += holder->counted_promising;
    staying += holder->counted_staying;
    publishers += MaySendRoot(*holder->content);
    candidates += holder->indexed.has_value();
    complete += holder->indexed.has_value() && holder->content->complete;
    if (!holder->counted_whole) continue;
    SiteShare& share = ShareOf(sites, holder->worker->location.site);
    ++share.whole;
    share.lasting += holder->counted_lasting;
  }
  const bool sites_agree = sites.size() == shard.sites.size() &&
                           std::all_of(sites.begin(), sites.end(), [&](const auto& counted) {
                             const auto found = shard.sites.find(*counted.first);
                             return found != shard.sites.end() &&
                                    found->second.whole == counted.second.whole &&
                                    found->second.lasting == counted.second.lasting;
                           });
  if (!sites_agree) return Broken("whole holders are counted by site", shard);
  if (promising != shard.complete_promising) return Broken("promising holders are counted", shard);
  if (staying != shard.complete_staying) return Broken("holders that stay are counted", shard);
  if (leaving != shard.leaving.size()) return Broken("who leaves is a holder", shard);
  if (publishers != shard.publishers) return Broken("publishers are counted", shard);
  if (ListedIn(shard, kAllCandidates) != candidates) {
    return Broken("every candidate is in the index once", shard);
  }
  if (ListedIn(shard, kCompleteCandidates) != complete) {
    return Broken("complete candidates are listed", shard);
  }
  TH_RETURN_IF_ERROR(CheckEdges(shard));
  return CheckAcyclic(shard);
}

absl::Status CheckSiteSeeding(const Replica& replica) {
  if (replica.fills_in.empty()) return absl::OkStatus();
  const Version* version = FindVersion(std::as_const(*replica.group->model), replica.version);
  if (replica.phase != ReplicaPhase::kFilling || version == nullptr) {
    return Broken("who brings a version into a site fills", replica);
  }
  const auto seeding = version->site_seedings.find({replica.form, replica.fills_in});
  const bool listed =
      seeding != version->site_seedings.end() && seeding->second.filling.contains(replica.id);
  return listed ? absl::OkStatus() : Broken("who fills in a site is listed there", replica);
}

// An operation that has begun is what its replica is busy with. After a restart workers announce
// phases before they send their operations again.
absl::Status CheckPhase(const RegistryState& state, const Replica& replica) {
  const auto head = replica.pending.find(replica.finished.Next());
  const auto busy_with = [&](OperationKind kind) {
    return head != replica.pending.end() && head->second.has_begun() &&
           head->second.kind() == kind && head->second.version == replica.version;
  };
  bool right = true;
  switch (replica.phase) {
    case ReplicaPhase::kIdle:
    case ReplicaPhase::kHolding:
      break;
    case ReplicaPhase::kPublishing:
      right = busy_with(OperationKind::kPublish);
      break;
    case ReplicaPhase::kFilling:
      right = busy_with(OperationKind::kUpdate) || state.adopting;
      break;
    case ReplicaPhase::kDraining:
      right = busy_with(OperationKind::kUnpublish) || replica.released;
      break;
  }
  return right ? absl::OkStatus() : Broken("a phase is that of the operation under way", replica);
}

absl::Status CheckReplica(const RegistryState& state, const Replica& replica) {
  if (replica.buffers.empty()) return Broken("a replica has a buffer", replica);
  if (replica.role == BufferRole::kStreaming && replica.phase == ReplicaPhase::kHolding) {
    return Broken("who keeps nothing holds nothing", replica);
  }
  for (const auto& [number, transaction] : replica.pending) {
    if (number <= replica.finished) return Broken("what is pending has not ended", replica);
    if (transaction.participants.empty()) return Broken("an operation has a participant", replica);
    const bool head = number == replica.finished.Next();
    if (transaction.has_begun() && !head) return Broken("operations begin in order", replica);
    if ((transaction.is_publishing() || transaction.is_filling()) &&
        FindVersion(std::as_const(*replica.group->model), transaction.version) == nullptr) {
      return Broken("a begun operation's version exists", replica);
    }
    for (const auto& [rank, participant] : transaction.participants) {
      if (!replica.buffers.contains(rank)) return Broken("a participant has a buffer", replica);
    }
  }
  if (replica.results.size() > kMaxResultsKept) return Broken("results are bounded", replica);
  TH_RETURN_IF_ERROR(CheckSiteSeeding(replica));
  TH_RETURN_IF_ERROR(CheckPhase(state, replica));
  if (replica.phase != ReplicaPhase::kHolding || state.adopting) return absl::OkStatus();
  if (replica.buffers.size() != replica.group->ranks) return Broken("a holder is whole", replica);
  for (const auto& [rank, buffer] : replica.buffers) {
    const bool holds = buffer->content.has_value() && buffer->content->complete &&
                       buffer->content->committed && buffer->content->version == replica.version;
    if (!holds) return Broken("a holder is whole", buffer->worker->name);
  }
  return absl::OkStatus();
}

absl::Status CheckWaitingForRoom(const RegistryState& state, const Model& model) {
  for (const ReplicaId id : model.waiting_for_room) {
    const Replica* replica = FindReplica(state, id);
    if (replica == nullptr) return Broken("who waits for room is there", model);
    const auto head = replica->pending.find(replica->finished.Next());
    const bool waits = head != replica->pending.end() && MayDemandOffload(head->second) &&
                       replica->group->model == &model;
    if (!waits) return Broken("who waits for room has not begun", *replica);
  }
  return absl::OkStatus();
}

bool CountsUnderWay(const Model& model) {
  absl::InlinedVector<std::pair<VersionSequence, uint32_t>, 8> counts;
  for (const auto& [name, group] : model.groups) {
    for (const auto& [buffer_name, replica] : group.replicas) {
      for (const auto& [number, transaction] : replica.pending) {
        if (!transaction.has_begun()) continue;
        const VersionSequence version = transaction.version;
        const auto counted =
            std::find_if(counts.begin(), counts.end(),
                         [version](const auto& entry) { return entry.first == version; });
        if (counted == counts.end()) {
          counts.emplace_back(version, 1);
        } else {
          ++counted->second;
        }
      }
    }
  }
  return counts.size() == model.under_way.size() &&
         std::all_of(counts.begin(), counts.end(), [&](const auto& entry) {
           const auto found = model.under_way.find(entry.first);
           return found != model.under_way.end() && found->second == entry.second;
         });
}

// True when somebody fills it; where it names a reservation instead, that reservation is there.
bool IsReserved(const RegistryState& state, VersionSequence version, const SiteSeedingKey& key,
                const SiteSeeding& seeding) {
  if (seeding.reserved_by == ReplicaId()) return !seeding.filling.empty();
  const Replica* replica = FindReplica(state, seeding.reserved_by);
  return replica != nullptr && replica->form == key.form && replica->reservation.has_value() &&
         replica->reservation->version == version && replica->reservation->site == key.site;
}

bool DisplacedCountsAgree(const Model& model) {
  absl::flat_hash_map<VersionSequence, uint32_t> counts;
  for (const auto& [name, group] : model.groups) {
    for (const auto& [buffer_name, replica] : group.replicas) {
      for (const auto& [rank, buffer] : replica.buffers) {
        if (buffer->displaced != nullptr) ++counts[buffer->displaced->version];
      }
    }
  }
  for (const auto& [sequence, version] : model.versions) {
    if (version.displaced_buffers == 0) continue;
    const auto counted = counts.find(sequence);
    if (counted == counts.end() || counted->second != version.displaced_buffers) return false;
    counts.erase(counted);
  }
  return counts.empty();
}

absl::Status CheckModel(const RegistryState& state, const Model& model) {
  for (const auto& [sequence, version] : model.versions) {
    if (version.info.sequence != sequence) return Broken("a version has its number", model);
    const bool published = version.phase == VersionPhase::kPublished;
    if (published && sequence > model.durable.high_water) {
      return Broken("nothing published is above the high-water mark", model);
    }
    auto label = model.labels.find(version.info.label.text());
    const bool labelled = label != model.labels.end() && label->second == sequence;
    if (published != labelled && !version.info.label.empty()) {
      return Broken("a label names its published version", model);
    }
    for (const auto& [key, shard] : version.shards) TH_RETURN_IF_ERROR(CheckShard(shard));
    for (const auto& [key, seeding] : version.site_seedings) {
      for (const ReplicaId id : seeding.filling) {
        const Replica* replica = FindReplica(state, id);
        const bool fills = replica != nullptr && replica->fills_in == key.site &&
                           replica->version == sequence && replica->form == key.form;
        if (!fills) return Broken("who is on its way into a site fills there", key.site);
      }
      if (!IsReserved(state, sequence, key, seeding)) {
        return Broken("what nobody fills has been reserved, and stands in a reservation", key.site);
      }
    }
  }
  uint64_t attribute_bytes = 0;
  for (const auto& [sequence, version] : model.versions) {
    attribute_bytes += MemoryOf(version.info.attributes);
  }
  if (attribute_bytes != model.attribute_bytes) return Broken("bytes of attributes", model);
  if (!DisplacedCountsAgree(model)) return Broken("displaced content by version", model);
  if (!CountsUnderWay(model)) return Broken("operations by version", model);
  TH_RETURN_IF_ERROR(CheckWaitingForRoom(state, model));
  if (model.commands.size() != model.command_order.size()) return Broken("commands", model);
  for (const auto& [name, group] : model.groups) {
    if (group.members.empty()) return Broken("a group has a member", name);
    for (const auto& [buffer_name, replica] : group.replicas) {
      TH_RETURN_IF_ERROR(CheckReplica(state, replica));
    }
  }
  return absl::OkStatus();
}

// How many deadlines there are, and how many there have to be, of each kind.
struct DeadlineCount {
  size_t leases = 0, retries = 0, throughputs = 0, operations = 0, reservations = 0,
         forgettings = 0;
  friend bool operator==(const DeadlineCount&, const DeadlineCount&) = default;
};

DeadlineCount DeadlinesOwed(const RegistryState& state) {
  DeadlineCount owed{.leases = state.workers.size(),
                     .forgettings = state.forgets_at != absl::InfiniteFuture()};
  for (const auto& [id, worker] : state.workers) {
    for (const auto& [buffer_id, buffer] : worker->buffers) {
      if (buffer.fill == nullptr) continue;
      owed.retries += buffer.fill->retry_at != absl::InfiniteFuture();
      owed.throughputs += buffer.fill->throughput.recheck_at != absl::InfiniteFuture();
    }
  }
  for (const auto& [id, replica] : state.replicas) {
    owed.operations += replica->pending.size();
    owed.reservations += replica->reservation.has_value();
  }
  return owed;
}

// The deadline that the owner of `deadline` has now; another one when it has none.
Deadline DeadlineOfOwner(const RegistryState& state, const Deadline& deadline) {
  Deadline own{.at = absl::InfiniteFuture(), .kind = deadline.kind};
  switch (deadline.kind) {
    case DeadlineKind::kRecoveryWindow:
    case DeadlineKind::kAdoption:
      return deadline;
    case DeadlineKind::kForgetting:
      own.at = state.forgets_at;
      break;
    case DeadlineKind::kLease:
      own.buffer.worker = deadline.buffer.worker;
      if (const Worker* worker = FindWorker(state, deadline.buffer.worker))
        own.at = worker->lease_at;
      break;
    case DeadlineKind::kRetry:
    case DeadlineKind::kThroughput: {
      own.buffer = deadline.buffer;
      const Buffer* buffer = FindBuffer(state, deadline.buffer);
      if (buffer == nullptr || buffer->fill == nullptr) break;
      const Fill& fill = *buffer->fill;
      own.at = deadline.kind == DeadlineKind::kRetry ? fill.retry_at : fill.throughput.recheck_at;
      break;
    }
    case DeadlineKind::kOperation: {
      own.replica = deadline.replica;
      own.operation = deadline.operation;
      const Replica* replica = FindReplica(state, deadline.replica);
      if (replica == nullptr) break;
      const auto pending = replica->pending.find(deadline.operation);
      if (pending != replica->pending.end()) own.at = pending->second.ends_at();
      break;
    }
    case DeadlineKind::kReservation: {
      own.replica = deadline.replica;
      const Replica* replica = FindReplica(state, deadline.replica);
      if (replica != nullptr && replica->reservation.has_value())
        own.at = replica->reservation->until;
      break;
    }
  }
  return own;
}

// Every worker has a lease, every operation, every reservation and every fill with a retry or a
// look at its throughput its deadline, and nothing else has one. As no two deadlines are equal, it
// is enough that each of them is its owner's and that there are as many as owners.
absl::Status CheckDeadlines(const RegistryState& state) {
  DeadlineCount found;
  for (const Deadline& deadline : state.deadlines) {
    if (!(DeadlineOfOwner(state, deadline) == deadline)) {
      return Broken("a deadline is its owner's",
                    absl::StrCat("kind ", static_cast<int>(deadline.kind)));
    }
    found.leases += deadline.kind == DeadlineKind::kLease;
    found.retries += deadline.kind == DeadlineKind::kRetry;
    found.throughputs += deadline.kind == DeadlineKind::kThroughput;
    found.operations += deadline.kind == DeadlineKind::kOperation;
    found.reservations += deadline.kind == DeadlineKind::kReservation;
    found.forgettings += deadline.kind == DeadlineKind::kForgetting;
  }
  const DeadlineCount owed = DeadlinesOwed(state);
  if (found == owed) return absl::OkStatus();
  return Broken(
      "whatever waits has its deadline",
      absl::StrCat(found.leases, " of ", owed.leases, " leases, ", found.retries, " of ",
                   owed.retries, " retries, ", found.throughputs, " of ", owed.throughputs,
                   " looks, ", found.operations, " of ", owed.operations, " operations, ",
                   found.reservations, " of ", owed.reservations, " reservations, ",
                   found.forgettings, " of ", owed.forgettings, " looks at what is unused"));
}

}  // namespace

// Exactly the models of which some pin ends have an entry, at the first such moment.
absl::Status CheckPinExpiries(const RegistryState& state) {
  std::set<std::pair<absl::Time, ModelKey>> expected;
  for (const auto& [key, model] : state.models) {
    absl::Time first = absl::InfiniteFuture();
    for (const DurablePin& pin : model.durable.pins) first = std::min(first, pin.expires_at);
    if (first != absl::InfiniteFuture()) expected.insert({first, key});
  }
  return expected == state.pin_expiries ? absl::OkStatus() : Broken("pins expire when told", "");
}

absl::Status CheckStateInvariants(const RegistryState& state) {
  TH_RETURN_IF_ERROR(CheckWorkers(state));
  for (const auto& [id, worker] : state.workers) {
    for (const auto& [buffer_id, buffer] : worker->buffers) {
      TH_RETURN_IF_ERROR(CheckBuffer(state, buffer));
    }
  }
  for (const auto& [key, model] : state.models) TH_RETURN_IF_ERROR(CheckModel(state, model));
  TH_RETURN_IF_ERROR(CheckPinExpiries(state));
  return CheckDeadlines(state);
}

}  // namespace th::registry
