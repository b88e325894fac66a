#include "th/transfer/fill_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

// How often silence and progress are looked at.
constexpr absl::Duration kTick = absl::Milliseconds(20);
// A tick that is later than this means that this process did not run: nobody else is blamed for it.
constexpr absl::Duration kLateTick = absl::Milliseconds(100);
constexpr absl::Duration kProgressInterval = absl::Milliseconds(50);
// Without a byte since: how long sources have been waited for is news too.
constexpr absl::Duration kQuietProgressInterval = absl::Milliseconds(250);

PipelineReplicator::Spec CoreSpec(const FillSpec& spec) {
  const ShardLayout& layout = spec.store->layout();
  PipelineReplicator::Spec core = {.segment_count = layout.segment_count(),
                                   .segment_bytes = layout.segment_bytes(),
                                   .total_bytes = layout.bytes(),
                                   .checksums = layout.checksum() != ChecksumAlgorithm::kNone,
                                   .already_held = spec.resume,
                                   .held_sums = spec.store->sums()};
  if (spec.ring == nullptr) return core;
  core.wanted = spec.ring->wanted();
  core.window_segments = spec.ring->slots();
  return core;
}

// A buffer under another generation is another source: what it holds may differ.
bool SameSource(const AssignedSource& a, const AssignedSource& b) {
  return a.buffer == b.buffer && a.generation == b.generation;
}

}  // namespace

FillState::FillState(FillSpec spec, std::vector<Transport*> transports, FillObserver* observer)
    : store_(spec.store),
      ring_(spec.ring),
      transports_(std::move(transports)),
      observer_(observer),
      core_(CoreSpec(spec), spec.limits),
      root_(spec.root) {
  absl::MutexLock lock(&mu_);
  progress_bytes_ = core_.bytes_held();
  if (root_.has_value()) core_.HandleRoot(*root_);
  AfterCheck();
}

void FillState::Post(void (FillState::*step)()) {
  thread_->Post([self = shared_from_this(), step] { (self.get()->*step)(); });
}

// ---- sources

void FillState::SetSources(AssignmentId assignment, std::vector<AssignedSource> sources) {
  thread_->Post([self = shared_from_this(), assignment, sources = std::move(sources)]() mutable {
    self->SetSourcesOnFillThread(assignment, std::move(sources));
  });
}

void FillState::SetSourcesOnFillThread(AssignmentId assignment,
                                       std::vector<AssignedSource> sources) {
  assignment_ = assignment;
  LetGoOthersOnFillThread(sources);
  assigned_ = std::move(sources);
  OpenAssignedOnFillThread();
}

FillSource* FillState::FindInUse(const AssignedSource& wanted) {
  for (const auto& source : sources_) {
    if (!source->open || source->let_go) continue;
    if (SameSource(source->assigned, wanted)) return source.get();
  }
  return nullptr;
}

void FillState::LetGoOthersOnFillThread(const std::vector<AssignedSource>& wanted) {
  std::vector<std::shared_ptr<Pull>> finishing, closing;
  {
    absl::MutexLock lock(&mu_);
    const absl::Time now = MonotonicNow();
    for (const auto& source : sources_) {
      if (!source->open || source->let_go) continue;
      const bool named = std::any_of(wanted.begin(), wanted.end(), [&](const AssignedSource& w) {
        return SameSource(w, source->assigned);
      });
      if (named) continue;
      source->let_go = source->replaced = true;
      CountReroute();
      if (source->admitted) {
        core_.LetGoSource(source->index, now);
        finishing.push_back(source->pull);
      } else {
        core_.RetireSource(source->index);
        closing.push_back(source->pull);
      }
    }
  }
  for (const auto& pull : finishing) pull->Finish();
  for (const auto& pull : closing) pull->Close();
}

