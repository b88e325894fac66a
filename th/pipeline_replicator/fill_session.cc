#include "th/pipeline_replicator/fill_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/mutation/mutation.h"

namespace th {
namespace {

// A buffer under another generation is another source: what it holds may differ.
bool SameSource(const AssignedSource& a, const AssignedSource& b) {
  return a.buffer == b.buffer && a.generation == b.generation;
}

bool Names(const std::vector<AssignedSource>& wanted, const AssignedSource& source) {
  return std::any_of(wanted.begin(), wanted.end(),
                     [&](const AssignedSource& each) { return SameSource(each, source); });
}

void PassOver(const Endpoint& endpoint, absl::string_view why,
              std::vector<PassedOver>& passed_over) {
  AddPassedOver({endpoint.transport, std::string(why)}, passed_over);
}

}  // namespace

FillSession::FillSession(Spec spec, ReplicatorLimits limits, absl::Time now)
    : reach_(std::move(spec.reach)),
      strict_transport_(spec.strict_transport),
      device_transports_(std::move(spec.device_transports)),
      began_at_(now),
      replicator_(std::move(spec.replicator), limits),
      root_(spec.root),
      progress_bytes_(replicator_.bytes_held()) {
  if (root_.has_value()) replicator_.HandleRoot(*root_);
}

// ---- the owner

void FillSession::SetSources(AssignmentId assignment, std::vector<AssignedSource> sources,
                             absl::Time now) {
  if (stopping()) return;
  assignment_ = assignment;
  for (Source& source : sources_) {
    if (source.in_use() && !Names(sources, source.assigned)) Detach(source, now);
  }
  assigned_ = std::move(sources);
  OpenAssigned(now);
}

void FillSession::SetRoot(const Digest& root) {
  if (stopping()) return;
  root_ = root;
  replicator_.HandleRoot(root);
  undecided_ = true;
}

void FillSession::HandleConsumed(SegmentIndex end) {
  replicator_.HandleConsumed(end);
  ask_all_ = true;
}

void FillSession::Stop() {
  if (stopping()) return;
  life_ = Life::kStopping;
  // A first write that happened is reported all the same.
  std::erase_if(outputs_, [](const FillOutput& output) {
    return !std::holds_alternative<OpenPull>(output) &&
           !std::holds_alternative<ClosePull>(output) &&
           !std::holds_alternative<FillFirstWrite>(output);
  });
  CloseAll();
  undecided_ = true;
}

// ---- sources

FillSession::Source* FillSession::FindInUse(const AssignedSource& wanted) {
  const auto found = std::find_if(sources_.begin(), sources_.end(), [&](const Source& source) {
    return source.in_use() && SameSource(source.assigned, wanted);
  });
  return found == sources_.end() ? nullptr : &*found;
}

bool FillSession::has_source() const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [](const Source& source) { return source.in_use(); });
}

bool FillSession::any_open() const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [](const Source& source) { return source.state != SourceState::kClosed; });
}

bool FillSession::lacks_segments() const {
  return !stopping() && !replicator_.all_received() && !replicator_.failed() &&
         !buffer_lost_.has_value();
}

void FillSession::OpenAssigned(absl::Time now) {
  if (!lacks_segments()) return;
  // A copy: one that cannot be opened is taken out.
  const std::vector<AssignedSource> wanted = assigned_;
  for (const AssignedSource& each : wanted) {
    Source* const in_use = FindInUse(each);
    if (in_use == nullptr) {
      sources_.push_back({.index = SourceIndex(static_cast<uint32_t>(sources_.size())),
                          .assigned = each,
                          .assignment = assignment_});
      Source& source = sources_.back();
      PutBrokenLast(source);
      if (OpenNextEndpoint(source)) continue;
      Fail(source, SourceFailure::kConnect, WhyNoneIsOpened(source));
      continue;
    }
    in_use->assignment = assignment_;
    if (wanted.size() > 1) continue;
    // The server has nobody else: what was corrupt from it can only come from it.
    replicator_.AllowAgain(in_use->index);
    ask_all_ = TH_MUTATE(kAllowAgainAndWait, true, ask_all_);
  }
  if (any_open()) tick_at_ = std::min(tick_at_, now + kFillTick);
}

