#include "th/reference_registry/buffer_registration.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "th/reference_registry/publishing.h"
#include "th/reference_registry/retention.h"
#include "th/reference_registry/transactions.h"
#include "th/registry_state/claims.h"
#include "th/registry_state/holders.h"
#include "th/status/status_macros.h"

namespace th::registry {
namespace {

absl::Status CheckSizes(const AnnouncedBuffer& announced, const ShardLayout& layout) {
  if (announced.bytes == layout.bytes() && announced.segment_count == layout.segment_count()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("buffer ", announced.buffer_name, " says ", announced.bytes, " bytes in ",
                   announced.segment_count, " segments, and its layout has ", layout.bytes(),
                   " in ", layout.segment_count()));
}

absl::Status CheckUnchanged(const Buffer& known, const AnnouncedBuffer& announced) {
  if (known.name == announced.buffer_name && known.form == announced.form &&
      known.layout == announced.layout) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("buffer ", announced.buffer.value, " of ", NameOf(known).ToString(), " is ",
                   known.name, " with another name, form or layout; unregister it first"));
}

absl::Status CheckFitsGroup(const Worker& worker, const AnnouncedBuffer& announced) {
  auto replica = worker.group->replicas.find(announced.buffer_name);
  if (replica == worker.group->replicas.end()) return absl::OkStatus();
  if (replica->second.role != announced.role) {
    return absl::InvalidArgumentError(absl::StrCat(
        "buffer ", announced.buffer_name, " is ", BufferRoleName(announced.role), " at rank ",
        worker.name.ToString(), " and ", BufferRoleName(replica->second.role),
        " at another rank; choose another name"));
  }
  if (replica->second.staged_for != announced.staged_for) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer ", announced.buffer_name, " is staged for ", announced.staged_for,
                     " at rank ", worker.name.ToString(), " and for ", replica->second.staged_for,
                     " at another rank; choose another name"));
  }
  if (replica->second.form == announced.form) return absl::OkStatus();
  const auto& [rank, other] = *replica->second.buffers.begin();
  return absl::InvalidArgumentError(
      absl::StrCat("buffer ", announced.buffer_name, " has form ", announced.form, " at rank ",
                   worker.name.ToString(), " and form ", replica->second.form, " at rank ",
                   NameOf(*other).ToString(), "; all ranks must register it in one form"));
}

absl::Status CheckLimits(const RegistryState& state, const Worker& worker,
                         const AnnouncedBuffer& announced) {
  const RegistryLimits& limits = state.limits;
  if (worker.buffers.size() >= limits.max_buffers_per_worker) {
    return absl::ResourceExhaustedError(
        absl::StrCat(worker.name.ToString(), " has ", worker.buffers.size(),
                     " buffers, and max_buffers_per_worker is ", limits.max_buffers_per_worker));
  }
  if (!state.layouts.contains(announced.layout) && state.layouts.size() >= limits.max_layouts) {
    return absl::ResourceExhaustedError(absl::StrCat("the server knows ", state.layouts.size(),
                                                     " layouts, and max_layouts is ",
                                                     limits.max_layouts));
  }
  return absl::OkStatus();
}

absl::Status CheckNameIsFree(const Worker& worker, const AnnouncedBuffer& announced) {
  for (const auto& [id, other] : worker.buffers) {
    if (other.name != announced.buffer_name) continue;
    return absl::AlreadyExistsError(absl::StrCat("buffer ", id.value, " of ",
                                                 worker.name.ToString(), " is named ", other.name,
                                                 " already; choose another name"));
  }
  return absl::OkStatus();
}

Replica& EnsureReplica(Turn& turn, Group& group, const AnnouncedBuffer& announced) {
  auto [it, created] = group.replicas.try_emplace(announced.buffer_name);
  Replica& replica = it->second;
  if (created) {
    turn.state.last_replica = turn.state.last_replica.Next();
    replica.id = turn.state.last_replica;
    replica.group = &group;
    replica.buffer_name = announced.buffer_name;
    replica.form = announced.form;
    replica.role = announced.role;
    replica.staged_for = announced.staged_for;
    if (IsHostCopy(replica.role)) group.model->host_copies.insert(replica.id);
    turn.state.replicas[replica.id] = &replica;
  }
  return replica;
}