void FillState::OpenAssignedOnFillThread() {
  std::vector<FillSource*> opening;
  {
    absl::MutexLock lock(&mu_);
    if (!Busy()) return;
    for (const AssignedSource& wanted : assigned_) {
      if (FillSource* in_use = FindInUse(wanted)) {
        in_use->assignment = assignment_;
        // The server has nobody else: what was corrupt from it can only come from it.
        if (assigned_.size() == 1) core_.AllowAgain(in_use->index);
        continue;
      }
      sources_.push_back(std::make_unique<FillSource>(
          this, SourceIndex(static_cast<uint32_t>(sources_.size())), assignment_, wanted));
      opening.push_back(sources_.back().get());
    }
  }
  for (FillSource* source : opening) OpenOnFillThread(source);
  StartTicking();
}

bool FillState::NextAttempt(FillSource* source, Attempt* attempt) {
  const std::vector<Endpoint>& endpoints = source->assigned.endpoints;
  while (source->next_endpoint < endpoints.size()) {
    const Endpoint& endpoint = endpoints[source->next_endpoint++];
    for (Transport* transport : transports_) {
      if (transport->name() != endpoint.transport) continue;
      *attempt = {transport, endpoint};
      source->open = true;
      source->transport = endpoint.transport;
      source->peer = absl::StrCat(endpoint.transport, " ", endpoint.address);
      return true;
    }
  }
  return false;
}

void FillState::OpenOnFillThread(FillSource* source) {
  Attempt attempt;
  bool found = false;
  {
    absl::MutexLock lock(&mu_);
    found = NextAttempt(source, &attempt);
  }
  if (!found) return FailOnFillThread(source, SourceFailure::kConnect, NoTransport(*source));
  PullTarget target{.endpoint = attempt.endpoint,
                    .source = source->assigned.buffer,
                    .generation = source->assigned.generation,
                    .capability = source->assigned.capability,
                    .layout = store_->shared_layout(),
                    .far = source->assigned.distance == Distance::kOtherSite,
                    .extra_bytes = extra_,
                    .cut_bytes = cut_bytes_};
  std::shared_ptr<Pull> pull = attempt.transport->Open(std::move(target), source);
  {
    absl::MutexLock lock(&mu_);
    source->peer = pull->peer();
    source->pull = std::move(pull);
  }
  Pump(source);
}

std::string FillState::NoTransport(const FillSource& source) const {
  const auto offered = absl::StrJoin(
      source.assigned.endpoints, ", ", [](std::string* out, const Endpoint& endpoint) {
        absl::StrAppend(out, endpoint.transport, " ", endpoint.address);
      });
  return absl::StrCat("no transport in common: the source offers ",
                      offered.empty() ? "none" : offered);
}

void FillState::CountReroute() {
  if (!core_.all_received()) ++reroutes_;
}

// ---- data threads

void FillSource::OnAdmitted(BufferGeneration) { fill->Admitted(this); }
bool FillSource::OnSegmentBegins(SegmentIndex segment, std::vector<iovec>* iov) {
  return fill->SegmentBegins(this, segment, iov);
}
void FillSource::OnSegment(SegmentIndex segment, SegmentSum sent, SegmentSum computed) {
  fill->SegmentLanded(this, segment, sent, computed);
}
void FillSource::OnAlive() { fill->Alive(this); }
void FillSource::OnClosed(SourceFailure failure, std::string detail) {
  fill->Closed(this, failure, std::move(detail));
}

void FillState::Admitted(FillSource* source) {
  {
    absl::MutexLock lock(&mu_);
    source->admitted = true;
    if (!source->let_go && !stopping_) {
      core_.AddSource(source->index, MonotonicNow(), ReachOf(source->assigned.distance));
    }
  }
  Pump(source);
}