// Where the transports are the user's choice (strict) their order stays.
void FillSession::PutBrokenLast(Source& source) const {
  if (strict_transport_ || broken_.empty()) return;
  std::vector<Endpoint>& endpoints = source.assigned.endpoints;
  const auto broken =
      std::stable_partition(endpoints.begin(), endpoints.end(), [this](const Endpoint& endpoint) {
        return TH_MUTATE(kStartAtTheBrokenEndpoint, WhyBroken(endpoint) == nullptr, true);
      });
  if (broken == endpoints.begin()) return;
  for (auto each = broken; each != endpoints.end(); ++each) {
    PassOver(*each, *WhyBroken(*each), source.passed_over);
  }
}

void FillSession::NoteBroken(const Endpoint& endpoint, const std::string& detail) {
  if (WhyBroken(endpoint) != nullptr) return;
  if (broken_.size() == kMaxBrokenEndpoints) broken_.pop_front();
  broken_.push_back({endpoint, detail});
}

const std::string* FillSession::WhyBroken(const Endpoint& endpoint) const {
  const auto found =
      std::find_if(broken_.begin(), broken_.end(),
                   [&endpoint](const BrokenEndpoint& each) { return each.endpoint == endpoint; });
  return found == broken_.end() ? nullptr : &found->why;
}

// False when it has none left that can be opened here.
bool FillSession::OpenNextEndpoint(Source& source) {
  const std::vector<Endpoint>& endpoints = source.assigned.endpoints;
  while (source.next_endpoint < endpoints.size()) {
    const Endpoint& endpoint = endpoints[source.next_endpoint++];
    const bool is_slower =
        source.missed.has_value() && source.missed->transport != endpoint.transport;
    if (TH_MUTATE(kPassOverThoughStrict, is_slower, false)) return false;
    if (const absl::Status within = reach_(endpoint); !within.ok()) {
      PassOver(endpoint, within.message(), source.passed_over);
      const bool should_lead_there = strict_transport_ && !absl::IsOutOfRange(within);
      if (should_lead_there && !source.missed.has_value()) {
        source.missed = {.transport = endpoint.transport, .reason = std::string(within.message())};
      }
      continue;
    }
    source.endpoint = endpoint;
    source.state = SourceState::kOpening;
    outputs_.push_back(OpenPull{source.index, endpoint});
    return true;
  }
  return false;
}

std::string FillSession::WhyNoneIsOpened(const Source& source) {
  if (source.missed.has_value()) {
    return absl::StrCat(
        "it is to be read over ", source.missed->transport,
        " or not at all (strict_transport), which cannot be used: ", source.missed->reason);
  }
  return absl::StrCat("no transport in common: ", source.passed_over.empty()
                                                      ? "the source has no endpoint"
                                                      : DescribePassedOver(source.passed_over));
}

void FillSession::Detach(Source& source, absl::Time now) {
  source.replaced = true;
  CountReroute();
  if (source.state == SourceState::kOpening) return Close(source);
  source.state = SourceState::kFinishing;
  replicator_.DetachSource(source.index, now);
  outputs_.push_back(FinishPull{source.index});
}

void FillSession::Close(Source& source) {
  if (source.state == SourceState::kClosing || source.state == SourceState::kClosed) return;
  replicator_.RetireSource(source.index);
  const size_t unopened = std::erase_if(outputs_, [&](const FillOutput& output) {
    const auto* open = std::get_if<OpenPull>(&output);
    return open != nullptr && open->source == source.index;
  });
  source.state = unopened > 0 ? SourceState::kClosed : SourceState::kClosing;
  if (unopened == 0) outputs_.push_back(ClosePull{source.index});
}

void FillSession::CloseAll() {
  for (Source& source : sources_) Close(source);
}

void FillSession::Fail(Source& source, SourceFailure failure, std::string detail) {
  source.failed = true;
  source.failure = detail;
  CountReroute();
  Close(source);
  // It is not opened again unless the server names it again.
  std::erase_if(assigned_,
                [&](const AssignedSource& each) { return each.buffer == source.assigned.buffer; });
  outputs_.push_back(FillSourceFailed{source.index, source.assignment, source.assigned.buffer,
                                      failure, std::move(detail), source.endpoint});
  ask_all_ = true;
}

void FillSession::CountReroute() {
  if (!replicator_.all_received()) ++reroutes_;
}

// ---- the pulls

SourceReach FillSession::ReachOf(const Source& source) const {
  if (device_transports_.contains(source.endpoint.transport)) return SourceReach::kDevice;
  return source.assigned.distance == Distance::kOtherSite ? SourceReach::kOtherSite
                                                          : SourceReach::kNear;
}

void FillSession::HandleAdmitted(SourceIndex index, absl::Time now, bool lists_checksums) {
  Source& source = sources_[index.value];
  if (source.state != SourceState::kOpening) return;
  source.state = SourceState::kAdmitted;
  replicator_.AddSource(index, now, ReachOf(source), lists_checksums);
}