Buffer& AddBuffer(Turn& turn, Worker& worker, const AnnouncedBuffer& announced) {
  Replica& replica = EnsureReplica(turn, *worker.group, announced);
  Buffer& buffer = worker.buffers[announced.buffer];
  buffer.address = {worker.id, announced.buffer};
  buffer.worker = &worker;
  buffer.replica = &replica;
  buffer.name = announced.buffer_name;
  buffer.form = announced.form;
  buffer.layout = announced.layout;
  buffer.bytes = announced.bytes;
  buffer.segment_count = announced.segment_count;
  replica.buffers[worker.name.rank] = &buffer;
  turn.state.layouts[announced.layout].buffers.insert(buffer.address);
  return buffer;
}

// A staged copy is released at each rank by itself: the others may be at the next Stage already,
// which this rank has not begun.
bool IsLateRelease(const Buffer& buffer) {
  Replica& replica = *buffer.replica;
  const Transaction* head = HeadOf(replica);
  return replica.role == BufferRole::kStaged && head != nullptr && head->has_begun() &&
         !head->participants.contains(RankOf(buffer));
}

// One worker at a time is asked, so that a layout crosses once.
void WantLayout(Turn& turn, LayoutRecord& record, const Digest& digest, const Worker& from) {
  record.asked = from.id;
  record.asked_at = turn.now;
  Send(turn, from, LayoutWanted{digest});
}

void AnswerRegistration(Turn& turn, Buffer& buffer, absl::Status status) {
  if (std::exchange(buffer.registration_owed, false)) buffer.worker->heartbeats = 0;
  Send(turn, *buffer.worker,
       BufferRegistered{.buffer = buffer.address.buffer, .status = std::move(status)});
}

void EndOperationsOf(Turn& turn, Replica& replica, const absl::Status& status) {
  while (!replica.pending.empty()) {
    FailOperation(turn, replica, replica.pending.begin()->first, status);
  }
}

// ConnectedWorkerWith looks at no more buffers of a layout than this. Where all of their workers
// are away, the next worker that announces the layout is asked.
constexpr size_t kMaxLookedAt = 64;

// A worker that has a stream and a buffer with this layout; null when there is none.
const Worker* ConnectedWorkerWith(const RegistryState& state, const LayoutRecord& record,
                                  WorkerId except) {
  size_t looked_at = 0;
  for (const BufferAddress& address : record.buffers) {
    if (++looked_at > kMaxLookedAt) return nullptr;
    const Worker* worker = FindWorker(state, address.worker);
    if (worker->id != except && worker->connection.has_value()) return worker;
  }
  return nullptr;
}

// Asks another worker than the one that was asked, or, where there is none, the next that announces
// the layout.
void AskAnother(Turn& turn, LayoutRecord& record, const Digest& digest) {
  const WorkerId asked_before = std::exchange(record.asked, WorkerId());
  const Worker* other = ConnectedWorkerWith(turn.state, record, asked_before);
  if (other != nullptr) WantLayout(turn, record, digest, *other);
}

// Records that the name is free again: the next buffer of this name, whose operations have the same
// numbers, is not to be given the results of this one's.
void NoteFreed(const Buffer& buffer) {
  const Replica& replica = *buffer.replica;
  const bool numbered = !replica.results.empty() || !replica.pending.empty() ||
                        replica.finished != OperationNumber() ||
                        buffer.last_started != OperationNumber();
  if (numbered && !HasNameOfItsOwn(replica.role)) replica.group->freed.Add(buffer.name);
}

absl::Status CheckLayoutBytes(const RegistryState& state, const ShardLayout& layout) {
  const uint64_t limit = state.limits.max_layout_bytes;
  if (layout.encoded_bytes() <= limit - std::min(limit, state.layout_bytes)) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("its layout has ", layout.encoded_bytes(), " bytes; the server keeps ",
                   state.layout_bytes, " bytes of layouts, and max_layout_bytes is ", limit));
}

