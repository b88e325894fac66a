#include "th/registry_state/holders.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/protocol/messages.h"
#include "th/registry_state/uplinks.h"
#include "th/scheduler/scheduler.h"
#include "tools/mutation/mutation.h"

namespace th::registry {
namespace {

const Version* VersionOf(const Buffer& buffer) {
  return buffer.shard == nullptr ? nullptr : buffer.shard->version;
}

// True when it has all of its shard or is about to, though it may serve nobody now.
bool HasOrGets(const Buffer& buffer) {
  const Content& content = *buffer.content;
  const Replica& replica = *buffer.replica;
  if (content.refused || replica.role == BufferRole::kStreaming) return false;
  const bool gets = replica.phase == ReplicaPhase::kFilling && replica.version == content.version;
  return content.complete || gets;
}

// True when the buffer is a candidate as soon as its stream is up and its content agreed.
bool IsCandidateOnceAgreed(const Buffer& buffer) {
  if (!buffer.content.has_value() || buffer.content->refused) return false;
  const Replica& replica = *buffer.replica;
  if (TH_MUTATE(kServeWhatIsNotKept, replica.role == BufferRole::kStreaming, false)) return false;
  if (VersionOf(buffer)->phase != VersionPhase::kPublished) return false;
  if (buffer.content->version != replica.version) return false;
  switch (replica.phase) {
    case ReplicaPhase::kHolding:
      return buffer.content->complete;
    case ReplicaPhase::kFilling:
      return true;
    case ReplicaPhase::kIdle:
    case ReplicaPhase::kPublishing:
    case ReplicaPhase::kDraining:
      return TH_MUTATE(kServeWhileDraining, false, replica.phase == ReplicaPhase::kDraining);
  }
  return false;
}

// Null: it was not there, or is not to be.
void MoveInPlace(const Buffer& buffer, std::string place, const CandidateKey* from,
                 const CandidateKey* to) {
  if (from == nullptr && to == nullptr) return;
  auto& candidates = buffer.shard->candidates;
  auto found = candidates.try_emplace(std::move(place)).first;
  if (from != nullptr) found->second.erase(*from);
  if (to != nullptr) found->second.emplace(*to, &buffer);
  if (found->second.empty()) candidates.erase(found);
}

// Where the shard's candidates have the buffer from here on; none: nowhere.
void SetIndexed(Buffer& buffer, const std::optional<CandidateKey>& key) {
  if (buffer.indexed == key) return;
  const CandidateKey* const from = buffer.indexed.has_value() ? &*buffer.indexed : nullptr;
  const CandidateKey* const to = key.has_value() ? &*key : nullptr;
  for (std::string& place : PlacesOf(buffer.worker->location)) {
    MoveInPlace(buffer, std::move(place), from, to);
  }
  MoveInPlace(buffer, std::string(kCompleteCandidates),
              from != nullptr && from->complete ? from : nullptr,
              to != nullptr && to->complete ? to : nullptr);
  buffer.indexed = key;
}

void CountPromising(Buffer& buffer, bool promising) {
  if (promising == buffer.counted_promising) return;
  buffer.counted_promising = promising;
  buffer.shard->complete_promising += promising ? 1 : -1;
}

void CountStaying(Turn& turn, Buffer& buffer, bool staying) {
  if (staying == buffer.counted_staying) return;
  buffer.counted_staying = staying;
  buffer.shard->complete_staying += staying ? 1 : -1;
  const Model& model = *buffer.replica->group->model;
  if (!model.host_copies.empty()) turn.to_review.insert(model.key);
}

// `lasting` implies `whole`.
void CountInSite(Turn& turn, Buffer& buffer, bool whole, bool lasting) {
  if (whole == buffer.counted_whole && lasting == buffer.counted_lasting) return;
  const std::string& site = buffer.worker->location.site;
  SiteShare& share = buffer.shard->sites[site];
  share.whole += static_cast<uint32_t>(whole) - static_cast<uint32_t>(buffer.counted_whole);
  share.lasting += static_cast<uint32_t>(lasting) - static_cast<uint32_t>(buffer.counted_lasting);
  if (share.whole == 0) buffer.shard->sites.erase(site);
  buffer.counted_whole = whole;
  buffer.counted_lasting = lasting;
  const Model& model = *buffer.replica->group->model;
  if (!model.host_copies.empty()) turn.to_review.insert(model.key);
}

void CountPublisher(Turn& turn, Buffer& buffer, bool publisher) {
  if (publisher == buffer.counted_publisher) return;
  buffer.counted_publisher = publisher;
  Shard& shard = *buffer.shard;
  shard.publishers += publisher ? 1 : -1;
  if (!publisher && !shard.root.has_value()) {
    turn.roots_to_settle.insert({shard.version->model->key, shard.version->info.sequence});
  }
  if (!IsUnsealable(shard)) return;
  for (const auto& [address, holder] : shard.holders) {
    if (holder->fill != nullptr) turn.to_assign.insert(address);
  }
}

void EraseEdge(Shard& shard, const BufferAddress& reader, const BufferAddress& source) {
  auto readers = shard.readers_of.find(source);
  if (readers != shard.readers_of.end()) {
    readers->second.erase(reader);
    if (readers->second.empty()) shard.readers_of.erase(readers);
  }
  auto holder = shard.holders.find(reader);
  if (holder != shard.holders.end()) std::erase(holder->second->sources, source);
}

// The deadline of the reservation that the replica has.
Deadline DeadlineOfReservation(const Replica& replica) {
  return {
      .at = replica.reservation->until, .kind = DeadlineKind::kReservation, .replica = replica.id};
}

void EraseIfOver(Version& version, std::map<SiteSeedingKey, SiteSeeding>::iterator seeding) {
  const SiteSeeding& on_its_way = seeding->second;
  const bool over = on_its_way.filling.empty() && on_its_way.reserved_by == ReplicaId();
  if (over) version.site_seedings.erase(seeding);
}

void LeaveSiteSeeding(Replica& replica) {
  if (replica.fills_in.empty()) return;
  Version& version = *FindVersion(*replica.group->model, replica.version);
  auto seeding = version.site_seedings.find({replica.form, replica.fills_in});
  seeding->second.filling.erase(replica.id);
  EraseIfOver(version, seeding);
  replica.fills_in.clear();
}

// A copy that fills is what its group had reserved the site for.
void UseReservation(Turn& turn, const Replica& copy) {
  for (auto& [name, replica] : copy.group->replicas) {
    if (replica.reservation.has_value() && replica.reservation->version == copy.version) {
      EndReservation(turn, replica);
    }
  }
}

void JoinSiteSeeding(Turn& turn, Replica& replica) {
  Group& group = *replica.group;
  if (replica.role == BufferRole::kStreaming || group.members.size() != group.ranks) return;
  const std::string site = SiteOf(group);
  Version* version = FindVersion(*group.model, replica.version);
  if (site.empty() || version == nullptr) return;
  version->site_seedings[{replica.form, site}].filling.insert(replica.id);
  replica.fills_in = site;
  if (replica.role == BufferRole::kSiteCopy) UseReservation(turn, replica);
}

void ReindexAddress(Turn& turn, Shard& shard, const BufferAddress& address) {
  auto found = shard.holders.find(address);
  if (found != shard.holders.end()) Reindex(turn, *found->second);
}

// Moves `deadline` from `scheduled` to `to`, and stores that there; InfiniteFuture: there is none.
void MoveDeadline(Turn& turn, Deadline deadline, absl::Time& scheduled, absl::Time to) {
  if (scheduled == to) return;
  if (scheduled != absl::InfiniteFuture()) {
    deadline.at = scheduled;
    turn.state.deadlines.erase(deadline);
  }
  scheduled = deadline.at = to;
  if (to != absl::InfiniteFuture()) turn.state.deadlines.insert(deadline);
}

// Describes why the buffer's content goes, for people.
LastHolder HowItGoes(const Turn& turn, const Buffer& buffer) {
  const Transaction* head = HeadOf(*buffer.replica);
  const bool drops = buffer.content->complete && buffer.content->committed && head != nullptr &&
                     (head->is_filling() || head->is_draining());
  if (drops) {
    return {head->event, buffer.replica->group->name,
            absl::StrCat("goes with an ", std::string(OperationKindName(head->kind())),
                         " that drops it"),
            /*meant=*/true};
  }
  const std::string name = NameOf(buffer).ToString();
  if (!buffer.content->complete) return {EventId(), name, "had not yet received all of it"};
  if (turn.worker_leaves) return {EventId(), name, "has left", /*meant=*/true};
  if (buffer.drained_while_away) {
    return {EventId(), name, kUnpublishedWhileAway, /*meant=*/true};
  }
  return {EventId(), name, "is gone"};
}

// True when the buffer is the last holder of a shard of the latest or a retained version, in a form
// that has all its shards somewhere.
bool IsLastHolder(const Turn& turn, const Buffer& buffer) {
  const Shard& shard = *buffer.shard;
  const auto is_other = [&](const auto& holder) {
    return holder.second != &buffer && HasOrGets(*holder.second);
  };
  const Model& model = *shard.version->model;
  const bool matters = MayRetain(model.durable) || shard.version->info.sequence == LatestOf(model);
  if (!matters || turn.state.adopting || !HasOrGets(buffer)) return false;
  if (std::any_of(shard.holders.begin(), shard.holders.end(), is_other)) return false;
  return IsSomewhere(*shard.version, shard.key.form);
}

void NoteLastHolder(Turn& turn, const Buffer& buffer, LastHolder last) {
  const Version& version = *buffer.shard->version;
  turn.forms_left[{version.model->key, version.info.sequence, buffer.shard->key.form}] =
      std::move(last);
}

// Moves committed content to Buffer::displaced. Does nothing for content that is not committed, or
// that was refused and nobody may come back to: what was displaced before stays.
void RememberDisplaced(Buffer& buffer) {
  const bool committed =
      buffer.content.has_value() && buffer.content->committed && !buffer.content->refused;
  if (!TH_MUTATE(kForgetDisplaced, committed, (static_cast<void>(committed), false))) return;
  ForgetDisplaced(buffer);
  buffer.displaced = std::make_unique<Content>(*buffer.content);
  ++buffer.shard->version->displaced_buffers;
}

// Leaves the shard: no entry of it names the buffer as a holder any more.
void LeaveShard(Turn& turn, Buffer& buffer) {
  Shard& shard = *buffer.shard;
  const bool was_whole = buffer.content->complete && !buffer.content->refused;
  if (IsLastHolder(turn, buffer)) NoteLastHolder(turn, buffer, HowItGoes(turn, buffer));
  SetIndexed(buffer, std::nullopt);
  CountPromising(buffer, false);
  CountStaying(turn, buffer, false);
  CountPublisher(turn, buffer, false);
  CountInSite(turn, buffer, false, false);
  SetSources(turn, shard, buffer.address, {});
  shard.holders.erase(buffer.address);
  shard.waiting.erase(buffer.address);
  shard.leaving.erase(buffer.address);
  buffer.content.reset();
  buffer.shard = nullptr;
  DropSource(turn, shard, buffer.address, was_whole);
  WakeWaiting(turn, shard);
}

}  // namespace

void ForgetDisplaced(Buffer& buffer) {
  if (buffer.displaced == nullptr) return;
  --FindVersion(*buffer.replica->group->model, buffer.displaced->version)->displaced_buffers;
  buffer.displaced.reset();
}

Shard& EnsureShard(Turn& turn, Version& version, const ShardKey& key) {
  auto [it, created] = version.shards.try_emplace(key);
  Shard& shard = it->second;
  if (created) {
    shard.version = &version;
    shard.key = key;
    turn.state.layouts[key.layout].shards++;
    version.counted_as_sealed = false;
  }
  return shard;
}

Shard* FindShard(Version& version, const ShardKey& key) {
  auto found = version.shards.find(key);
  return found == version.shards.end() ? nullptr : &found->second;
}

ShardKey ShardKeyOf(const Buffer& buffer) { return {buffer.form, buffer.layout}; }

void UnindexLabel(Version& version) {
  Model& model = *version.model;
  const auto label = model.labels.find(version.info.label.text());
  const bool has_it = label != model.labels.end() && label->second == version.info.sequence;
  if (has_it) model.labels.erase(label);
}

void ClearLabel(Version& version) {
  UnindexLabel(version);
  version.info.label = VersionLabel();
}

void ClaimLabel(Turn& turn, Version& version) {
  Model& model = *version.model;
  const auto [label, is_free] =
      model.labels.try_emplace(version.info.label.text(), version.info.sequence);
  const VersionSequence before = label->second;
  if (is_free || before == version.info.sequence) return;
  label->second = version.info.sequence;
  Version& other = model.versions.at(before);
  other.info.label = VersionLabel();
  const bool needed =
      other.announced || before == model.durable.high_water || model.under_way.contains(before);
  if (!needed) EraseVersion(turn, other);
}

void EraseVersion(Turn& turn, Version& version) {
  for (const auto& [key, shard] : version.shards) {
    auto layout = turn.state.layouts.find(key.layout);
    if (--layout->second.shards == 0 && layout->second.buffers.empty()) {
      ForgetLayout(turn.state, key.layout);
    }
  }
  for (const auto& [key, seeding] : version.site_seedings) {
    for (const ReplicaId id : seeding.filling) FindReplica(turn.state, id)->fills_in.clear();
  }
  Model& model = *version.model;
  UnindexLabel(version);
  model.attribute_bytes -= MemoryOf(version.info.attributes);
  const VersionSequence sequence = version.info.sequence;  // a copy: the record dies next
  model.versions.erase(sequence);
}

void SetContent(Turn& turn, Buffer& buffer, Version& version, Content content) {
  Shard& shard = EnsureShard(turn, version, ShardKeyOf(buffer));
  if (content.committed) {
    ForgetDisplaced(buffer);
  } else {
    RememberDisplaced(buffer);
  }
  if (buffer.shard != nullptr && buffer.shard != &shard) {
    // The fill brings the new content: LeaveShard, which ends what the old shard had, is not to see
    // it.
    std::unique_ptr<Fill> fill;
    fill.swap(buffer.fill);
    LeaveShard(turn, buffer);
    buffer.fill.swap(fill);
  }
  content.version = version.info.sequence;
  buffer.content = std::move(content);
  buffer.drained_while_away = false;
  buffer.shard = &shard;
  shard.holders.emplace(buffer.address, &buffer);
  Reindex(turn, buffer);
}

void ClearContent(Turn& turn, Buffer& buffer) {
  DisplaceContent(turn, buffer);
  ForgetDisplaced(buffer);
}

void DisplaceContent(Turn& turn, Buffer& buffer) {
  RememberDisplaced(buffer);
  ClearFill(turn, buffer);
  if (buffer.shard != nullptr) LeaveShard(turn, buffer);
}

void RefuseContent(Turn& turn, Buffer& buffer, const LastHolder& last) {
  if (IsLastHolder(turn, buffer)) NoteLastHolder(turn, buffer, last);
  buffer.content->refused = true;
  Reindex(turn, buffer);
  DropSource(turn, *buffer.shard, buffer.address, /*was_whole=*/false);
}

void CommitContent(Buffer& buffer) {
  buffer.content->committed = true;
  ForgetDisplaced(buffer);
}

void ClearFill(Turn& turn, Buffer& buffer) {
  SetRetry(turn, buffer, absl::InfiniteFuture());
  SetRecheck(turn, buffer, absl::InfiniteFuture());
  buffer.fill.reset();
  buffer.sources_confirmed = false;
  turn.to_assign.erase(buffer.address);
  if (buffer.shard == nullptr) return;
  buffer.shard->waiting.erase(buffer.address);
  SetSources(turn, *buffer.shard, buffer.address, {});
}

void SetPhase(Turn& turn, Replica& replica, ReplicaPhase phase, VersionSequence version) {
  LeaveSiteSeeding(replica);
  replica.phase = phase;
  replica.version = version;
  const bool in_use = phase == ReplicaPhase::kHolding && !IsTemporary(replica.role);
  if (in_use) replica.group->came_to = version;
  if (phase == ReplicaPhase::kFilling) JoinSiteSeeding(turn, replica);
  for (auto& [rank, buffer] : replica.buffers) Reindex(turn, *buffer);
}

void Reserve(Turn& turn, Replica& replica, const SiteCopyReservation& reservation) {
  EndReservation(turn, replica);
  replica.reservation = reservation;
  turn.state.deadlines.insert(DeadlineOfReservation(replica));
  Version& version = *FindVersion(*replica.group->model, reservation.version);
  version.site_seedings[{replica.form, reservation.site}].reserved_by = replica.id;
}

void EndReservation(Turn& turn, Replica& replica) {
  if (!replica.reservation.has_value()) return;
  turn.state.deadlines.erase(DeadlineOfReservation(replica));
  const SiteCopyReservation reservation = *std::exchange(replica.reservation, std::nullopt);
  Version* version = FindVersion(*replica.group->model, reservation.version);
  if (version == nullptr) return;
  const auto seeding = version->site_seedings.find({replica.form, reservation.site});
  if (seeding == version->site_seedings.end() || seeding->second.reserved_by != replica.id) return;
  seeding->second.reserved_by = ReplicaId();
  EraseIfOver(*version, seeding);
}

void InvalidateReplica(Turn& turn, Replica& replica) {
  SetPhase(turn, replica, ReplicaPhase::kIdle);
  for (auto& [rank, buffer] : replica.buffers) {
    if (buffer->shard != nullptr) {
      DropSource(turn, *buffer->shard, buffer->address, buffer->content->complete);
    }
  }
}

void Reindex(Turn& turn, Buffer& buffer) {
  if (buffer.shard == nullptr) return;
  const bool candidate = IsCandidate(buffer);
  const bool promising = buffer.content->complete && IsCandidateOnceAgreed(buffer);
  const bool was_candidate = buffer.indexed.has_value();
  if (candidate != was_candidate || promising != buffer.counted_promising) {
    WakeWaiting(turn, *buffer.shard);
    if (candidate && !buffer.worker->leaving()) MoveReadersOfLeaving(turn, *buffer.shard);
  }
  if (buffer.worker->leaving()) {
    buffer.shard->leaving.insert(buffer.address);
  } else {
    buffer.shard->leaving.erase(buffer.address);
  }
  CountPromising(buffer, promising);
  const Replica& replica = *buffer.replica;
  const bool whole = promising && candidate && !buffer.worker->leaving();
  const bool lasts = whole && !buffer.worker->spot && replica.phase == ReplicaPhase::kHolding;
  CountStaying(turn, buffer, lasts && replica.role != BufferRole::kStaged);
  CountPublisher(turn, buffer, MaySendRoot(*buffer.content));
  CountInSite(turn, buffer, whole, lasts && !IsTemporary(replica.role));
  SetIndexed(buffer, candidate ? std::optional(KeyOf(turn.state, buffer, turn.now)) : std::nullopt);
  const bool only_read = replica.unwanted && !replica.released;
  if (only_read && ReaderCount(*buffer.shard, buffer.address) == 0) {
    turn.to_review.insert(replica.group->model->key);
  }
}

void ReindexAll(Turn& turn, Worker& worker) {
  for (auto& [id, buffer] : worker.buffers) Reindex(turn, buffer);
}

void ReindexAround(Turn& turn, Worker& worker) {
  ReindexAll(turn, worker);
  for (const auto& [id, buffer] : worker.buffers) {
    if (buffer.shard == nullptr) continue;
    for (const BufferAddress& source : buffer.sources) ReindexAddress(turn, *buffer.shard, source);
  }
}

CandidateKey KeyOf(const RegistryState& state, const Buffer& buffer, absl::Time now) {
  const Content& content = *buffer.content;
  const uint32_t chain = content.complete ? 0 : content.chain;
  return {.deprioritized = buffer.worker->leaving() ||
                           IsDeprioritized(state.limits.scheduler, content.publisher, chain),
          .suspected = IsSuspected(*buffer.worker, now),
          .readers = ReadersThatKeepTheirPlace(buffer, buffer),
          .publisher = content.publisher,
          .buffer = buffer.address,
          .complete = content.complete};
}

bool IsSomewhere(const Version& version, const std::string& form) {
  return EveryShardOf(version, form, [](const Shard& shard) {
    return std::any_of(shard.holders.begin(), shard.holders.end(),
                       [](const auto& holder) { return HasOrGets(*holder.second); });
  });
}

bool MaySendRoot(const Content& content) {
  return (content.publisher || content.checksums.has_value()) && !content.refused;
}

bool IsUnsealable(const Shard& shard) { return !shard.root.has_value() && shard.publishers == 0; }

bool IsCandidate(const Buffer& buffer) {
  return IsCandidateOnceAgreed(buffer) && buffer.content->replica_agreed &&
         buffer.content->agreed && buffer.worker->connection.has_value();
}

void SetSources(Turn& turn, Shard& shard, const BufferAddress& reader,
                std::vector<BufferAddress> sources) {
  const std::vector<BufferAddress> before = SourcesOf(shard, reader);
  for (const BufferAddress& source : before) EraseEdge(shard, reader, source);
  for (const BufferAddress& source : sources) shard.readers_of[source].insert(reader);
  for (const BufferAddress& source : before) ReindexAddress(turn, shard, source);
  for (const BufferAddress& source : sources) ReindexAddress(turn, shard, source);
  if (auto holder = shard.holders.find(reader); holder != shard.holders.end()) {
    holder->second->sources = std::move(sources);
  }
}

void DropSource(Turn& turn, Shard& shard, const BufferAddress& source, bool was_whole) {
  auto found = shard.readers_of.find(source);
  if (found == shard.readers_of.end()) return;
  const absl::btree_set<BufferAddress> readers = found->second;
  for (const BufferAddress& reader : readers) {
    EraseEdge(shard, reader, source);
    Buffer* buffer = FindBuffer(turn.state, reader);
    if (buffer == nullptr) continue;
    buffer->sources_confirmed = false;
    if (buffer->fill == nullptr) continue;
    turn.to_assign.insert(reader);
    if (was_whole) buffer->fill->grace_ends = turn.now + kLastHolderGrace;
  }
  ReindexAddress(turn, shard, source);
}

Buffer* HolderAt(const Shard& shard, const BufferAddress& address) {
  const auto found = shard.holders.find(address);
  return found == shard.holders.end() ? nullptr : found->second;
}

std::vector<Buffer*> ReadersOf(const Shard& shard, const BufferAddress& source) {
  std::vector<Buffer*> readers;
  const auto found = shard.readers_of.find(source);
  if (found == shard.readers_of.end()) return readers;
  for (const BufferAddress& address : found->second) {
    if (Buffer* const reader = HolderAt(shard, address)) readers.push_back(reader);
  }
  return readers;
}

Distance DistanceTo(const Buffer& reader, const Buffer& source) {
  return DistanceBetween(reader.worker->location, source.worker->location);
}

const std::vector<BufferAddress>& SourcesOf(const Shard& shard, const BufferAddress& reader) {
  static const auto& none = *new std::vector<BufferAddress>;
  auto found = shard.holders.find(reader);
  return found == shard.holders.end() ? none : found->second->sources;
}

bool FillsFrom(const Shard& shard, const BufferAddress& reader, const BufferAddress& source) {
  const std::vector<BufferAddress>& sources = SourcesOf(shard, reader);
  return std::find(sources.begin(), sources.end(), source) != sources.end();
}

uint32_t ReaderCount(const Shard& shard, const BufferAddress& source) {
  auto found = shard.readers_of.find(source);
  return found == shard.readers_of.end() ? 0 : static_cast<uint32_t>(found->second.size());
}

bool WouldCycle(const Shard& shard, const BufferAddress& reader, const BufferAddress& source) {
  absl::btree_set<BufferAddress> seen = {source};
  std::vector<BufferAddress> frontier = {source};
  while (!frontier.empty()) {
    const BufferAddress next = frontier.back();
    frontier.pop_back();
    if (next == reader) return true;
    for (const BufferAddress& above : SourcesOf(shard, next)) {
      if (seen.insert(above).second) frontier.push_back(above);
    }
  }
  return false;
}

void WakeWaiting(Turn& turn, Shard& shard) {
  turn.to_assign.insert(shard.waiting.begin(), shard.waiting.end());
}

void MoveReadersOf(Turn& turn, const Shard& shard, const BufferAddress& source) {
  auto found = shard.readers_of.find(source);
  if (found == shard.readers_of.end()) return;
  for (const BufferAddress& reader : found->second) {
    const Buffer* buffer = FindBuffer(turn.state, reader);
    if (buffer != nullptr && buffer->fill != nullptr) turn.to_move.insert(reader);
  }
}

void MoveReadersOfLeaving(Turn& turn, const Shard& shard) {
  for (const BufferAddress& source : shard.leaving) MoveReadersOf(turn, shard, source);
}

void SetRetry(Turn& turn, Buffer& buffer, absl::Time at) {
  if (buffer.fill == nullptr) return;
  MoveDeadline(turn, {.kind = DeadlineKind::kRetry, .buffer = buffer.address},
               buffer.fill->retry_at, at);
}

void SetRecheck(Turn& turn, Buffer& buffer, absl::Time at) {
  if (buffer.fill == nullptr) return;
  MoveDeadline(turn, {.kind = DeadlineKind::kThroughput, .buffer = buffer.address},
               buffer.fill->throughput.recheck_at, at);
}

std::vector<std::string> PlacesOf(const Location& location) {
  std::vector<std::string> places;
  for (NearPlace& near : NearPlacesOf(location)) places.push_back(std::move(near.name));
  if (!location.site.empty()) places.push_back(SitePlaceOf(location));
  places.emplace_back(kAllCandidates);
  return places;
}

std::string SitePlaceOf(const Location& location) {
  return location.site.empty() ? std::string(kAllCandidates) : absl::StrCat("site ", location.site);
}

std::vector<NearPlace> NearPlacesOf(const Location& location) {
  std::vector<NearPlace> places;
  if (!location.host.empty()) {
    places.push_back({absl::StrCat("host ", location.host), Distance::kSameHost});
  }
  if (!location.rack.empty()) {
    places.push_back(
        {absl::StrCat("rack ", location.site, " ", location.rack), Distance::kSameRack});
  }
  return places;
}

}  // namespace th::registry