void FillSession::HandleChecksums(SourceIndex index, SegmentIndex first,
                                  absl::Span<const SegmentChecksum> checksums, absl::Time now) {
  replicator_.HandleChecksums(index, first, checksums, now);
  undecided_ = ask_all_ = true;
}

bool FillSession::BeginSegment(SourceIndex index, SegmentIndex segment, absl::Time now) {
  if (!replicator_.BeginSegment(index, segment)) {
    replicator_.HandleDiscarded(index, segment, now);
    discarded_bytes_ += replicator_.LengthOf(segment);
    return false;
  }
  Source& source = sources_[index.value];
  source.first_byte = std::min(source.first_byte, now);
  if (!std::exchange(wrote_, true)) outputs_.push_back(FillFirstWrite{});
  return true;
}

PipelineReplicator::SegmentVerdict FillSession::HandleSegment(SourceIndex index,
                                                              SegmentIndex segment,
                                                              SegmentChecksum sent,
                                                              SegmentChecksum computed,
                                                              absl::Time now) {
  using Verdict = PipelineReplicator::SegmentVerdict;
  const uint64_t landed = replicator_.landed();
  const Verdict verdict = replicator_.HandleSegment(index, segment, sent, computed, now);
  if (replicator_.landed() < landed) {
    --under_way_;
    undecided_ = ask_all_ = true;  // its window has room again; it may be what Stop waits for
  }
  const bool accepted = verdict == Verdict::kAccepted;
  if (accepted) {
    sources_[index.value].last_byte = now;
    if (reroutes_ > 0) rerouted_bytes_ += replicator_.LengthOf(segment);
  } else {
    discarded_bytes_ += replicator_.LengthOf(segment);
  }
  if (!accepted || replicator_.all_received() || StartedOver()) undecided_ = true;
  return verdict;
}

bool FillSession::HandleLanded(SourceIndex index, SegmentIndex segment, absl::Time now) {
  if (!replicator_.HandleLanded(index, segment, now)) return false;
  ++under_way_;
  return true;
}

void FillSession::HandleLandedLost(absl::Status why) {
  --under_way_;
  HandleBufferLost(std::move(why));
}

void FillSession::HandleBufferLost(absl::Status why) {
  if (!buffer_lost_.has_value()) buffer_lost_ = std::move(why);
  undecided_ = true;
}

void FillSession::HandleNoRoom(SourceIndex index, SegmentIndex segment, absl::Time now) {
  replicator_.HandleDiscarded(index, segment, now);
  discarded_bytes_ += replicator_.LengthOf(segment);
  no_room_ = true;
}

void FillSession::HandleRoom() {
  no_room_ = false;
  ask_all_ = true;
}

void FillSession::HandleAlive(SourceIndex index, absl::Time now) {
  replicator_.HandleAlive(index, now);
}

void FillSession::HandleClosed(SourceIndex index, SourceFailure failure, std::string detail) {
  Source& source = sources_[index.value];
  replicator_.RemoveSource(index);
  const SourceState before = std::exchange(source.state, SourceState::kClosed);
  undecided_ = ask_all_ = true;
  const bool was_in_use = before == SourceState::kOpening || before == SourceState::kAdmitted;
  if (!was_in_use || !lacks_segments()) return;
  if (failure == SourceFailure::kConnect) NoteBroken(source.endpoint, detail);
  // Its path has broken, and not the source.
  const bool path_broke = before == SourceState::kAdmitted && failure == SourceFailure::kConnect;
  if (TH_MUTATE(kBlameTheSourceForItsPath, path_broke, false) && GoOnElsewhere(source, detail)) {
    return;
  }
  const bool may_answer_elsewhere =
      TH_MUTATE(kTryNoOtherEndpoint,
                before == SourceState::kOpening && MayTryElsewhere(source, failure), false);
  if (may_answer_elsewhere) {
    std::vector<PassedOver> passed_over = source.passed_over;
    PassOver(source.endpoint, detail, source.passed_over);
    if (OpenNextEndpoint(source)) return;
    source.passed_over = std::move(passed_over);  // the last one failed: it is not passed over
  }
  Fail(source, failure, std::move(detail));
}