bool FillState::SegmentBegins(FillSource* source, SegmentIndex segment, std::vector<iovec>* iov) {
  absl::MutexLock lock(&mu_);
  const absl::Time now = MonotonicNow();
  if (stopping_ || !core_.BeginSegment(source->index, segment)) {
    core_.HandleDiscarded(source->index, segment, now);
    discarded_bytes_ += store_->layout().SegmentLength(segment);
    return false;
  }
  source->first_byte = std::min(source->first_byte, now);
  if (!std::exchange(wrote_, true)) {
    thread_->Post([self = shared_from_this()] {
      if (!self->told_stopped_) self->observer_->OnFirstWrite();
    });
  }
  if (ring_ != nullptr) {
    ring_->AppendSlot(segment, iov);
  } else {
    store_->AppendPieces(segment, iov);
  }
  return true;
}

void FillState::SegmentLanded(FillSource* source, SegmentIndex segment, SegmentSum sent,
                              SegmentSum computed) {
  bool decide = false;
  {
    absl::MutexLock lock(&mu_);
    const absl::Time now = MonotonicNow();
    using Verdict = PipelineReplicator::SegmentVerdict;
    const Verdict verdict = core_.HandleSegment(source->index, segment, sent, computed, now);
    if (verdict == Verdict::kAccepted) {
      source->last_byte = now;
      if (reroutes_ > 0) rerouted_bytes_ += store_->layout().SegmentLength(segment);
      // Under mu_, so that the store never serves what the core has already taken back. Who waits
      // at the store only posts to its own loop.
      if (root_mismatches_seen_ == core_.rounds_restarted()) Keep(segment, sent);
      AfterCheck();
    } else {
      discarded_bytes_ += store_->layout().SegmentLength(segment);
    }
    decide = verdict != Verdict::kAccepted || core_.all_received() || root_mismatches_seen_ > 0;
  }
  if (decide) Post(&FillState::AdvanceOnFillThread);
  Pump(source);
}

void FillState::Keep(SegmentIndex segment, SegmentSum sum) {
  if (ring_ != nullptr) {
    ring_->Arrived(segment);
  } else {
    store_->MarkHeld(segment, sum);
  }
}

void FillState::HandedOn(SegmentIndex end) {
  {
    absl::MutexLock lock(&mu_);
    core_.HandleHandedOn(end);
  }
  Post(&FillState::PumpAll);
}

void FillState::AfterCheck() {
  if (root_mismatches_seen_ == core_.rounds_restarted()) return;
  root_mismatches_seen_ = core_.rounds_restarted();
  store_->ForgetAll();
}

void FillState::Alive(FillSource* source) {
  absl::MutexLock lock(&mu_);
  core_.HandleAlive(source->index, MonotonicNow());
}

void FillState::Closed(FillSource* source, SourceFailure failure, std::string detail) {
  {
    absl::MutexLock lock(&mu_);
    // Nothing of it touches the buffer any more: what it was writing may be written by others.
    core_.RemoveSource(source->index);
  }
  thread_->Post([self = shared_from_this(), source, failure, detail = std::move(detail)] {
    self->ClosedOnFillThread(source, failure, detail);
  });
}

void FillState::Pump(FillSource* source) {
  std::vector<SegmentRange> ranges;
  std::shared_ptr<Pull> pull;
  {
    absl::MutexLock lock(&mu_);
    pull = source->pull;
    if (stopping_ || pull == nullptr || source->let_go) return;
    const absl::Time now = MonotonicNow();
    while (auto request = core_.PollRequest(source->index, now)) ranges.push_back(request->range);
  }
  for (const SegmentRange& range : ranges) pull->Ask(range);
}

void FillState::PumpAll() {
  std::vector<FillSource*> open;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& source : sources_) {
      if (source->open && source->admitted) open.push_back(source.get());
    }
  }
  for (FillSource* source : open) Pump(source);
}

// ---- losses

void FillState::ClosedOnFillThread(FillSource* source, SourceFailure failure,
                                   const std::string& detail) {
  bool retry = false, report = false;
  std::shared_ptr<Pull> dead;
  {
    absl::MutexLock lock(&mu_);
    source->open = false;
    dead = std::move(source->pull);
    source->pull = nullptr;
    const bool unreachable =
        failure == SourceFailure::kConnect || failure == SourceFailure::kStalled;
    const bool more = source->next_endpoint < source->assigned.endpoints.size();
    const bool wanted = !source->let_go && Busy();
    retry = wanted && !source->admitted && unreachable && more;
    report = wanted && !retry;
  }
  if (retry) {
    OpenOnFillThread(source);
  } else if (report) {
    FailOnFillThread(source, failure, detail);
  }
  StoppedOnFillThread();
  PumpAll();
}

