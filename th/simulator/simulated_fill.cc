#include "th/simulator/simulated_fill.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "th/pipeline_replicator/serving_session.h"
#include "th/simulator/cluster.h"
#include "th/simulator/simulated_stream.h"
#include "th/simulator/simulated_worker.h"

namespace th {
namespace {

using SourceState = FillSession::SourceState;

// A fill that lacks segments and has a source asks for them within this time. Longer than a source
// that sent a wrong segment is left alone.
constexpr absl::Duration kMaxAsksNobody = absl::Seconds(3);

FillSession::Spec SessionSpec(const SimulatedBuffer& buffer, const ClusterSpec& spec,
                              const StartFill& start, const SimulatedStream* stream) {
  FillSession::Spec session;
  session.replicator = {.segment_count = spec.segment_count,
                        .segment_bytes = spec.segment_bytes,
                        .total_bytes = spec.segment_count * spec.segment_bytes,
                        .already_held = start.resume,
                        .held_checksums = buffer.values()};
  if (start.was_published) {
    session.replicator.before = SegmentSet::AllOf(spec.segment_count);
    session.replicator.before_checksums = buffer.values();
  }
  if (stream != nullptr) {
    session.replicator.wanted = stream->spec().wanted;
    session.replicator.window_segments = stream->spec().ring_segments;
  }
  session.reach = [](const Endpoint& endpoint) {
    if (endpoint.transport == kSimulatedTransport) return absl::OkStatus();
    return absl::FailedPreconditionError("not simulated");
  };
  session.root = start.root;
  return session;
}

}  // namespace

SimulatedFill::SimulatedFill(SimulatedWorker* worker, SimulatedBuffer* buffer,
                             const StartFill& start, SimulatedStream* stream)
    : worker_(worker),
      buffer_(buffer),
      stream_(stream),
      operation_(start.operation),
      version_(start.version),
      session_(SessionSpec(*buffer, worker->cluster().spec(), start, stream),
               worker->cluster().spec().replicator, worker->now()) {
  InvariantChecker& checker = worker_->cluster().checker();
  checker.NoteLabel(version_);
  for (const SegmentRange& range : start.resume.ranges()) {
    for (SegmentIndex segment = range.begin; segment < range.end; segment = segment.Next()) {
      checker.Expect(
          checker.WasPublished(version_, buffer_->shard(), segment, buffer_->value(segment)),
          "resumes a segment that it does not hold", worker_->Name());
    }
  }
  FollowSession();
  CarryOut();
}

// ---- the owner

void SimulatedFill::SetSources(const th::SetSources& order) {
  session_.SetSources(order.assignment, order.sources, worker_->now());
  CarryOut();
}

void SimulatedFill::SetRoot(const Digest& root) {
  session_.SetRoot(root);
  FollowSession();
  CarryOut();
}

void SimulatedFill::BeginStop() {
  closes_late_ = true;
  for (Link& link : links_) {
    const auto sent = link.open ? link.worker->BeingSent(link.transfer) : std::nullopt;
    const bool begins =
        sent.has_value() && session_.BeginSegment(link.source, *sent, worker_->now());
    if (begins) link.landing = sent;
  }
  session_.Stop();
  CarryOut();
}

void SimulatedFill::Stop(bool report) {
  reports_sources_ = report;
  session_.Stop();
  if (std::exchange(closes_late_, false)) {
    for (Link& link : links_) {
      if (link.open) CloseLink(link, SourceFailure::kClosed, "closed by the reader", report);
    }
  }
  CarryOut();
}

void SimulatedFill::ContinueAll() {
  for (Link& link : links_) {
    if (!link.open) continue;
    worker_->cluster().Carry(
        *worker_, link.worker, &link.wire,
        [to = link.worker, transfer = link.transfer] { to->HandlePullContinues(transfer); });
  }
}

// ---- what sources say

SimulatedFill::Link* SimulatedFill::FindOpen(TransferId transfer) {
  const auto found = std::find_if(links_.begin(), links_.end(), [&](const Link& link) {
    return link.open && link.transfer == transfer;
  });
  return found == links_.end() ? nullptr : &*found;
}

void SimulatedFill::HandleAdmitted(TransferId transfer, const absl::Status& status) {
  Link* link = FindOpen(transfer);
  if (link == nullptr) return;
  if (status.ok()) {
    session_.HandleAdmitted(link->source, worker_->now(), link->worker->lists_checksums());
    AskMore(*link);
  } else {
    const bool changed = absl::IsAborted(status);
    CloseLink(*link, changed ? SourceFailure::kGenerationChanged : SourceFailure::kRefused,
              std::string(status.message()), /*report=*/true);
  }
  CarryOut();
}

void SimulatedFill::HandleChecksums(TransferId transfer, SegmentIndex first,
                                    const std::vector<SegmentChecksum>& checksums) {
  Link* link = FindOpen(transfer);
  if (link == nullptr) return;
  link->checksums_open -= std::min<uint64_t>(link->checksums_open, checksums.size());
  session_.HandleChecksums(link->source, first, checksums, worker_->now());
  FollowSession();
  AskMore(*link);
  CarryOut();
}

void SimulatedFill::FollowSession() {
  if (session_.PollStartedOver()) {
    InvariantChecker& checker = worker_->cluster().checker();
    checker.Expect(checker.IsDisputed(version_, buffer_->shard()),
                   "starts over though all sources have the same", worker_->Name());
    buffer_->StartOver();
  }
  const SegmentSet unchanged = session_.TakeUnchanged();
  for (const SegmentRange& range : unchanged.ranges()) {
    for (SegmentIndex i = range.begin; i < range.end; i = i.Next()) {
      JudgeUnchanged(i);
      buffer_->MarkHeld(i);
    }
  }
  if (stream_ != nullptr) return;
  const PipelineReplicator::ListedChecksums listed = session_.TakeListed();
  if (!listed.checksums.empty()) buffer_->SetListed(listed.first, listed.checksums);
}

void SimulatedFill::JudgeUnchanged(SegmentIndex segment) const {
  InvariantChecker& checker = worker_->cluster().checker();
  const SegmentChecksum value = buffer_->value(segment);
  checker.Expect(value == session_.ChecksumOf(segment) &&
                     checker.WasPublished(version_, buffer_->shard(), segment, value),
                 "holds a segment from before that the version does not have", worker_->Name());
}

void SimulatedFill::HandleSegment(TransferId transfer, const SentSegment& segment) {
  Link* link = FindOpen(transfer);
  if (link == nullptr) return;
  const absl::Time now = worker_->now();
  ++link->answered;
  const bool begun =
      link->landing == segment.index || session_.BeginSegment(link->source, segment.index, now);
  if (begun) {
    JudgeWrite(segment.index);
    buffer_->Write(segment.index, segment.bytes);
    using Verdict = PipelineReplicator::SegmentVerdict;
    const Verdict verdict = session_.HandleSegment(link->source, segment.index,
                                                   segment.claimed_checksum, segment.bytes, now);
    if (verdict == Verdict::kCorrupt) worker_->CountCorrupt();
    if (verdict == Verdict::kAccepted) {
      JudgeAccepted(*link, segment);
      worker_->CountAccepted(session_.assigned(link->source).name.ToString());
    }
    FollowSession();
    const bool held = verdict == Verdict::kAccepted && session_.held().Contains(segment.index);
    if (held && stream_ != nullptr) {
      stream_->Arrived(segment.index);
    } else if (held) {
      buffer_->MarkHeld(segment.index);
    }
  } else {
    // One that the tail had asked of two sources comes twice; what is on its way at a switch must
    // not.
    worker_->cluster().checker().Expect(
        !Is(*link, SourceState::kFinishing) || session_.held().Contains(segment.index),
        "throws away what was on its way from a source that was let go", worker_->Name());
  }
  AskMore(*link);
  CarryOut();
}

void SimulatedFill::JudgeWrite(SegmentIndex segment) const {
  InvariantChecker& checker = worker_->cluster().checker();
  checker.Expect(
      buffer_->lent(),
      "a fill writes into memory of which its caller has heard that nobody does any more",
      worker_->Name());
  // The session has forgotten a buffer that is being freed; its memory waits for the fill's stop.
  checker.Expect(worker_->IsBeingFreed(operation_.buffer) ||
                     worker_->session().buffer_state(operation_.buffer) == BufferState::kFilling,
                 "a fill writes into a buffer that is not its own", worker_->Name());
  const SegmentSet& held = stream_ == nullptr ? buffer_->held() : stream_->arrived();
  checker.Expect(!held.Contains(segment), "writes a segment that it holds and serves",
                 worker_->Name());
}

void SimulatedFill::JudgeAccepted(const Link& link, const SentSegment& segment) const {
  InvariantChecker& checker = worker_->cluster().checker();
  const int shard = buffer_->shard();
  if (checker.WasPublished(version_, shard, segment.index, segment.bytes)) return;
  checker.Violated(absl::StrCat(worker_->Name(), " accepted a segment of ", version_.ToString(),
                                " that nobody published, from ", link.worker->Describe()));
}

void SimulatedFill::HandleAlive(TransferId transfer) {
  Link* link = FindOpen(transfer);
  if (link == nullptr) return;
  link->alive_at = worker_->now();
  if (Is(*link, SourceState::kOpening)) return;  // its holder decides
  session_.HandleAlive(link->source, worker_->now());
}

void SimulatedFill::HandleClosed(TransferId transfer, const std::string& why) {
  Link* link = FindOpen(transfer);
  if (link == nullptr) return;
  const bool answered = !Is(*link, SourceState::kOpening);
  // A source whose last word this is waits for its reader to close; any other hears nothing new.
  CloseLink(*link, answered ? SourceFailure::kClosed : SourceFailure::kConnect, why,
            /*report=*/true);
  CarryOut();
}

void SimulatedFill::HandlePathBroken(TransferId transfer, const std::string& why) {
  Link* link = FindOpen(transfer);
  if (link == nullptr) return;
  CloseLink(*link, SourceFailure::kConnect, why, /*report=*/true);
  CarryOut();
}

void SimulatedFill::CloseLink(Link& link, SourceFailure failure, const std::string& why,
                              bool report) {
  link.open = false;
  if (report) {
    worker_->cluster().Carry(
        *worker_, link.worker, &link.wire,
        [to = link.worker, transfer = link.transfer] { to->HandlePullClosed(transfer); });
  }
  session_.HandleClosed(link.source, failure, why);
}

void SimulatedFill::HandleConsumed(SegmentIndex segment) {
  session_.HandleConsumed(segment);
  CarryOut();
}

// ---- what the session wants

void SimulatedFill::AskMore(Link& link) {
  if (!link.open) return;
  if (session_.PollChecksums(link.source, worker_->now())) Do(AskPullChecksums{link.source});
  while (const auto range = session_.PollRequest(link.source, worker_->now())) {
    Do(AskPull{link.source, *range});
  }
}

void SimulatedFill::CarryOut() {
  while (std::optional<FillOutput> output = session_.PollOutput(worker_->now())) {
    if (const auto* open = std::get_if<OpenPull>(&*output)) {
      Do(*open);
    } else if (const auto* ask = std::get_if<AskPull>(&*output)) {
      Do(*ask);
    } else if (const auto* checksums = std::get_if<AskPullChecksums>(&*output)) {
      Do(*checksums);
    } else if (const auto* finish = std::get_if<FinishPull>(&*output)) {
      Do(*finish);
    } else if (const auto* close = std::get_if<ClosePull>(&*output)) {
      Do(*close);
    } else {
      if (const auto* lost = std::get_if<FillSourceFailed>(&*output)) JudgeLoss(*lost);
      events_.push_back(*std::move(output));
    }
  }
  const absl::Time due = session_.NextDeadline();
  if (due == absl::InfiniteFuture() || std::exchange(ticking_, true)) return;
  worker_->Post(due - worker_->now(),
                [worker = worker_, operation = operation_] { worker->HandleFillTick(operation); });
}

void SimulatedFill::Do(const OpenPull& open) {
  if (links_.size() <= open.source.value) links_.resize(open.source.value + 1);
  Cluster& cluster = worker_->cluster();
  Link& link = links_[open.source.value];
  link = {.source = open.source,
          .transfer = cluster.NextTransfer(),
          .worker = cluster.FindWorker(open.endpoint.address),
          .open = true,
          .opened_at = worker_->now()};
  if (!link.worker->alive()) {  // nobody listens there; its machine says so
    worker_->Post(absl::Milliseconds(1), [worker = worker_, transfer = link.transfer] {
      worker->HandleSourceClosed(transfer, "connection refused");
    });
    return;
  }
  const AssignedSource& assigned = session_.assigned(open.source);
  cluster.Carry(*worker_, link.worker, &link.wire,
                [reader = worker_, to = link.worker, transfer = link.transfer,
                 address = open.endpoint.address, capability = assigned.capability,
                 generation = assigned.generation] {
                  to->HandlePullOpened(reader, transfer, address, capability, generation);
                });
}

void SimulatedFill::Do(const AskPull& ask) {
  Link& link = links_[ask.source.value];
  link.asked += ask.range.count();
  worker_->cluster().Carry(*worker_, link.worker, &link.wire,
                           [to = link.worker, transfer = link.transfer, range = ask.range] {
                             to->HandlePullAsked(transfer, range);
                           });
}

void SimulatedFill::Do(const AskPullChecksums& ask) {
  Link& link = links_[ask.source.value];
  link.checksums_open = buffer_->segment_count();
  worker_->cluster().Carry(
      *worker_, link.worker, &link.wire,
      [to = link.worker, transfer = link.transfer] { to->HandlePullAskedChecksums(transfer); });
}

void SimulatedFill::Do(const FinishPull& finish) {
  Link& link = links_[finish.source.value];
  worker_->cluster().Carry(
      *worker_, link.worker, &link.wire,
      [to = link.worker, transfer = link.transfer] { to->HandlePullFinished(transfer); });
}

void SimulatedFill::Do(const ClosePull& close) {
  Link& link = links_[close.source.value];
  if (!link.open || closes_late_) return;
  CloseLink(link, SourceFailure::kClosed, "closed by the reader", reports_sources_);
}

// ---- time

void SimulatedFill::HandleTick() {
  const absl::Time now = worker_->now();
  ticking_ = false;
  if (now - session_.NextDeadline() > kLateFillTick) asks_nobody_since_ = absl::InfiniteFuture();
  session_.HandleTick(now);
  GiveUpUnanswered();
  CarryOut();
  JudgeAsking();
}

// As a transport does: the session waits for an answer of its pull.
void SimulatedFill::GiveUpUnanswered() {
  const absl::Duration patience = worker_->cluster().spec().replicator.silence;
  for (Link& link : links_) {
    if (!Is(link, SourceState::kOpening)) continue;
    const absl::Time now = worker_->now();
    const bool silent = now - std::max(link.opened_at, link.alive_at) >= patience;
    if (!silent && now - link.opened_at < ServingLimits{}.admission_timeout) continue;
    CloseLink(link, SourceFailure::kConnect, silent ? "no answer" : "not admitted in time",
              /*report=*/true);
  }
}

// Bounded waits: a source is not left idle while it could help.
void SimulatedFill::JudgeAsking() {
  bool could = false, asks = false;
  for (const Link& link : links_) {
    if (!Is(link, SourceState::kAdmitted) && !Is(link, SourceState::kFinishing)) continue;
    could = true;
    asks |= link.asked > link.answered || link.checksums_open > 0;
  }
  if (!session_.lacks_segments() || !could || asks) {
    asks_nobody_since_ = absl::InfiniteFuture();
    return;
  }
  asks_nobody_since_ = std::min(asks_nobody_since_, worker_->now());
  if (worker_->now() - asks_nobody_since_ < kMaxAsksNobody) return;
  asks_nobody_since_ = absl::InfiniteFuture();
  worker_->cluster().checker().Violated(
      absl::StrCat(worker_->Name(), " lacks segments of ", version_.ToString(), " and has asked ",
                   "none of its sources for ", absl::FormatDuration(kMaxAsksNobody)));
}

void SimulatedFill::JudgeLoss(const FillSourceFailed& lost) {
  worker_->CountLost();
  const absl::Duration patience = worker_->cluster().spec().replicator.silence;
  worker_->cluster().checker().Expect(
      lost.failure != SourceFailure::kStalled ||
          worker_->now() - links_[lost.index.value].alive_at >= patience,
      "gives up a source that has just said that it is there", worker_->Name());
}

}  // namespace th