// Opens another endpoint of `source`, whose path has broken, as a source of its own: the report
// says what came over each. False when there is none that is within reach and may be used.
bool FillSession::GoOnElsewhere(Source& source, const std::string& detail) {
  Source next{.index = SourceIndex(static_cast<uint32_t>(sources_.size())),
              .assigned = source.assigned,
              .assignment = source.assignment};
  PassOver(source.endpoint, detail, next.passed_over);
  std::erase_if(next.assigned.endpoints, [&](const Endpoint& endpoint) {
    const bool other_transport = endpoint.transport != source.endpoint.transport;
    return WhyBroken(endpoint) != nullptr || (strict_transport_ && other_transport);
  });
  sources_.push_back(std::move(next));
  if (!OpenNextEndpoint(sources_.back())) {
    sources_.pop_back();
    return false;
  }
  source.failure = detail;
  CountReroute();
  return true;
}

// True when the next endpoint may be better than the one at which nobody has answered. One that
// took the connection and said nothing belongs to a process that stands still: another transport
// would wait for the same process, another address of this one may lead elsewhere.
bool FillSession::MayTryElsewhere(const Source& source, SourceFailure failure) const {
  const std::vector<Endpoint>& endpoints = source.assigned.endpoints;
  const auto next = std::find_if(
      endpoints.begin() + static_cast<std::ptrdiff_t>(source.next_endpoint), endpoints.end(),
      [this](const Endpoint& endpoint) { return reach_(endpoint).ok(); });
  if (next == endpoints.end()) return false;
  const bool same_transport = next->transport == source.endpoint.transport;
  if (failure == SourceFailure::kStalled) {
    return TH_MUTATE(kWaitForASilentSourceAgain, same_transport, true);
  }
  if (failure != SourceFailure::kConnect) return false;
  return same_transport || TH_MUTATE(kFallBackThoughStrict, !strict_transport_, true);
}

// ---- time

void FillSession::HandleTick(absl::Time now) {
  if (now < tick_at_) return;
  const absl::Duration late = now - tick_at_;
  if (late > kLateFillTick) replicator_.HandlePause(late);
  tick_at_ = lacks_segments() && any_open() ? now + kFillTick : absl::InfiniteFuture();
  if (stopping()) return;
  ReportProgress(now);
  undecided_ = ask_all_ = true;
}

void FillSession::ReportProgress(absl::Time now) {
  const uint64_t bytes = replicator_.bytes_held();
  const bool quiet = bytes == progress_bytes_;
  const absl::Duration pause =
      quiet ? now - std::max(progress_at_, began_at_) - kQuietFillProgressInterval
            : now - progress_at_ - kFillProgressInterval;
  if (pause < absl::ZeroDuration()) return;
  progress_bytes_ = bytes;
  progress_at_ = now;
  outputs_.push_back(FillProgressed{replicator_.held(), bytes, Throughputs(now), Transports()});
}

std::vector<SourceThroughput> FillSession::Throughputs(absl::Time now) const {
  std::vector<SourceThroughput> throughputs;
  for (const Source& source : sources_) {
    if (source.failed || source.replaced) continue;
    const SourceThroughput throughput{source.assigned.buffer, replicator_.bytes_from(source.index),
                                      replicator_.waited_for(source.index, now)};
    // One whose path broke goes on over another as a source of its own.
    const auto before = std::find_if(
        throughputs.begin(), throughputs.end(),
        [&](const SourceThroughput& each) { return each.source == throughput.source; });
    if (before == throughputs.end()) {
      throughputs.push_back(throughput);
    } else {
      before->bytes += throughput.bytes;
      before->waited += throughput.waited;
    }
  }
  return throughputs;
}

// ---- decisions

bool FillSession::PollChecksums(SourceIndex index, absl::Time now) {
  if (stopping() || sources_[index.value].state != SourceState::kAdmitted) return false;
  return replicator_.PollChecksums(index, now);
}

std::optional<SegmentRange> FillSession::PollRequest(SourceIndex index, absl::Time now) {
  if (stopping() || no_room_ || sources_[index.value].state != SourceState::kAdmitted) {
    return std::nullopt;
  }
  const auto request = replicator_.PollRequest(index, now);
  if (!request.has_value()) return std::nullopt;
  return request->range;
}

bool FillSession::PollStartedOver() {
  return std::exchange(rounds_forgotten_, replicator_.rounds_restarted()) !=
         replicator_.rounds_restarted();
}

std::optional<FillOutput> FillSession::PollOutput(absl::Time now) {
  while (outputs_.empty() && std::exchange(undecided_, false)) Decide(now);
  if (outputs_.empty() && std::exchange(ask_all_, false)) AskAll(now);
  if (outputs_.empty()) return std::nullopt;
  FillOutput output = std::move(outputs_.front());
  outputs_.pop_front();
  return output;
}

