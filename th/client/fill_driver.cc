#include "th/client/fill_driver.h"

#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "th/client/runtime.h"

namespace th {
namespace {

FillCost CostOf(const FillStatus& status) {
  FillCost cost{.rerouted_bytes = status.rerouted_bytes,
                .reread_bytes = status.reread_bytes,
                .reroutes = status.reroutes};
  for (const FillSourceReport& source : status.sources) {
    if (source.bytes == 0) continue;
    AddReceived({source.transport, source.distance, source.publisher, source.bytes}, cost.received);
  }
  return cost;
}

std::vector<SourcePace> PacesOf(const FillStatus& status) {
  std::vector<SourcePace> paces;
  for (const FillSourceReport& source : status.sources) {
    if (source.failed || source.replaced) continue;
    paces.push_back({source.source, source.bytes, source.waited});
  }
  return paces;
}

}  // namespace

FillDriver::FillDriver(const StartFill& order, Parts parts)
    : buffer_(order.buffer),
      operation_(order.operation),
      version_(order.version),
      parts_(std::move(parts)) {}

std::shared_ptr<FillDriver> FillDriver::Start(const StartFill& order, Parts parts) {
  std::shared_ptr<FillDriver> driver(new FillDriver(order, std::move(parts)));
  driver->self_ = driver;
  FillSpec spec;
  spec.store = driver->parts_.store;
  spec.resume = order.resume;
  spec.root = order.root;
  spec.ring = driver->parts_.ring;
  absl::MutexLock lock(&driver->mu_);
  driver->fill_ =
      Fill::Start(std::move(spec), {&driver->parts_.data_plane->transport()}, driver.get());
  return driver;
}

Fill& FillDriver::fill() const {
  absl::MutexLock lock(&mu_);
  return *fill_;
}

void FillDriver::SetSources(const th::SetSources& order) {
  fill().SetSources(order.assignment, order.sources);
}

void FillDriver::SetRoot(const Digest& root) { fill().SetRoot(root); }

void FillDriver::Stop() {
  if (!stopping_.exchange(true)) fill().Stop();
}

void FillDriver::OnFirstWrite() {
  ForeignThreadScope scope;
  wrote_ = true;
  parts_.session->Enter(
      [this](WorkerSession& session, absl::Time now) { session.HandleFirstWrite(buffer_, now); });
}

void FillDriver::OnProgress() {
  ForeignThreadScope scope;
  if (stopping_) return;
  const FillStatus status = fill().status();
  parts_.session->Enter([&](WorkerSession& session, absl::Time now) {
    session.HandleFillProgress(buffer_, {status.held, status.bytes_held, PacesOf(status)}, now);
  });
  if (parts_.progress == nullptr) return;
  parts_.progress->Report([self = shared_from_this()] { return self->Progress(); });
}

UpdateProgress FillDriver::Progress() const {
  const FillStatus status = fill().status();
  UpdateProgress progress;
  progress.version = version_;
  progress.bytes_received = status.bytes_held;
  progress.bytes_total = parts_.store->layout().bytes();
  std::vector<std::string> names;
  for (const FillSourceReport& source : status.sources) {
    if (source.failed || source.replaced) continue;
    names.push_back(source.name.ToString());
    progress.transport = source.transport;
  }
  progress.source = absl::StrJoin(names, ",");
  return progress;
}

void FillDriver::OnAllReceived() {
  ForeignThreadScope scope;
  if (stopping_) return;
  parts_.session->Enter(
      [this](WorkerSession& session, absl::Time now) { session.HandleAllReceived(buffer_, now); });
}

void FillDriver::OnComplete(Digest root) {
  ForeignThreadScope scope;
  // From here on: as soon as the session knows, the buffer may be told to begin another fill, which
  // has to wait for the end of this one.
  if (stopping_.exchange(true)) return;
  completed_ = true;
  FillCost cost = CostOf(fill().status());
  parts_.session->Enter([&](WorkerSession& session, absl::Time now) {
    session.HandleFillCost(buffer_, std::move(cost));
    session.HandleFillComplete(buffer_, root, now);
  });
  fill().Stop();  // its sources need not wait for the group's result
}

void FillDriver::OnFailed(absl::Status why) {
  ForeignThreadScope scope;
  if (stopping_) return;
  parts_.session->Enter([&](WorkerSession& session, absl::Time now) {
    session.HandleFillFailed(buffer_, std::move(why), now);
  });
}

void FillDriver::OnSourceFailed(AssignmentId assignment, BufferAddress source,
                                SourceFailure failure, std::string detail) {
  ForeignThreadScope scope;
  if (stopping_) return;
  parts_.session->Enter([&](WorkerSession& session, absl::Time now) {
    session.HandleSourceFailed(buffer_, assignment, source, failure, std::move(detail), now);
  });
}

void FillDriver::OnSourceSuspected(AssignmentId assignment, BufferAddress source,
                                   std::string detail) {
  ForeignThreadScope scope;
  if (stopping_) return;
  parts_.session->Enter([&](WorkerSession& session, absl::Time now) {
    session.HandleSourceSuspected(buffer_, assignment, source, std::move(detail), now);
  });
}

void FillDriver::OnStopped() {
  ForeignThreadScope scope;
  std::shared_ptr<FillDriver> self = std::move(self_);
  const auto on_stopped = std::move(parts_.on_stopped);
  on_stopped(std::move(self));
}

}  // namespace th