void FillState::FailOnFillThread(FillSource* source, SourceFailure failure,
                                 const std::string& detail) {
  AssignmentId assignment;
  std::shared_ptr<Pull> pull;
  {
    absl::MutexLock lock(&mu_);
    source->failure = detail;
    source->let_go = true;
    core_.RetireSource(source->index);
    CountReroute();
    pull = source->pull;
    assignment = source->assignment;
    if (stopping_) return;
  }
  if (pull != nullptr) pull->Close();
  // It is not opened again unless the server names it again.
  std::erase_if(assigned_,
                [&](const AssignedSource& a) { return a.buffer == source->assigned.buffer; });
  observer_->OnSourceFailed(assignment, source->assigned.buffer, failure, detail);
}

void FillState::ReportLostOnFillThread(absl::Time now) {
  std::vector<std::pair<FillSource*, PipelineReplicator::LostSource>> lost;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& loss : core_.PollLost(now)) {
      lost.emplace_back(sources_[loss.source.value].get(), loss);
    }
  }
  for (const auto& [source, loss] : lost) {
    if (loss.let_go) {
      CloseOnFillThread(source);
      continue;
    }
    const std::string detail =
        loss.corrupt ? "sent bytes that do not match their sums"
                     : absl::StrFormat("silent for %.1f s", absl::ToDoubleSeconds(loss.silent_for));
    FailOnFillThread(source, loss.corrupt ? SourceFailure::kCorrupt : SourceFailure::kStalled,
                     detail);
  }
}

void FillState::CloseOnFillThread(FillSource* source) {
  std::shared_ptr<Pull> pull;
  {
    absl::MutexLock lock(&mu_);
    pull = source->pull;
  }
  if (pull != nullptr) pull->Close();
}

void FillState::ReportSuspectedOnFillThread() {
  struct Report {
    AssignmentId assignment;
    BufferAddress source;
    SegmentIndex segment;
  };
  std::vector<Report> reports;
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) return;
    for (const auto& suspicion : core_.PollSuspected()) {
      const FillSource& source = *sources_[suspicion.source.value];
      if (source.let_go) continue;
      reports.push_back({source.assignment, source.assigned.buffer, suspicion.segment});
    }
  }
  for (const Report& report : reports) {
    observer_->OnSourceSuspected(
        report.assignment, report.source,
        absl::StrCat("segment ", report.segment.value, " did not match its sum"));
  }
}

// ---- time

bool FillState::Busy() const { return !stopping_ && !core_.all_received() && !core_.failed(); }

void FillState::StartTicking() {
  if (std::exchange(ticking_, true)) return;
  ticked_at_ = MonotonicNow();
  thread_->PostAt(ticked_at_ + kTick, [self = shared_from_this()] { self->TickOnFillThread(); });
}

void FillState::TickOnFillThread() {
  const absl::Time now = MonotonicNow();
  const absl::Duration late = now - ticked_at_ - kTick;
  ticked_at_ = now;
  bool busy = false;
  {
    absl::MutexLock lock(&mu_);
    if (late > kLateTick) core_.HandlePause(late);
    busy = Busy() && std::any_of(sources_.begin(), sources_.end(),
                                 [](const auto& source) { return source->open; });
  }
  if (!told_stopped_) {
    ReportLostOnFillThread(now);
    ReportProgressOnFillThread(now);
    PumpAll();
  }
  ticking_ = busy;
  if (!busy) return;
  thread_->PostAt(now + kTick, [self = shared_from_this()] { self->TickOnFillThread(); });
}

