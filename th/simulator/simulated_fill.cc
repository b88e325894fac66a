#include "th/simulator/simulated_fill.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "th/simulator/cluster.h"
#include "th/simulator/simulated_stream.h"
#include "th/simulator/simulated_worker.h"

namespace th {
namespace {

// A tick that is later than this means that this process did not run: nobody else is blamed for it.
constexpr absl::Duration kLateTick = absl::Milliseconds(100);
constexpr absl::Duration kProgressInterval = absl::Milliseconds(50);
constexpr absl::Duration kQuietProgressInterval = absl::Milliseconds(250);
// A fill that lacks segments and has a source asks for them within this time. Longer than a source
// that sent a wrong segment is left alone.
constexpr absl::Duration kMaxAsksNobody = absl::Seconds(3);

PipelineReplicator::Spec CoreSpec(const SimulatedBuffer& buffer, const ClusterSpec& spec,
                                  const StartFill& start, const SimulatedStream* stream) {
  PipelineReplicator::Spec core{.segment_count = spec.segment_count,
                                .segment_bytes = spec.segment_bytes,
                                .total_bytes = spec.segment_count * spec.segment_bytes,
                                .already_held = start.resume,
                                .held_sums = buffer.values()};
  if (stream == nullptr) return core;
  core.wanted = stream->spec().wanted;
  core.window_segments = stream->spec().ring_segments;
  return core;
}

}  // namespace

SimulatedFill::SimulatedFill(SimulatedWorker* worker, SimulatedBuffer* buffer,
                             const StartFill& start, SimulatedStream* stream)
    : worker_(worker),
      buffer_(buffer),
      stream_(stream),
      operation_(start.operation),
      version_(start.version),
      core_(CoreSpec(*buffer, worker->cluster().spec(), start, stream),
            worker->cluster().spec().replicator),
      told_segments_(start.resume.count()),
      began_at_(worker->now()) {
  Judge& judge = worker_->cluster().judge();
  for (const SegmentRange& range : start.resume.ranges()) {
    for (SegmentIndex segment = range.begin; segment < range.end; segment = segment.Next()) {
      judge.Expect(
          judge.WasPublished(version_.label, buffer_->shard(), segment, buffer_->value(segment)),
          "resumes a segment that it does not hold", worker_->Name());
    }
  }
  if (start.root.has_value()) SetRoot(*start.root);
  Advance();
}

// ---- sources

SimulatedFill::Source* SimulatedFill::FindOpen(TransferId transfer) {
  for (Source& source : sources_) {
    if (source.open && source.transfer == transfer) return &source;
  }
  return nullptr;
}

SimulatedFill::Source* SimulatedFill::FindOpen(const AssignedSource& wanted) {
  for (Source& source : sources_) {
    // A buffer under another generation is another source: what it holds may differ.
    if (source.open && !source.let_go && source.assigned.buffer == wanted.buffer &&
        source.assigned.generation == wanted.generation) {
      return &source;
    }
  }
  return nullptr;
}

bool SimulatedFill::has_source() const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [](const Source& source) { return source.open && !source.let_go; });
}

void SimulatedFill::SetSources(const th::SetSources& order) {
  assignment_ = order.assignment;
  for (Source& source : sources_) {
    if (!source.open || source.let_go) continue;
    const bool named =
        std::any_of(order.sources.begin(), order.sources.end(),
                    [&](const AssignedSource& wanted) { return FindOpen(wanted) == &source; });
    if (!named) LetGo(source);
  }
  assigned_ = order.sources;
  OpenAssigned();
}

void SimulatedFill::OpenAssigned() {
  if (!Busy()) return;
  for (const AssignedSource& wanted : assigned_) {
    Source* in_use = FindOpen(wanted);
    if (in_use == nullptr) {
      Open(wanted);
      continue;
    }
    in_use->assignment = assignment_;
    // The server has nobody else: what was corrupt from it can only come from it.
    if (assigned_.size() == 1) {
      core_.AllowAgain(in_use->index);
      Pump(*in_use);
    }
  }
  StartTicking();
}