// The buffer's registration is answered with `why`, and the buffer removed.
void RefuseRegistration(Turn& turn, const BufferAddress& address, absl::Status why) {
  AnswerRegistration(turn, *FindBuffer(turn.state, address), std::move(why));
  RemoveBuffer{address}.Apply(turn);
}

// Every buffer that waits for the layout's arrival is refused and removed.
void RefuseLayout(Turn& turn, const Digest& digest, const absl::Status& why) {
  LayoutRecord& record = turn.state.layouts[digest];
  record.asked = WorkerId();
  std::vector<BufferAddress> refused;
  for (const BufferAddress& address : record.buffers) {
    if (FindBuffer(turn.state, address)->registration_owed) refused.push_back(address);
  }
  for (const BufferAddress& address : refused) RefuseRegistration(turn, address, why);
}

bool HasBufferOf(const LayoutRecord& record, WorkerId worker) {
  const auto first = record.buffers.lower_bound({worker, BufferId()});
  return first != record.buffers.end() && first->worker == worker;
}

void ReleaseLayout(Turn& turn, const Buffer& buffer) {
  auto found = turn.state.layouts.find(buffer.layout);
  LayoutRecord& record = found->second;
  record.buffers.erase(buffer.address);
  if (record.buffers.empty() && record.shards == 0) {
    ForgetLayout(turn.state, buffer.layout);
    return;
  }
  const WorkerId worker = buffer.address.worker;
  if (record.asked == worker && !HasBufferOf(record, worker)) {
    AskAnother(turn, record, buffer.layout);
  }
}

absl::Status LayoutNeverCame(const Buffer& buffer, absl::Duration waited) {
  return absl::DeadlineExceededError(absl::StrCat(
      "rank ", NameOf(buffer).ToString(), " was asked for the layout of buffer ", buffer.name, " ",
      absl::FormatDuration(waited), " ago and has not sent it; register the buffer again"));
}

}  // namespace

absl::Status AnnounceBuffer::CanApply(const RegistryState& state) const {
  const Worker& own = *FindWorker(state, worker);
  if (!CanHaveCome(announced.counts_after, state.epoch)) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer ", announced.buffer_name, " counts after generation ",
                     announced.counts_after.value, ", beyond all that a group can reach"));
  }
  TH_RETURN_IF_ERROR(ValidateName("buffer", announced.buffer_name));
  TH_RETURN_IF_ERROR(ValidateName("form", announced.form));
  if (announced.layout.empty() || announced.segment_count > announced.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("buffer ", announced.buffer_name,
                                                   " has no layout, or more segments than bytes"));
  }
  if ((announced.role == BufferRole::kStaged) != !announced.staged_for.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "buffer ", announced.buffer_name, " is ", BufferRoleName(announced.role),
        announced.staged_for.empty() ? " and does not say for which buffer"
                                     : ", and only a staged copy is for another buffer"));
  }
  if (const ShardLayout* layout = FindLayoutOf(state, announced.layout)) {
    TH_RETURN_IF_ERROR(CheckSizes(announced, *layout));
  }
  if (auto known = own.buffers.find(announced.buffer); known != own.buffers.end()) {
    return CheckUnchanged(known->second, announced);
  }
  TH_RETURN_IF_ERROR(CheckLimits(state, own, announced));
  TH_RETURN_IF_ERROR(CheckNameIsFree(own, announced));
  return CheckFitsGroup(own, announced);
}

void AnnounceBuffer::Apply(Turn& turn) const {
  Worker& own = *FindWorker(turn.state, worker);
  auto known = own.buffers.find(announced.buffer);
  Buffer& buffer = known == own.buffers.end() ? AddBuffer(turn, own, announced) : known->second;
  const bool moved_on = buffer.generation != announced.generation;
  buffer.generation = announced.generation;
  if (moved_on && buffer.shard != nullptr) {
    // The worker has cut the readers of the generation before: they are assigned anew while the
    // buffer still admits them, and so are those whom it had refused.
    const bool was_whole = buffer.content->complete && !buffer.content->refused;
    DropSource(turn, *buffer.shard, buffer.address, was_whole);
    WakeWaiting(turn, *buffer.shard);
  }
  LayoutRecord& record = turn.state.layouts[announced.layout];
  const bool asked_another = record.asked != WorkerId() && record.asked != worker;
  if (record.layout.has_value() || asked_another) {
    return AnswerRegistration(turn, buffer, absl::OkStatus());
  }
  buffer.registration_owed = true;
  WantLayout(turn, record, announced.layout, own);
}