void FillState::ReportProgressOnFillThread(absl::Time now) {
  uint64_t bytes = 0;
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) return;
    bytes = core_.bytes_held();
  }
  const bool quiet = bytes == progress_bytes_;
  const absl::Duration pause =
      quiet ? now - std::max(progress_at_, began_at_) - kQuietProgressInterval
            : now - progress_at_ - kProgressInterval;
  if (pause < absl::ZeroDuration()) return;
  progress_bytes_ = bytes;
  progress_at_ = now;
  observer_->OnProgress();
}

// ---- the end

void FillState::SetRoot(Digest root) {
  {
    absl::MutexLock lock(&mu_);
    root_ = root;
    core_.HandleRoot(root);
    AfterCheck();
  }
  Post(&FillState::AdvanceOnFillThread);
}

// Tells what has come true, in the order in which it does.
void FillState::AdvanceOnFillThread() {
  bool received = false, complete = false, failed = false, restarted = false;
  std::optional<Digest> root;
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) return;
    received = core_.all_received();
    complete = core_.complete();
    failed = core_.failed();
    restarted =
        std::exchange(root_mismatches_told_, root_mismatches_seen_) != root_mismatches_seen_;
    if (!core_.receives_a_part()) root = root_;
  }
  ReportLostOnFillThread(MonotonicNow());
  ReportSuspectedOnFillThread();
  if (failed && !std::exchange(told_failed_, true)) {
    CloseAllOnFillThread();
    observer_->OnFailed(
        absl::DataLossError("the sources' list of sums disagrees with the "
                            "version's root again and again"));
    return;
  }
  if (restarted) {
    told_received_ = false;
    OpenAssignedOnFillThread();
  }
  if (received && !std::exchange(told_received_, true)) {
    CloseAllOnFillThread();
    observer_->OnAllReceived();
  }
  if (complete && !std::exchange(told_complete_, true)) {
    observer_->OnComplete(root.value_or(Digest{}));
  }
}

void FillState::CloseAllOnFillThread() {
  std::vector<std::shared_ptr<Pull>> closing;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& source : sources_) {
      if (!source->open) continue;
      source->let_go = true;
      core_.RetireSource(source->index);
      if (source->pull != nullptr) closing.push_back(source->pull);
    }
  }
  for (const auto& pull : closing) pull->Close();
}

void FillState::StopOnFillThread() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  CloseAllOnFillThread();
  StoppedOnFillThread();
}

void FillState::StoppedOnFillThread() {
  {
    absl::MutexLock lock(&mu_);
    const bool open = std::any_of(sources_.begin(), sources_.end(),
                                  [](const auto& source) { return source->open; });
    if (!stopping_ || open) return;
  }
  if (!std::exchange(told_stopped_, true)) observer_->OnStopped();
}

FillStatus FillState::status() const {
  absl::MutexLock lock(&mu_);
  FillStatus status{.held = core_.held(),
                    .bytes_held = core_.bytes_held(),
                    .corrupt_segments = static_cast<uint32_t>(core_.corrupt_segments()),
                    .reroutes = reroutes_,
                    .rerouted_bytes = rerouted_bytes_,
                    .reread_bytes = discarded_bytes_ + cut_bytes_->load(),
                    .peak_extra_bytes = extra_->peak()};
  const absl::Time now = MonotonicNow();
  for (const auto& source : sources_) {
    const bool any = source->last_byte > source->first_byte;
    status.sources.push_back(
        {.source = source->assigned.buffer,
         .name = source->assigned.name,
         .peer = source->peer,
         .transport = source->transport,
         .bytes = core_.bytes_from(source->index),
         .corrupt_segments = core_.corrupt_from(source->index),
         .active = any ? source->last_byte - source->first_byte : absl::ZeroDuration(),
         .waited = core_.waited_for(source->index, now),
         .failed = !source->failure.empty(),
         .failure = source->failure,
         .replaced = source->replaced,
         .distance = source->assigned.distance,
         .publisher = source->assigned.publisher});
  }
  return status;
}

}  // namespace th
