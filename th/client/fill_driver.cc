#include "th/client/fill_driver.h"

#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "th/client/runtime.h"

namespace th {

FillCost CostOf(const FillStatus& status) {
  FillCost cost{.unchanged_bytes = status.bytes_unchanged,
                .rerouted_bytes = status.rerouted_bytes,
                .reread_bytes = status.reread_bytes,
                .reroutes = status.reroutes};
  for (const FillSourceReport& source : status.sources) {
    for (const PassedOver& one : source.passed_over) AddPassedOver(one, cost.passed_over);
    if (source.bytes == 0) continue;
    AddReceived({source.transport, source.distance, source.publisher, source.bytes}, cost.received);
  }
  return cost;
}

FillDriver::FillDriver(const StartFill& order, Parts parts)
    : buffer_(order.buffer),
      operation_(order.operation),
      version_(order.version),
      parts_(std::move(parts)) {}

std::shared_ptr<FillDriver> FillDriver::Start(const StartFill& order, Parts parts) {
  std::shared_ptr<FillDriver> driver(new FillDriver(order, std::move(parts)));
  driver->self_ = driver;
  absl::MutexLock lock(&driver->mu_);
  driver->fill_ = driver->MakeFill(order);
  return driver;
}

std::shared_ptr<FillControl> FillDriver::MakeFill(const StartFill& order) {
  const DataPlane& data_plane = *parts_.data_plane;
  if (parts_.mapping != nullptr) {
    return MappingFill::Start({.layout = parts_.store->shared_layout(),
                               .root = order.root,
                               .target = parts_.mapping,
                               .absent_transports = data_plane.absent_transports()},
                              data_plane.transports(), this);
  }
  FillSpec spec;
  spec.store = parts_.store;
  spec.resume = order.resume;
  spec.before = std::move(parts_.before);
  spec.root = order.root;
  spec.ring = parts_.ring;
  spec.strict_transport = data_plane.strict_transport();
  spec.unusable_transports = data_plane.absent_transports();
  spec.unusable_transports.merge(parts_.refused_by);
  spec.transport_order = data_plane.transport_order();
  return Fill::Start(std::move(spec), data_plane.transports(), this);
}

FillControl& FillDriver::fill() const {
  absl::MutexLock lock(&mu_);
  return *fill_;
}

void FillDriver::SetSources(const th::SetSources& order) {
  fill().SetSources(order.assignment, order.sources);
}

void FillDriver::SetRoot(const Digest& root) { fill().SetRoot(root); }

void FillDriver::Stop() { fill().Stop(); }

void FillDriver::OnFirstWrite() {
  ForeignThreadScope scope;
  parts_.session->Handle(event::FirstWrite{buffer_});
}

void FillDriver::OnProgress(FillProgressed progress) {
  ForeignThreadScope scope;
  FillReport report{std::move(progress.held), progress.bytes_held, std::move(progress.throughputs),
                    std::move(progress.transports)};
  parts_.session->Handle(event::FillProgressed{buffer_, std::move(report)});
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
  parts_.session->Handle(event::AllReceived{buffer_});
}

void FillDriver::OnComplete(Digest root) {
  ForeignThreadScope scope;
  // It is stopping already: as soon as the session knows, the buffer may be told to begin another
  // fill, which has to wait for the end of this one.
  parts_.session->Handle(event::FillCompleted{buffer_, root, CostOf(fill().status())});
}

void FillDriver::OnFailed(absl::Status why) {
  ForeignThreadScope scope;
  parts_.session->Handle(event::FillFailed{buffer_, std::move(why)});
}

void FillDriver::OnSourceFailed(FillSourceFailed lost) {
  ForeignThreadScope scope;
  parts_.session->Handle(event::SourceFailed{buffer_, lost.assignment, lost.source, lost.failure,
                                             std::move(lost.detail), std::move(lost.endpoint)});
}

void FillDriver::OnSourceSuspected(AssignmentId assignment, BufferAddress source,
                                   std::string detail) {
  ForeignThreadScope scope;
  parts_.session->Handle(event::SourceSuspected{buffer_, assignment, source, std::move(detail)});
}

void FillDriver::OnStopped() {
  ForeignThreadScope scope;
  std::shared_ptr<FillDriver> self = std::move(self_);
  const auto on_stopped = std::move(parts_.on_stopped);
  on_stopped(std::move(self));
}

}  // namespace th