void SimulatedFill::Open(const AssignedSource& wanted) {
  Cluster& cluster = worker_->cluster();
  sources_.push_back({.index = SourceIndex(static_cast<uint32_t>(sources_.size())),
                      .assigned = wanted,
                      .assignment = assignment_,
                      .transfer = cluster.NextTransfer(),
                      .worker = cluster.FindWorker(wanted.endpoints.front().address),
                      .opened_at = worker_->now()});
  Source& source = sources_.back();
  if (!source.worker->alive()) {  // nobody listens there; its machine says so
    worker_->Post(absl::Milliseconds(1), [worker = worker_, transfer = source.transfer] {
      worker->HandleSourceClosed(transfer, "connection refused");
    });
    return;
  }
  cluster.Carry(*worker_, source.worker, &source.wire,
                [reader = worker_, to = source.worker, transfer = source.transfer,
                 capability = wanted.capability, generation = wanted.generation] {
                  to->HandlePullOpened(reader, transfer, capability, generation);
                });
}

void SimulatedFill::LetGo(Source& source) {
  if (!source.admitted) return Close(source, /*tell=*/true);
  source.let_go = true;
  core_.LetGoSource(source.index, worker_->now());
  worker_->cluster().Carry(
      *worker_, source.worker, &source.wire,
      [to = source.worker, transfer = source.transfer] { to->HandlePullFinished(transfer); });
}

void SimulatedFill::Close(Source& source, bool tell) {
  source.open = false;
  core_.RetireSource(source.index);
  core_.RemoveSource(source.index);
  if (!tell) return;
  worker_->cluster().Carry(
      *worker_, source.worker, &source.wire,
      [to = source.worker, transfer = source.transfer] { to->HandlePullClosed(transfer); });
}

void SimulatedFill::CloseAll(bool tell) {
  for (Source& source : sources_) {
    if (source.open) Close(source, tell);
  }
}

void SimulatedFill::ContinueAll() {
  for (Source& source : sources_) {
    if (!source.open) continue;
    worker_->cluster().Carry(
        *worker_, source.worker, &source.wire,
        [to = source.worker, transfer = source.transfer] { to->HandlePullContinues(transfer); });
  }
}

void SimulatedFill::Fail(Source& source, SourceFailure failure, const std::string& detail) {
  worker_->CountLost();
  Close(source, /*tell=*/true);
  // It is not opened again unless the server names it again.
  std::erase_if(assigned_,
                [&](const AssignedSource& a) { return a.buffer == source.assigned.buffer; });
  events_.push_back(FillSourceFailed{source.assignment, source.assigned.buffer, failure, detail});
  PumpAll();
}

// ---- what sources say

void SimulatedFill::HandleAdmitted(TransferId transfer, const absl::Status& status) {
  Source* source = FindOpen(transfer);
  if (source == nullptr) return;
  if (!status.ok()) {
    return Fail(
        *source,
        absl::IsAborted(status) ? SourceFailure::kGenerationChanged : SourceFailure::kRefused,
        std::string(status.message()));
  }
  source->admitted = true;
  core_.AddSource(source->index, worker_->now(), ReachOf(source->assigned.distance));
  Pump(*source);
}

void SimulatedFill::HandleSegment(TransferId transfer, const SentSegment& segment) {
  Source* source = FindOpen(transfer);
  if (source == nullptr) return;
  const absl::Time now = worker_->now();
  ++source->answered;
  if (!core_.BeginSegment(source->index, segment.index)) {
    // One that the tail had asked of two sources comes twice; what is on its way at a switch must
    // not.
    worker_->cluster().judge().Expect(
        !source->let_go || core_.held().Contains(segment.index),
        "throws away what was on its way from a source that was let go", worker_->Name());
    core_.HandleDiscarded(source->index, segment.index, now);
    return Pump(*source);
  }
  if (!std::exchange(wrote_, true)) events_.push_back(FillFirstWrite{});
  JudgeWrite(segment.index);
  buffer_->Write(segment.index, segment.bytes);
  using Verdict = PipelineReplicator::SegmentVerdict;
  const Verdict verdict =
      core_.HandleSegment(source->index, segment.index, segment.claimed_sum, segment.bytes, now);
  if (verdict == Verdict::kCorrupt) worker_->CountCorrupt();
  if (verdict == Verdict::kAccepted) {
    JudgeAccepted(*source, segment);
    worker_->CountAccepted(source->assigned.name.ToString());
    const bool stands = rounds_seen_ == core_.rounds_restarted();
    if (stands) Keep(segment.index);
  }
  Advance();
  if (source->open) Pump(*source);
}

