#include "th/worker_session/fill_reports.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/worker_session/operation.h"

namespace th::session {
namespace {

// The update whose fill goes on. Null: none.
Operation* FillOf(Buffer& buffer) {
  Operation* update = FindUpdate(buffer);
  const bool fills = update != nullptr && update->update().phase == UpdatePhase::kFilling &&
                     !update->verdict.has_value();
  return fills ? update : nullptr;
}

// The most that a message takes on the wire: its keys and framing, and two numbers below
// kMaxSegments a range, of which there are at most 1,024 (more lose their shortest).
constexpr uint64_t kBytesOfProgress = 56;
constexpr uint64_t kBytesOfRange = 8;
constexpr uint64_t kMaxRangesReported = 1024;
constexpr uint64_t kBytesOfThroughput = 40;
constexpr uint64_t kBytesOfFraming = 3;  // of a nested message or text of up to 16 KiB
uint64_t CostOf(const SegmentSet& segments, size_t throughputs) {
  return kBytesOfProgress + kBytesOfRange * std::min(segments.ranges().size(), kMaxRangesReported) +
         kBytesOfThroughput * throughputs;
}
// The last two, of a shard that is received whole, always fit.
constexpr uint64_t kBytesForTheEnd = 2 * (kBytesOfProgress + kBytesOfRange);

uint64_t ProgressBytesLeft(const UpdateOperation& update) {
  const uint64_t spent = update.progress_bytes + kBytesForTheEnd;
  return kMaxProgressBytes - std::min(spent, kMaxProgressBytes);
}

// Until the next message after one that cost `bytes`.
absl::Duration ProgressPause(const State& state, const UpdateOperation& update, uint64_t bytes) {
  const absl::Duration interval = state.membership.progress_interval;
  const uint64_t left = ProgressBytesLeft(update);
  if (left >= kMaxProgressBytes / 2) return interval;
  const double share = static_cast<double>(kMaxProgressBytes) / static_cast<double>(left + 1) / 2;
  return std::max(interval, absl::Seconds(bytes) / kProgressBytesPerSecond * share);
}

// The bytes and times of each source since progress was reported last.
std::vector<SourceThroughput> ThroughputsSinceSent(const UpdateOperation& update) {
  std::vector<SourceThroughput> since;
  for (const SourceThroughput& throughput : update.throughputs) {
    SourceThroughput next = throughput;
    for (const SourceThroughput& sent : update.throughputs_sent) {
      // A source that was opened again counts from zero again.
      if (sent.source != throughput.source || sent.waited > throughput.waited ||
          sent.bytes > throughput.bytes)
        continue;
      next.bytes -= sent.bytes;
      next.waited -= sent.waited;
    }
    if (next.waited > absl::ZeroDuration() && since.size() < kMaxThroughputsReported)
      since.push_back(next);
  }
  return since;
}

// The segments that nobody has to bring any more: a reader that receives a part lacks no more than
// the rest of that.
SegmentSet SettledOf(const Buffer& buffer) {
  SegmentSet settled = buffer.held;
  settled.AddAll(buffer.unwanted);
  return settled;
}

bool FitsProgress(const Buffer& buffer, const UpdateOperation& update) {
  return CostOf(SettledOf(buffer), ThroughputsSinceSent(update).size()) <=
         ProgressBytesLeft(update);
}

uint64_t CostOf(const TransportsUsed& transports) {
  uint64_t bytes = kBytesOfFraming;
  for (const std::string& name : transports.names) bytes += kBytesOfFraming + name.size();
  for (const PassedOver& one : transports.passed_over) {
    bytes += 4 * kBytesOfFraming + one.transport.size() + one.reason.size();
  }
  return bytes;
}

// The transports that the server has not heard of, where that costs little of what is left.
std::optional<TransportsUsed> TransportsToSend(const State& state, const Buffer& buffer,
                                               const UpdateOperation& update) {
  const bool is_heard = state.joined() && buffer.registered;
  if (!is_heard || update.transports == update.transports_sent) return std::nullopt;
  if (CostOf(update.transports) > ProgressBytesLeft(update) / 4) return std::nullopt;
  return update.transports;
}

void SendProgress(State& state, Buffer& buffer, Operation& fill, absl::Time now) {
  UpdateOperation& update = fill.update();
  FillProgress progress{fill.key, buffer.version.sequence, SettledOf(buffer),
                        ThroughputsSinceSent(update)};
  uint64_t bytes = CostOf(progress.segments, progress.throughputs.size());
  update.throughputs_sent = update.throughputs;
  update.progress_waits = false;
  update.progress_bytes += bytes;
  progress.transports = TransportsToSend(state, buffer, update);
  if (progress.transports.has_value()) {
    update.transports_sent = *progress.transports;
    bytes += CostOf(*progress.transports);
    update.progress_bytes += CostOf(*progress.transports);
  }
  update.next_progress = now + ProgressPause(state, update, bytes);
  SendAbout(state, buffer, std::move(progress), now);
}

FailedSource Describe(const RankName& source, const Endpoint& endpoint,
                      const SourceFailed& failed) {
  return {.name = source,
          .transport = endpoint.transport,
          .address = endpoint.address,
          .failure = failed.failure,
          .detail = failed.detail.substr(0, kMaxCauseBytes)};
}

// The fill has not heard of the newest assignment yet, which may name the same source again. None
// is known where the server is another one than before.
bool IsOfEarlierAssignment(const UpdateOperation& update, AssignmentId assignment) {
  return update.assignment != AssignmentId() && assignment != update.assignment;
}

}  // namespace

void NoteFirstWrite(Buffer& buffer) {
  Operation* update = FindUpdate(buffer);
  // Bytes may land until the driver has stopped the fill: they count in `stopping` too.
  if (update != nullptr && buffer.contract.FirstWrite().ok()) update->update().wrote = true;
}

void NoteProgress(State& state, Buffer& buffer, FillReport report, absl::Time now) {
  Operation* fill = FillOf(buffer);
  if (fill == nullptr) return;
  buffer.held = std::move(report.held);
  fill->update().bytes_held = report.bytes_held;
  fill->update().throughputs = std::move(report.throughputs);
  fill->update().transports = std::move(report.transports);
  fill->update().progress_waits = true;
  SendDueProgress(state, buffer, now);
}

void NoteAllReceived(State& state, Buffer& buffer, absl::Time now) {
  Operation* fill = FillOf(buffer);
  if (fill == nullptr || fill->update().received_at != absl::InfiniteFuture()) return;
  fill->update().received_at = now;
  fill->update().throughputs.clear();  // nobody is left to judge
  SendProgress(state, buffer, *fill, now);
}

void NoteFillCost(Buffer& buffer, FillCost cost) {
  if (Operation* fill = FillOf(buffer)) fill->cost.fill = std::move(cost);
}

void NoteFillComplete(State& state, Buffer& buffer, const Digest& root, absl::Time now) {
  Operation* fill = FillOf(buffer);
  if (fill == nullptr) return;
  // A reader of a part of the shard cannot tell its root: each segment matched its own sum.
  const bool in_part = buffer.role == BufferRole::kStreaming && root == Digest();
  if (buffer.root.has_value() && *buffer.root != root && !in_part) {
    Conclude(*fill, {.status = absl::DataLossError(
                         absl::StrCat("the shard's root ", root.ShortHex(),
                                      " is not the published ", buffer.root->ShortHex()))});
    return;
  }
  UpdateOperation& update = fill->update();
  if (!in_part) {
    buffer.root = root;
    buffer.held = SegmentSet::AllOf(buffer.layout->segment_count());
    update.bytes_held = buffer.layout->bytes();
  }
  update.received_at = std::min(update.received_at, now);
  update.throughputs.clear();
  update.done_at = now;
  update.phase = UpdatePhase::kShardDone;
  update.sources.clear();
  // Nobody reads from a streaming reader: that it is done says all.
  if (buffer.role != BufferRole::kStreaming) SendProgress(state, buffer, *fill, now);
  NoteRankDone(*fill, now);
  SendRankDone(state, buffer, *fill, now);
}

void NoteFillFailed(Buffer& buffer, const absl::Status& why) {
  Operation* fill = FillOf(buffer);
  if (fill == nullptr) return;
  Conclude(*fill,
           {.status = why.ok() ? absl::InternalError("the fill ended without a reason") : why});
}

void NoteFillStopped(Buffer& buffer) {
  Operation* update = FindUpdate(buffer);
  if (update == nullptr || update->update().phase != UpdatePhase::kStopping) return;
  update->update().fill_stopped = true;
}

void NoteSourceFailed(State& state, Buffer& buffer, SourceFailed failed, const Endpoint& endpoint,
                      absl::Time now) {
  Operation* fill = FillOf(buffer);
  if (fill == nullptr) return;
  UpdateOperation& update = fill->update();
  if (IsOfEarlierAssignment(update, failed.assignment)) return;
  const auto source = update.sources.find(failed.source);
  if (source == update.sources.end()) return;
  failed.key = fill->key;
  if (update.failed_sources.size() >= kMaxFailedSourcesKept) {
    update.failed_sources.erase(update.failed_sources.begin());
  }
  update.failed_sources.push_back(Describe(source->second.name, endpoint, failed));
  update.sources.erase(source);
  if (state.joined() && buffer.registered) {
    // Before it: a source is tried again for longer where the fill gets on.
    if (update.progress_waits && FitsProgress(buffer, update))
      SendProgress(state, buffer, *fill, now);
    state.Send(std::move(failed), now);
  } else if (update.unsent_failures.size() < kMaxFailedSourcesKept) {
    update.unsent_failures.push_back(std::move(failed));
  }
}

void NoteSourceSuspected(State& state, Buffer& buffer, SourceSuspected suspected, absl::Time now) {
  Operation* fill = FillOf(buffer);
  if (fill == nullptr || fill->update().sources.count(suspected.source) == 0) return;
  if (IsOfEarlierAssignment(fill->update(), suspected.assignment)) return;
  suspected.key = fill->key;
  suspected.detail.resize(std::min(suspected.detail.size(), kMaxCauseBytes));
  SendAbout(state, buffer, std::move(suspected), now);
}

void SendDueProgress(State& state, Buffer& buffer, absl::Time now) {
  Operation* fill = FillOf(buffer);
  if (fill == nullptr || now < NextProgress(state, buffer)) return;
  if (!FitsProgress(buffer, fill->update())) {
    fill->update().next_progress = now + kProgressRetry;
    return;
  }
  SendProgress(state, buffer, *fill, now);
}

absl::Time NextProgress(const State& state, const Buffer& buffer) {
  const Operation* update = FindUpdate(buffer);
  const bool waits = update != nullptr && update->update().progress_waits &&
                     update->update().phase == UpdatePhase::kFilling && state.joined() &&
                     buffer.registered;
  return waits ? update->update().next_progress : absl::InfiniteFuture();
}

}  // namespace th::session
