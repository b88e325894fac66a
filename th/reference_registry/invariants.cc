#include "th/reference_registry/invariants.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/reference_registry/holders.h"
#include "th/weights/status_macros.h"

namespace th {
namespace {

absl::Status Broken(absl::string_view rule, absl::string_view who) {
  return absl::InternalError(absl::StrCat(rule, ": ", who));
}

absl::Status CheckWorkers(const RegistryState& state) {
  size_t connected = 0;
  for (const auto& [id, worker] : state.workers) {
    const std::string who = worker->name.ToString();
    const auto member = worker->group->members.find(worker->name.rank);
    if (member == worker->group->members.end() || member->second != worker.get()) {
      return Broken("a worker is its group's member", who);
    }
    if (worker->name.rank.value >= worker->group->ranks) return Broken("rank < ranks", who);
    if (!state.deadlines.contains(Deadline{.at = worker->lease_at,
                                           .kind = DeadlineKind::kLease,
                                           .buffer = {id, BufferId()}})) {
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
  const std::string who = NameOf(buffer).ToString();
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
      !state.deadlines.contains(Deadline{
          .at = fill.retry_at, .kind = DeadlineKind::kRetry, .buffer = buffer.address})) {
    return Broken("a retry has its deadline", who);
  }
  return absl::OkStatus();
}

absl::Status CheckBuffer(const RegistryState& state, const Buffer& buffer) {
  const std::string who = NameOf(buffer).ToString();
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
    return buffer.fill.has_value() ? Broken("a fill has content", who) : absl::OkStatus();
  }
  if (buffer.shard->version->info.sequence != buffer.content->version ||
      !buffer.shard->holders.contains(buffer.address)) {
    return Broken("content is listed with its shard", who);
  }
  if (IsCandidate(buffer) != buffer.indexed.has_value()) {
    return Broken("the candidates are exactly those that may serve", who);
  }
  if (buffer.indexed.has_value() &&
      buffer.shard->version->phase != VersionPhase::kPublished) {
    return Broken("nothing withdrawn is a source", who);
  }
  return buffer.fill.has_value() ? CheckFill(state, buffer) : absl::OkStatus();
}

absl::Status CheckEdges(const Shard& shard, const std::string& who) {
  size_t edges = 0;
  for (const auto& [reader, sources] : shard.sources_of) {
    if (sources.empty()) return Broken("no empty list of sources", who);
    for (const BufferAddress& source : sources) {
      ++edges;
      auto readers = shard.readers_of.find(source);
      if (readers == shard.readers_of.end() || !readers->second.contains(reader)) {
        return Broken("edges are mirrored", who);
      }
    }
    auto holder = shard.holders.find(reader);
    if (holder == shard.holders.end()) return Broken("a reader is a holder", who);
  }
  for (const auto& [source, readers] : shard.readers_of) {
    if (readers.empty()) return Broken("no empty list of readers", who);
    edges -= readers.size();
  }
  return edges == 0 ? absl::OkStatus() : Broken("edges are mirrored", who);
}

absl::Status CheckAcyclic(const Shard& shard, const std::string& who) {
  std::map<BufferAddress, size_t> waiting_for;
  std::vector<BufferAddress> ready;
  for (const auto& [reader, sources] : shard.sources_of) waiting_for[reader] = sources.size();
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
  return reached == waiting_for.size() ? absl::OkStatus() : Broken("no cycle of fills", who);
}

absl::Status CheckShard(const Shard& shard) {
  const std::string who =
      absl::StrCat(shard.version->info.ToString(), " layout ", shard.key.layout.ShortHex());
  uint32_t promising = 0;
  uint32_t publishers = 0;
  size_t candidates = 0;
  for (const auto& [address, holder] : shard.holders) {
    if (holder->shard != &shard) return Broken("a holder knows its shard", who);
    promising += holder->counted_promising;
    publishers += holder->content->publisher && !holder->content->refused;
    candidates += holder->indexed.has_value();
  }
  if (promising != shard.complete_promising) return Broken("promising holders are counted", who);
  if (publishers != shard.publishers) return Broken("publishers are counted", who);
  auto everybody = shard.candidates.find("");
  const size_t indexed = everybody == shard.candidates.end() ? 0 : everybody->second.size();
  if (indexed != candidates) return Broken("every candidate is in the index once", who);
  TH_RETURN_IF_ERROR(CheckEdges(shard, who));
  return CheckAcyclic(shard, who);
}

absl::Status CheckReplica(const RegistryState& state, const Replica& replica) {
  const std::string who = absl::StrCat(replica.group->name, " ", replica.buffer_name);
  if (replica.buffers.empty()) return Broken("a replica has a buffer", who);
  for (const auto& [number, transaction] : replica.pending) {
    if (number <= replica.finished) return Broken("what is pending has not ended", who);
    if (transaction.participants.empty()) return Broken("an operation has a participant", who);
    if (!state.deadlines.contains(Deadline{.at = transaction.deadline,
                                           .kind = DeadlineKind::kOperation,
                                           .replica = replica.id,
                                           .operation = number})) {
      return Broken("every operation has a deadline", who);
    }
    const bool head = number == replica.finished.Next();
    if (transaction.begun && !head) return Broken("operations begin in order", who);
    for (const auto& [rank, participant] : transaction.participants) {
      if (!replica.buffers.contains(rank)) return Broken("a participant has a buffer", who);
    }
  }
  if (replica.results.size() > kMaxResultsKept) return Broken("results are bounded", who);
  if (replica.phase != ReplicaPhase::kHolding || state.adopting) return absl::OkStatus();
  if (replica.buffers.size() != replica.group->ranks) return Broken("a holder is whole", who);
  for (const auto& [rank, buffer] : replica.buffers) {
    const bool holds = buffer->content.has_value() && buffer->content->complete &&
                       buffer->content->committed && buffer->content->version == replica.version;
    if (!holds) return Broken("a holder is whole", NameOf(*buffer).ToString());
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const RegistryState& state, const Model& model) {
  const std::string who = model.key.ToString();
  for (const auto& [sequence, version] : model.versions) {
    if (version.info.sequence != sequence) return Broken("a version has its number", who);
    const bool published = version.phase == VersionPhase::kPublished;
    if (published && sequence > model.durable.high_water) {
      return Broken("nothing published is above the high-water mark", who);
    }
    auto label = model.labels.find(version.info.label.text());
    const bool labelled = label != model.labels.end() && label->second == sequence;
    if (published != labelled && !version.info.label.empty()) {
      return Broken("a label names its published version", who);
    }
    for (const auto& [key, shard] : version.shards) TH_RETURN_IF_ERROR(CheckShard(shard));
  }
  if (model.commands.size() != model.command_order.size()) return Broken("commands", who);
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
      case DeadlineKind::kRetry: {
        const Buffer* buffer = FindBuffer(state, deadline.buffer);
        if (buffer == nullptr || !buffer->fill.has_value()) return Broken("deadline", "retry");
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

}  // namespace th