void FailReceiveOfGroup(Turn& turn, const Worker& refused, const AnnouncedBuffer& announced,
                        const absl::Status& why) {
  const auto found = refused.group->replicas.find(announced.buffer_name);
  if (announced.role != BufferRole::kStreaming || found == refused.group->replicas.end()) return;
  Replica& replica = found->second;
  const bool has_one = replica.buffers.contains(refused.name.rank);
  if (replica.role != BufferRole::kStreaming || has_one || replica.finished != OperationNumber()) {
    return;
  }
  // A streaming replica has one operation: a receive.
  const OperationNumber receive = replica.finished.Next();
  const absl::Status status(why.code(),
                            absl::StrCat("rank ", refused.name.ToString(), ": ", why.message()));
  if (replica.pending.contains(receive)) return FailOperation(turn, replica, receive, status);
  FinishOperation(turn, replica, receive, {.kind = OperationKind::kUpdate, .status = status});
}

absl::Status StoreLayout::CanApply(const RegistryState& state) const {
  const auto found = state.layouts.find(layout->digest());
  const std::string name = layout->digest().ShortHex();
  if (found == state.layouts.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no buffer is registered with layout ", name));
  }
  if (found->second.layout.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat("the server has layout ", name, " already"));
  }
  return absl::OkStatus();
}

void StoreLayout::Apply(Turn& turn) const {
  if (absl::Status room = CheckLayoutBytes(turn.state, *layout); !room.ok()) {
    return RefuseLayout(turn, layout->digest(), room);
  }
  LayoutRecord& record = turn.state.layouts[layout->digest()];
  record.layout = *layout;
  turn.state.layout_bytes += layout->encoded_bytes();
  record.asked = WorkerId();
  std::vector<BufferAddress> wrong;
  for (const BufferAddress& address : record.buffers) {
    Buffer& buffer = *FindBuffer(turn.state, address);
    absl::Status status = CheckSizes(
        {.buffer_name = buffer.name, .bytes = buffer.bytes, .segment_count = buffer.segment_count},
        *layout);
    // A buffer whose registration was answered before the layout came takes the layout's sizes.
    buffer.bytes = layout->bytes();
    buffer.segment_count = layout->segment_count();
    SealIfNoChecksums(turn, buffer);
    if (!buffer.registration_owed) continue;
    if (!status.ok()) wrong.push_back(address);
    AnswerRegistration(turn, buffer, std::move(status));
  }
  for (const BufferAddress& address : wrong) RemoveBuffer{address}.Apply(turn);
}

absl::Status ResetContent::CanApply(const RegistryState& state) const {
  if (FindBuffer(state, buffer) != nullptr) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("buffer ", buffer.buffer.value, " is not registered"));
}

void ResetContent::Apply(Turn& turn) const {
  Buffer& own = *FindBuffer(turn.state, buffer);
  Replica& replica = *own.replica;
  const std::string name = NameOf(own).ToString();
  if (IsLateRelease(own)) return ClearContent(turn, own);
  if (Transaction* head = HeadOf(replica); head != nullptr && head->has_begun()) {
    FailOperation(turn, replica, head->number,
                  absl::AbortedError(absl::StrCat("rank ", name, " reset its buffer")));
  }
  const bool held = own.content.has_value();
  ClearContent(turn, own);
  if (held && replica.phase != ReplicaPhase::kIdle) InvalidateReplica(turn, replica);
}

absl::Status RemoveBuffer::CanApply(const RegistryState& state) const {
  return ResetContent{buffer}.CanApply(state);
}