void SimulatedFill::Keep(SegmentIndex segment) {
  if (stream_ == nullptr) return buffer_->MarkHeld(segment);
  stream_->Arrived(segment);
}

void SimulatedFill::HandleHandedOn(SegmentIndex segment) {
  core_.HandleHandedOn(segment);
  PumpAll();
}

void SimulatedFill::JudgeWrite(SegmentIndex segment) const {
  Judge& judge = worker_->cluster().judge();
  judge.Expect(worker_->session().buffer_state(operation_.buffer) == BufferState::kFilling,
               "a fill writes into a buffer that is not its own", worker_->Name());
  const SegmentSet& held = stream_ == nullptr ? buffer_->held() : stream_->arrived();
  judge.Expect(!held.Contains(segment), "writes a segment that it holds and serves",
               worker_->Name());
}

void SimulatedFill::JudgeAccepted(const Source& source, const SentSegment& segment) const {
  Judge& judge = worker_->cluster().judge();
  const int shard = buffer_->shard();
  if (judge.WasPublished(version_.label, shard, segment.index, segment.bytes)) return;
  judge.Violated(absl::StrCat(worker_->Name(), " accepted a segment of ", version_.ToString(),
                              " that nobody published, from ", source.worker->Describe()));
}

void SimulatedFill::HandleAlive(TransferId transfer) {
  Source* source = FindOpen(transfer);
  if (source == nullptr) return;
  source->alive_at = worker_->now();
  core_.HandleAlive(source->index, worker_->now());
}

void SimulatedFill::HandleClosed(TransferId transfer, const std::string& why) {
  Source* source = FindOpen(transfer);
  if (source == nullptr) return;
  if (source->let_go) {
    Close(*source, /*tell=*/true);
    return PumpAll();
  }
  Fail(*source, source->admitted ? SourceFailure::kClosed : SourceFailure::kConnect, why);
}

void SimulatedFill::SetRoot(const Digest& root) {
  root_ = root;
  core_.HandleRoot(root);
  Advance();
}

// ---- asking

void SimulatedFill::Pump(Source& source) {
  while (auto request = core_.PollRequest(source.index, worker_->now())) {
    source.asked += request->range.end.value - request->range.begin.value;
    worker_->cluster().Carry(*worker_, source.worker, &source.wire,
                             [to = source.worker, transfer = source.transfer,
                              range = request->range] { to->HandlePullAsked(transfer, range); });
  }
}

void SimulatedFill::PumpAll() {
  for (Source& source : sources_) {
    if (source.open && source.admitted && !source.let_go) Pump(source);
  }
}

// ---- time

void SimulatedFill::StartTicking() {
  if (std::exchange(ticking_, true)) return;
  ticked_at_ = worker_->now();
  worker_->Post(kSimulatedFillTick,
                [worker = worker_, operation = operation_] { worker->HandleFillTick(operation); });
}

void SimulatedFill::HandleTick() {
  const absl::Time now = worker_->now();
  const absl::Duration late = now - ticked_at_ - kSimulatedFillTick;
  if (late > kLateTick) {
    core_.HandlePause(late);
    asks_nobody_since_ = absl::InfiniteFuture();
  }
  ticking_ = false;
  ReportLost();
  ReportProgress();
  PumpAll();
  JudgeAsking();
  const bool any_open = std::any_of(sources_.begin(), sources_.end(),
                                    [](const Source& source) { return source.open; });
  if (any_open && Busy()) StartTicking();
}

