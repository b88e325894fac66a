// One streaming receive of one rank in a simulation: the ring through which its segments pass, and
// the consumer that takes them in order, each in its time.
//
// Not thread-safe.
#ifndef TH_SIMULATOR_SIMULATED_STREAM_H_
#define TH_SIMULATOR_SIMULATED_STREAM_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/messages.h"
#include "th/weights/segments.h"
#include "th/worker_session/session_types.h"

namespace th {

class SimulatedWorker;

struct ReceiveSpec {
  VersionSelector selector = LatestVersion{};
  absl::Duration timeout = absl::Seconds(60);  // of its update
  SegmentSet wanted;                           // of the rank's shard; not empty
  uint64_t ring_segments = 1;                  // at least one
  absl::Duration take_time;                    // of one segment
  // The consumer fails once it has taken so many.
  std::optional<uint64_t> fails_after = std::nullopt;
};

class SimulatedStream {
 public:
  // `worker` outlives it; `buffer` is the receive's.
  SimulatedStream(SimulatedWorker* worker, BufferId buffer, ReceiveSpec spec);

  const ReceiveSpec& spec() const { return spec_; }
  void NoteBegun() { begun_ = true; }
  bool begun() const { return begun_; }  // its update
  // The update has ended well: what is in the ring is taken still.
  void NoteMoved();
  bool moved() const { return moved_; }

  // A segment is in the ring, checked.
  void Arrived(SegmentIndex segment);
  const SegmentSet& arrived() const { return arrived_; }  // those that were taken since, too
  bool whole() const { return arrived_ == spec_.wanted; }
  // The consumer has the next one; its room is free. False: it fails.
  bool Take();
  SegmentIndex next() const { return order_[taken_]; }  // unless took_all()
  uint64_t taken() const { return taken_; }
  bool took_all() const { return taken_ == order_.size(); }

 private:
  void Pump();

  SimulatedWorker* const worker_;
  const BufferId buffer_;
  const ReceiveSpec spec_;
  std::vector<SegmentIndex> order_;  // of the wanted ones
  SegmentSet arrived_;
  uint64_t taken_ = 0;
  bool taking_ = false, begun_ = false, moved_ = false;
};

}  // namespace th

#endif  // TH_SIMULATOR_SIMULATED_STREAM_H_
