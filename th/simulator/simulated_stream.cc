#include "th/simulator/simulated_stream.h"

#include <utility>

#include "th/simulator/cluster.h"
#include "th/simulator/simulated_worker.h"

namespace th {

SimulatedStream::SimulatedStream(SimulatedWorker* worker, BufferId buffer, ReceiveSpec spec)
    : worker_(worker), buffer_(buffer), spec_(std::move(spec)) {
  order_.reserve(spec_.wanted.count());
  for (const SegmentRange& range : spec_.wanted.ranges()) {
    for (SegmentIndex segment = range.begin; segment < range.end; segment = segment.Next()) {
      order_.push_back(segment);
    }
  }
}

void SimulatedStream::NoteMoved() {
  moved_ = true;
  Pump();
}

void SimulatedStream::Arrived(SegmentIndex segment) {
  InvariantChecker& checker = worker_->cluster().checker();
  checker.Expect(spec_.wanted.Contains(segment), "receives a segment that it did not ask for",
                 worker_->Name());
  arrived_.Add(segment);
  checker.Expect(arrived_.count() - taken_ <= spec_.ring_segments,
                 "has received more than its ring holds", worker_->Name());
  Pump();
}

void SimulatedStream::Pump() {
  if (taking_ || took_all() || !arrived_.Contains(next())) return;
  taking_ = true;
  worker_->Post(spec_.take_time,
                [worker = worker_, buffer = buffer_] { worker->HandleStreamTake(buffer); });
}

bool SimulatedStream::Take() {
  taking_ = false;
  if (spec_.fails_after == taken_) return false;
  ++taken_;
  Pump();
  return true;
}

}  // namespace th