// Bounded waits: a source is not left idle while it could help.
void SimulatedFill::JudgeAsking() {
  bool could = false, asks = false;
  for (const Source& source : sources_) {
    if (!source.open || !source.admitted) continue;
    could = true;
    asks |= source.asked > source.answered;
  }
  if (!Busy() || !could || asks) {
    asks_nobody_since_ = absl::InfiniteFuture();
    return;
  }
  asks_nobody_since_ = std::min(asks_nobody_since_, worker_->now());
  if (worker_->now() - asks_nobody_since_ < kMaxAsksNobody) return;
  asks_nobody_since_ = absl::InfiniteFuture();
  worker_->cluster().judge().Violated(
      absl::StrCat(worker_->Name(), " lacks segments of ", version_.ToString(), " and has asked ",
                   "none of its sources for ", absl::FormatDuration(kMaxAsksNobody)));
}

void SimulatedFill::ReportLost() {
  const absl::Time now = worker_->now();
  for (const PipelineReplicator::LostSource& lost : core_.PollLost(now)) {
    Source& source = SourceOf(lost.source);
    if (!source.open) continue;
    if (source.let_go) {
      Close(source, /*tell=*/true);
      PumpAll();
      continue;
    }
    const absl::Duration patience = worker_->cluster().spec().replicator.silence;
    worker_->cluster().judge().Expect(lost.corrupt || now - source.alive_at >= patience,
                                      "gives up a source that has just said that it is there",
                                      worker_->Name());
    Fail(source, lost.corrupt ? SourceFailure::kCorrupt : SourceFailure::kStalled,
         lost.corrupt
             ? "sent bytes that do not match their sums"
             : absl::StrFormat("silent for %.1f s", absl::ToDoubleSeconds(lost.silent_for)));
  }
  // The core knows a source from its admission on.
  const absl::Duration patience = worker_->cluster().spec().replicator.silence;
  for (Source& source : sources_) {
    if (source.open && !source.admitted && now - source.opened_at >= patience) {
      Fail(source, SourceFailure::kConnect, "no answer");
    }
  }
}

void SimulatedFill::ReportSuspected() {
  for (const PipelineReplicator::Suspicion& suspicion : core_.PollSuspected()) {
    const Source& source = SourceOf(suspicion.source);
    if (!source.open) continue;
    events_.push_back(FillSourceSuspected{source.assignment, source.assigned.buffer});
  }
}

void SimulatedFill::ReportProgress() {
  const uint64_t segments = core_.held().count();
  const absl::Time now = worker_->now();
  const bool quiet = segments == told_segments_;
  const absl::Duration pause = quiet ? now - std::max(told_at_, began_at_) - kQuietProgressInterval
                                     : now - told_at_ - kProgressInterval;
  if (pause < absl::ZeroDuration()) return;
  told_segments_ = segments;
  told_at_ = now;
  FillReport report{core_.held(), core_.bytes_held()};
  for (const Source& source : sources_) {
    if (!source.open) continue;
    report.paces.push_back({source.assigned.buffer, core_.bytes_from(source.index),
                            core_.waited_for(source.index, now)});
  }
  events_.push_back(FillProgressed{std::move(report)});
}

// ---- the end

void SimulatedFill::Advance() {
  const bool restarted = rounds_seen_ != core_.rounds_restarted();
  rounds_seen_ = core_.rounds_restarted();
  if (restarted) buffer_->SetHeld({});
  ReportLost();
  ReportSuspected();
  if (core_.failed() && !std::exchange(told_failed_, true)) {
    CloseAll(/*tell=*/true);
    events_.push_back(FillFailed{absl::DataLossError("the list of sums is wrong again and again")});
    return;
  }
  if (restarted) {
    told_received_ = false;
    OpenAssigned();
  }
  if (core_.all_received() && !std::exchange(told_received_, true)) {
    CloseAll(/*tell=*/true);
    events_.push_back(FillReceived{});
  }
  if (core_.complete() && !std::exchange(told_complete_, true)) {
    events_.push_back(FillCompleted{root_.value_or(Digest{})});
  }
}

}  // namespace th
