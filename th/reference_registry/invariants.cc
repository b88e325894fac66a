#include "th/reference_registry/invariants.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "th/reference_registry/holders.h"
#include "th/weights/status_macros.h"

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
    if (!state.deadlines.contains(Deadline{
            .at = worker->lease_at, .kind = DeadlineKind::kLease, .buffer = {id, BufferId()}})) {
      return Broken("every worker has a lease", who);
    }
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

absl::Status CheckFill(const RegistryState& state, const Buffer& buffer) {
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
  if (fill.retry_at != absl::InfiniteFuture() &&
      !state.deadlines.contains(
          Deadline{.at = fill.retry_at, .kind = DeadlineKind::kRetry, .buffer = buffer.address})) {
    return Broken("a retry has its deadline", who);
  }
  if (fill.pace.look_at != absl::InfiniteFuture() &&
      !state.deadlines.contains(Deadline{
          .at = fill.pace.look_at, .kind = DeadlineKind::kPace, .buffer = buffer.address})) {
    return Broken("a look at the pace has its deadline", who);
  }
  return absl::OkStatus();
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
  if (buffer.shard == nullptr) {
    if (!buffer.sources.empty()) return Broken("who fills from somebody has content", who);
    return buffer.fill.has_value() ? Broken("a fill has content", who) : absl::OkStatus();
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
  if (buffer.indexed.has_value() && buffer.shard->version->phase != VersionPhase::kPublished) {
    return Broken("nothing withdrawn is a source", who);
  }
  if (buffer.indexed.has_value() && buffer.replica->role == BufferRole::kStreaming) {
    return Broken("who keeps nothing is no source", who);
  }
  return buffer.fill.has_value() ? CheckFill(state, buffer) : absl::OkStatus();
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

absl::Status CheckAcyclic(const Shard& shard) {
  std::map<BufferAddress, size_t> waiting_for;
  std::vector<BufferAddress> ready;
  for (const auto& [reader, holder] : shard.holders) {
    if (!holder->sources.empty()) waiting_for[reader] = holder->sources.size();
  }
  for (const auto& [source, readers] : shard.readers_of) {
    if (!waiting_for.contains(source)) ready.push_back(source);
  }
  size_t reached = 0;
  while (!ready.empty()) {
    const BufferAddress next = ready.back();
    ready.pop_back();
    auto readers = shard.readers_of.find(next);
    if (readers == shard.readers_of.end()) continue;
    for (const BufferAddress& reader : readers->second) {
      if (--waiting_for[reader] != 0) continue;
      ++reached;
      ready.push_back(reader);
    }
  }
  return reached == waiting_for.size() ? absl::OkStatus() : Broken("no cycle of fills", shard);
}

absl::Status CheckShard(const Shard& shard) {
  uint32_t promising = 0;
  uint32_t staying = 0;
  uint32_t publishers = 0;
  size_t candidates = 0, complete = 0, leaving = 0;
  std::map<std::string, SiteShare> sites;
  for (const auto& [address, holder] : shard.holders) {
    if (holder->shard != &shard) return Broken("a holder knows its shard", shard);
    if (holder->worker->leaving() != shard.leaving.contains(address)) {
      return Broken("who leaves is known to the shard", shard);
    }
    leaving += holder->worker->leaving();
    promising += holder->counted_promising;
    staying += holder->counted_staying;
    publishers += MayTellRoot(*holder->content);
    candidates += holder->indexed.has_value();
    complete += holder->indexed.has_value() && holder->content->complete;
    if (!holder->counted_whole) continue;
    SiteShare& share = sites[holder->worker->location.site];
    ++share.whole;
    share.settled += holder->counted_settled;
  }
  const bool sites_agree = std::equal(sites.begin(), sites.end(), shard.sites.begin(),
                                      shard.sites.end(), [](const auto& a, const auto& b) {
                                        return a.first == b.first &&
                                               a.second.whole == b.second.whole &&
                                               a.second.settled == b.second.settled;
                                      });
  if (!sites_agree) return Broken("whole holders are counted by site", shard);
  if (promising != shard.complete_promising) return Broken("promising holders are counted", shard);
  if (staying != shard.complete_staying) return Broken("holders that stay are counted", shard);
  if (leaving != shard.leaving.size()) return Broken("who leaves is a holder", shard);
  if (publishers != shard.publishers) return Broken("publishers are counted", shard);
  auto everybody = shard.candidates.find(kEverybody);
  const size_t indexed = everybody == shard.candidates.end() ? 0 : everybody->second.size();
  if (indexed != candidates) return Broken("every candidate is in the index once", shard);
  auto whole = shard.candidates.find(kCompleteOnes);
  const size_t listed = whole == shard.candidates.end() ? 0 : whole->second.size();
  if (listed != complete) return Broken("complete candidates are listed", shard);
  TH_RETURN_IF_ERROR(CheckEdges(shard));
  return CheckAcyclic(shard);
}

absl::Status CheckArrival(const Replica& replica) {
  if (replica.fills_in.empty()) return absl::OkStatus();
  const Version* version = FindVersion(std::as_const(*replica.group->model), replica.version);
  if (replica.phase != ReplicaPhase::kFilling || version == nullptr) {
    return Broken("who brings a version into a site fills", replica);
  }
  const auto arrival = version->arrivals.find({replica.form, replica.fills_in});
  const bool listed =
      arrival != version->arrivals.end() && arrival->second.filling.contains(replica.id);
  return listed ? absl::OkStatus() : Broken("who fills in a site is listed there", replica);
}

// An operation that has begun is what its replica is busy with. After a restart workers announce
// phases before they send their operations again.
absl::Status CheckPhase(const RegistryState& state, const Replica& replica) {
  const auto head = replica.pending.find(replica.finished.Next());
  const auto busy_with = [&](OperationKind kind) {
    return head != replica.pending.end() && head->second.begun && head->second.kind == kind &&
           head->second.version == replica.version;
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
    if (!state.deadlines.contains(Deadline{.at = transaction.deadline,
                                           .kind = DeadlineKind::kOperation,
                                           .replica = replica.id,
                                           .operation = number})) {
      return Broken("every operation has a deadline", replica);
    }
    const bool head = number == replica.finished.Next();
    if (transaction.begun && !head) return Broken("operations begin in order", replica);
    if (transaction.begun && transaction.kind != OperationKind::kUnpublish &&
        FindVersion(std::as_const(*replica.group->model), transaction.version) == nullptr) {
      return Broken("a begun operation's version exists", replica);
    }
    for (const auto& [rank, participant] : transaction.participants) {
      if (!replica.buffers.contains(rank)) return Broken("a participant has a buffer", replica);
    }
  }
  if (replica.results.size() > kMaxResultsKept) return Broken("results are bounded", replica);
  TH_RETURN_IF_ERROR(CheckArrival(replica));
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
    const bool waits = head != replica->pending.end() && !head->second.begun &&
                       head->second.keep_retained && replica->group->model == &model;
    if (!waits) return Broken("who waits for room has not begun", *replica);
  }
  return absl::OkStatus();
}

absl::flat_hash_map<VersionSequence, uint32_t> CountUnderWay(const Model& model) {
  absl::flat_hash_map<VersionSequence, uint32_t> counts;
  for (const auto& [name, group] : model.groups) {
    for (const auto& [buffer_name, replica] : group.replicas) {
      for (const auto& [number, transaction] : replica.pending) {
        if (transaction.begun) ++counts[transaction.version];
      }
    }
  }
  return counts;
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
    for (const auto& [key, arrival] : version.arrivals) {
      for (const ReplicaId id : arrival.filling) {
        const Replica* replica = FindReplica(state, id);
        const bool fills = replica != nullptr && replica->fills_in == key.site &&
                           replica->version == sequence && replica->form == key.form;
        if (!fills) return Broken("who is on its way into a site fills there", key.site);
      }
    }
  }
  if (model.under_way != CountUnderWay(model)) return Broken("operations by version", model);
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

// Deadlines that belong to nothing would be work for nobody.
absl::Status CheckDeadlines(const RegistryState& state) {
  for (const Deadline& deadline : state.deadlines) {
    switch (deadline.kind) {
      case DeadlineKind::kRecoveryWindow:
      case DeadlineKind::kAdoption:
        break;
      case DeadlineKind::kLease:
        if (!state.workers.contains(deadline.buffer.worker)) return Broken("deadline", "lease");
        break;
      case DeadlineKind::kRetry:
      case DeadlineKind::kPace: {
        const Buffer* buffer = FindBuffer(state, deadline.buffer);
        if (buffer == nullptr || !buffer->fill.has_value())
          return Broken("deadline", "retry or pace");
        break;
      }
      case DeadlineKind::kOperation: {
        const Replica* replica = FindReplica(state, deadline.replica);
        if (replica == nullptr || !replica->pending.contains(deadline.operation)) {
          return Broken("deadline", "operation");
        }
        break;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStateInvariants(const RegistryState& state) {
  TH_RETURN_IF_ERROR(CheckWorkers(state));
  for (const auto& [id, worker] : state.workers) {
    for (const auto& [buffer_id, buffer] : worker->buffers) {
      TH_RETURN_IF_ERROR(CheckBuffer(state, buffer));
    }
  }
  for (const auto& [key, model] : state.models) TH_RETURN_IF_ERROR(CheckModel(state, model));
  return CheckDeadlines(state);
}

}  // namespace th::registry
