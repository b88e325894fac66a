#include "th/registry_state/state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "th/protocol/lease.h"

namespace th::registry {

std::string SiteOf(const Group& group) {
  const std::string* site = nullptr;
  for (const auto& [rank, worker] : group.members) {
    const std::string& own = worker->location.site;
    if (own.empty() || (site != nullptr && *site != own)) return "";
    site = &own;
  }
  return site == nullptr ? "" : *site;
}

Worker* FindWorker(const RegistryState& state, WorkerId worker) {
  auto found = state.workers.find(worker);
  return found == state.workers.end() ? nullptr : found->second.get();
}

Worker* FindWorker(const RegistryState& state, ConnectionId connection) {
  auto found = state.connections.find(connection);
  return found == state.connections.end() ? nullptr : found->second;
}

Buffer* FindBuffer(const RegistryState& state, const BufferAddress& address) {
  Worker* worker = FindWorker(state, address.worker);
  if (worker == nullptr) return nullptr;
  auto found = worker->buffers.find(address.buffer);
  return found == worker->buffers.end() ? nullptr : &found->second;
}

Replica* FindReplica(const RegistryState& state, ReplicaId replica) {
  auto found = state.replicas.find(replica);
  return found == state.replicas.end() ? nullptr : found->second;
}

Model* FindModel(RegistryState& state, const ModelKey& key) {
  auto found = state.models.find(key);
  return found == state.models.end() ? nullptr : &found->second;
}

const Model* FindModel(const RegistryState& state, const ModelKey& key) {
  auto found = state.models.find(key);
  return found == state.models.end() ? nullptr : &found->second;
}

Model& EnsureModel(RegistryState& state, const ModelKey& key) {
  auto [it, created] = state.models.try_emplace(key);
  if (created) {
    it->second.key = key;
    it->second.next_version_number = state.first_version_number;
  }
  return it->second;
}

void ForgetModel(RegistryState& state, const Model& model) {
  state.first_version_number = std::max(state.first_version_number, model.next_version_number);
  state.pin_expiries.erase({model.pins_expire_at, model.key});
  const ModelKey key = model.key;  // a copy: the record dies next
  state.models.erase(key);
}

Version* FindVersion(Model& model, VersionSequence version) {
  auto found = model.versions.find(version);
  return found == model.versions.end() ? nullptr : &found->second;
}

const Version* FindVersion(const Model& model, VersionSequence version) {
  auto found = model.versions.find(version);
  return found == model.versions.end() ? nullptr : &found->second;
}

const ShardLayout* FindLayoutOf(const RegistryState& state, const Digest& digest) {
  auto found = state.layouts.find(digest);
  if (found == state.layouts.end() || !found->second.layout.has_value()) return nullptr;
  return &*found->second.layout;
}

void ForgetLayout(RegistryState& state, const Digest& digest) {
  const auto found = state.layouts.find(digest);
  if (found->second.layout.has_value()) state.layout_bytes -= found->second.layout->encoded_bytes();
  state.layouts.erase(found);
}

bool IsSuspected(const Worker& worker, absl::Time now) {
  return now < worker.suspected_until || now < worker.slow_until;
}

bool IsSilent(const RegistryState& state, const Worker& worker, absl::Time now) {
  const RegistryLimits& limits = state.limits;
  return now - worker.last_heard > limits.suspect_after.value_or(SuspectAfter(limits.lease));
}

void NoteHeard(const RegistryState& state, Worker& worker, absl::Time now) {
  if (IsSilent(state, worker, now)) worker.heard_again_at = now;
  worker.last_heard = now;
}

Transaction* HeadOf(Replica& replica) {
  auto found = replica.pending.find(replica.finished.Next());
  return found == replica.pending.end() ? nullptr : &found->second;
}

void ExpectExpiry(RegistryState& state, Model& model) {
  absl::Time first = absl::InfiniteFuture();
  for (const DurablePin& pin : model.durable.pins) first = std::min(first, pin.expires_at);
  if (first == model.pins_expire_at) return;
  state.pin_expiries.erase({model.pins_expire_at, model.key});
  model.pins_expire_at = first;
  if (first != absl::InfiniteFuture()) state.pin_expiries.insert({first, model.key});
}

uint64_t MemoryOf(const Attributes& attributes) {
  return BytesOf(attributes) + attributes.size() * kBytesOfAnAttribute;
}

VersionSequence LatestOf(const Model& model) {
  for (auto it = model.versions.rbegin(); it != model.versions.rend(); ++it) {
    if (it->second.phase == VersionPhase::kPublished) return it->first;
  }
  return VersionSequence();
}

std::string FormSuffix(const std::string& form) {
  return form.empty() ? "" : absl::StrCat(" form=", form);
}

bool WasWithdrawn(const Model& model, VersionSequence version, Lineage lineage) {
  if (version > model.durable.high_water) return true;
  for (const DurableRollBack& roll_back : model.durable.roll_backs) {
    if (lineage < roll_back.lineage && version > roll_back.to) return true;
  }
  return false;
}

bool IsOfPresentLineage(const DurableModel& durable, const VersionInfo& version) {
  if (version.lineage >= durable.lineage) return true;
  // Where a roll-back that the state has forgotten went to, nobody knows.
  const bool known =
      !durable.roll_backs.empty() && durable.roll_backs.back().lineage == durable.lineage;
  return known && version.sequence == durable.roll_backs.back().to;
}

bool IsSealed(const Version& version) {
  for (const auto& [key, shard] : version.shards) {
    if (!shard.root.has_value()) return false;
  }
  return version.phase == VersionPhase::kPublished && !version.shards.empty();
}

RankName NameOf(const Buffer& buffer) { return buffer.worker->name; }
Rank RankOf(const Buffer& buffer) { return buffer.worker->name.rank; }

std::string NameRanks(const Group& group, const std::vector<Rank>& ranks) {
  constexpr size_t kNamed = 8;
  std::string text;
  for (size_t i = 0; i < ranks.size() && i < kNamed; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", RankName{group.name, ranks[i]}.ToString());
  }
  if (ranks.size() > kNamed) absl::StrAppend(&text, " and ", ranks.size() - kNamed, " more");
  return text;
}

}  // namespace th::registry
