#include "th/worker_session/announcement.h"

namespace th::session {
namespace {

// The fill in progress. Its segments may be read already, its sources are edges that a new server
// must know before it assigns.
void AddFill(const Buffer& buffer, HeldVersion& held) {
  const Operation* update = FindUpdate(buffer);
  held.segments = buffer.held;
  if (update == nullptr) return;
  held.complete = update->update().phase == UpdatePhase::kShardDone;
  if (held.complete) return;
  for (const auto& [address, source] : update->update().sources) held.sources.push_back(address);
}

std::optional<HeldVersion> HeldBy(const Buffer& buffer) {
  const BufferState state = buffer.contract.state();
  const bool readable = state == BufferState::kPublished || state == BufferState::kFilling ||
                        state == BufferState::kUndefined;
  if (!readable || buffer.contract.version() == VersionSequence()) return std::nullopt;
  HeldVersion held;
  held.version = buffer.version;
  held.publisher = buffer.publisher;
  held.group_committed = buffer.group_committed;
  held.root = buffer.root;
  held.receipt = ReceiptOf(buffer);
  if (state == BufferState::kPublished) {
    held.complete = true;
  } else {
    AddFill(buffer, held);
  }
  return held;
}

}  // namespace

AnnouncedBuffer AnnouncementOf(const Buffer& buffer) {
  AnnouncedBuffer announced;
  announced.buffer = buffer.id;
  announced.buffer_name = buffer.name;
  announced.form = buffer.form;
  announced.layout = buffer.layout->digest();
  announced.bytes = buffer.layout->bytes();
  announced.segment_count = buffer.layout->segment_count();
  announced.generation = buffer.contract.generation();
  announced.held = HeldBy(buffer);
  announced.last_finished = buffer.last_finished;
  announced.role = buffer.role;
  announced.staged_for = buffer.staged_for;
  announced.counts_after = buffer.counts_after;
  return announced;
}

JoinRequest JoinRequestOf(const State& state) {
  const SessionOptions& options = state.options;
  JoinRequest request;
  request.hello = {kMinProtocolVersion, kProtocolVersion, 0, options.software};
  request.key = options.key;
  request.name = options.name;
  request.ranks = options.ranks;
  request.location = options.location;
  request.endpoints = options.endpoints;
  request.spot = options.spot;
  request.offload_limit_bytes = options.offload_limit_bytes;
  request.credentials = options.credentials;
  if (!state.link.ever_joined) return request;
  const Membership& membership = state.membership;
  request.resume = ResumeClaim{.worker = membership.worker,
                               .epoch = membership.epoch,
                               .group_generation = membership.group_generation,
                               .lineage = membership.lineage,
                               .cluster = membership.cluster,
                               .epoch_id = membership.epoch_id,
                               .secret = membership.secret};
  for (const auto& [id, buffer] : state.buffers) request.buffers.push_back(AnnouncementOf(buffer));
  return request;
}

}  // namespace th::session
