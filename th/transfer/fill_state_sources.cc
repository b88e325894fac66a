// Of FillState: its sources, from the assignment that names one to the report that it is lost.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "th/transfer/fill_state.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

// A buffer under another generation is another source: what it holds may differ.
bool SameSource(const AssignedSource& a, const AssignedSource& b) {
  return a.buffer == b.buffer && a.generation == b.generation;
}

}  // namespace

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

}  // namespace th