void FillSession::AskAll(absl::Time now) {
  for (const Source& source : sources_) {
    if (PollChecksums(source.index, now)) outputs_.push_back(AskPullChecksums{source.index});
    while (const auto range = PollRequest(source.index, now)) {
      outputs_.push_back(AskPull{source.index, *range});
    }
  }
}

// At most one step of the stage at a time, and that of a complete fill with no other output: so it
// is complete exactly when its owner hears it.
void FillSession::Decide(absl::Time now) {
  if (life_ == Life::kStopping && !any_open() && under_way_ == 0) {
    life_ = Life::kStopped;
    outputs_.push_back(FillStopped{});
  }
  if (stopping()) return;
  ReportLost(now);
  ReportSuspected();
  if (stage_ == Stage::kFailed) return;
  if (replicator_.failed() || buffer_lost_.has_value()) {
    stage_ = Stage::kFailed;
    CloseAll();
    outputs_.push_back(FillFailed{buffer_lost_.value_or(absl::DataLossError(
        "the sources' lists of sums disagree with the version's root again and again"))});
  } else if (StartedOver()) {
    rounds_opened_ = rounds();
    stage_ = Stage::kFilling;
    undecided_ = true;
    OpenAssigned(now);
  } else if (replicator_.all_received() && stage_ == Stage::kFilling) {
    stage_ = Stage::kReceived;
    undecided_ = true;
    CloseAll();
    outputs_.push_back(FillReceived{});
  } else if (replicator_.complete() && !outputs_.empty()) {
    undecided_ = true;
  } else if (replicator_.complete()) {
    stage_ = Stage::kComplete;
    const bool whole = !replicator_.receives_a_part();
    Stop();
    outputs_.push_front(FillCompleted{whole ? root_.value_or(Digest{}) : Digest{}});
  }
}

void FillSession::ReportLost(absl::Time now) {
  for (const PipelineReplicator::LostSource& lost : replicator_.PollLost(now)) {
    Source& source = sources_[lost.source.value];
    if (lost.detached) {
      Close(source);
    } else if (lost.corrupt) {
      Fail(source, SourceFailure::kCorrupt, "sent bytes or sums that are not the version's");
    } else {
      Fail(source, SourceFailure::kStalled,
           absl::StrFormat("silent for %.1f s", absl::ToDoubleSeconds(lost.silent_for)));
    }
  }
}

TransportsUsed FillSession::Transports() const {
  TransportsUsed used;
  for (const Source& source : sources_) {
    TransportsUsed of_source{.passed_over = source.passed_over};
    const bool is_read = source.in_use() || replicator_.bytes_from(source.index) > 0;
    if (is_read) of_source.names.push_back(source.endpoint.transport);
    used.Add(of_source);
  }
  return used;
}

void FillSession::ReportSuspected() {
  for (const PipelineReplicator::Suspicion& suspicion : replicator_.PollSuspected()) {
    const Source& source = sources_[suspicion.source.value];
    if (!source.in_use()) continue;
    outputs_.push_back(FillSourceSuspected{
        source.assignment, source.assigned.buffer,
        absl::StrCat("segment ", suspicion.segment.value, " did not match its sum")});
  }
}

FillStatus FillSession::status(absl::Time now) const {
  FillStatus status{.held = replicator_.held(),
                    .bytes_held = replicator_.bytes_held(),
                    .bytes_unchanged = replicator_.bytes_unchanged(),
                    .corrupt_segments = replicator_.corrupt_segments(),
                    .reroutes = reroutes_,
                    .rerouted_bytes = rerouted_bytes_,
                    .reread_bytes = discarded_bytes_};
  for (const Source& source : sources_) {
    const bool any = source.last_byte > source.first_byte;
    const Endpoint& at = source.endpoint;
    status.sources.push_back(
        {.source = source.assigned.buffer,
         .name = source.assigned.name,
         .peer = at.address.empty() ? "" : absl::StrCat(at.transport, " ", at.address),
         .transport = at.transport,
         .passed_over = source.passed_over,
         .bytes = replicator_.bytes_from(source.index),
         .corrupt_segments = replicator_.corrupt_from(source.index),
         .active = any ? source.last_byte - source.first_byte : absl::ZeroDuration(),
         .waited = replicator_.waited_for(source.index, now),
         .failed = source.failed,
         .failure = source.failure,
         .replaced = source.replaced,
         .distance = source.assigned.distance,
         .publisher = source.assigned.publisher});
  }
  return status;
}

}  // namespace th