void RemoveBuffer::Apply(Turn& turn) const {
  Buffer& own = *FindBuffer(turn.state, buffer);
  Worker& owner = *own.worker;
  NoteFreed(own);
  const std::string why = absl::StrCat("unregistered buffer ", own.name);
  EndOperationsOf(turn, *own.replica,
                  absl::UnavailableError(absl::StrCat("rank ", NameOf(own).ToString(), " ", why)));
  DetachBuffer(turn, own, why, OthersPublications::kAreLost);
  owner.buffers.erase(buffer.buffer);
}

namespace {

// Erases a replica that has no buffer any more, and every index entry that names it.
void EraseReplica(Turn& turn, Replica& replica) {
  EndReservation(turn, replica);
  if (replica.role == BufferRole::kOffload) StopAwaiting(replica);
  turn.state.replicas.erase(replica.id);
  turn.state.waiting_for_recovery.erase(replica.id);
  turn.to_evaluate.erase(replica.id);
  replica.group->model->host_copies.erase(replica.id);
  replica.group->model->waiting_for_room.erase(replica.id);
  const std::string name = replica.buffer_name;  // a copy: the record dies next
  replica.group->replicas.erase(name);
}

// The version that the rank publishes, or comes back to if its update fails; 0: none.
VersionSequence PublishedBy(const Buffer& buffer) {
  if (IsHostCopy(buffer.replica->role)) return VersionSequence();
  if (HoldsPublication(buffer)) return buffer.content->version;
  const Content* displaced = buffer.displaced.get();
  return displaced != nullptr && displaced->publisher ? displaced->version : VersionSequence();
}

}  // namespace

void DetachBuffer(Turn& turn, Buffer& buffer, absl::string_view why, OthersPublications others) {
  Replica& replica = *buffer.replica;
  const RankName gone = NameOf(buffer);
  const bool lost = others == OthersPublications::kAreLost;
  const VersionSequence published = PublishedBy(buffer);
  if (lost && published != VersionSequence()) replica.publication_lost = published;
  ClearContent(turn, buffer);
  if (replica.phase != ReplicaPhase::kIdle) InvalidateReplica(turn, replica);
  if (IsHostCopy(replica.role)) turn.to_review.insert(replica.group->model->key);
  replica.buffers.erase(gone.rank);
  ReleaseLayout(turn, buffer);
  if (lost) LosePublication(turn, replica, gone, why);
  if (replica.buffers.empty()) EraseReplica(turn, replica);
}

namespace {

// Whoever waits for the answer to its registration hears why there is none; another worker that has
// a buffer of this layout is asked instead.
void EndLayoutWait(Turn& turn, const Worker& worker, const Digest& digest) {
  LayoutRecord& record = turn.state.layouts.at(digest);
  const absl::Duration waited = turn.now - record.asked_at;
  AskAnother(turn, record, digest);
  std::vector<BufferAddress> owed;
  for (const auto& [id, buffer] : worker.buffers) {
    if (buffer.layout == digest && buffer.registration_owed) owed.push_back(buffer.address);
  }
  for (const BufferAddress& address : owed) {
    const Buffer& buffer = *FindBuffer(turn.state, address);
    RefuseRegistration(turn, address, LayoutNeverCame(buffer, waited));
  }
}

}  // namespace

void EndLayoutWaits(Turn& turn, const Worker& worker) {
  absl::btree_set<Digest> late;
  for (const auto& [id, buffer] : worker.buffers) {
    auto found = turn.state.layouts.find(buffer.layout);
    if (found == turn.state.layouts.end() || found->second.asked != worker.id) continue;
    if (turn.now - found->second.asked_at < turn.state.limits.layout_timeout) continue;
    late.insert(buffer.layout);
  }
  for (const Digest& digest : late) EndLayoutWait(turn, worker, digest);
}

void AskOthersForLayouts(Turn& turn, const Worker& worker) {
  for (const auto& [id, buffer] : worker.buffers) {
    auto found = turn.state.layouts.find(buffer.layout);
    if (found == turn.state.layouts.end() || found->second.asked != worker.id) continue;
    AskAnother(turn, found->second, buffer.layout);
  }
}

}  // namespace th::registry
