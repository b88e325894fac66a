// One fill of one buffer: the PipelineReplicator core driven over transports.
//
//   auto fill = Fill::Start({.store = store, ...}, transports, observer);
//   fill->SetSources(assignment, sources);  // again whenever the server assigns anew
//   fill->SetRoot(root);
//   ... observer->OnComplete(root) ...
//   fill->Stop();                           // no byte is written after OnStopped
//
// Thread-safe. Lost, silent, refusing and corrupting sources are closed and reported; the fill
// keeps what it has and goes on with what SetSources names.
#ifndef TH_TRANSFER_FILL_H_
#define TH_TRANSFER_FILL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/pipeline_replicator/pipeline_replicator.h"
#include "th/protocol/messages.h"
#include "th/transfer/segment_ring.h"
#include "th/transfer/transport.h"

namespace th {

// What one source contributed, for results and the demo's table.
struct FillSourceReport {
  BufferAddress source;
  RankName name;
  std::string peer;               // "tcp 10.0.0.7:4711"
  std::string transport;          // "tcp"
  uint64_t bytes = 0;             // accepted
  uint32_t corrupt_segments = 0;  // any: the source is suspected; too many: it has failed
  absl::Duration active;          // from the first to the last byte
  absl::Duration waited;          // something asked of it was outstanding
  bool failed = false;
  std::string failure;
  bool replaced = false;  // let go for the sources of a newer assignment
  Distance distance = Distance::kSameSite;
  bool publisher = false;  // not a relay
};
struct FillStatus {
  SegmentSet held;
  uint64_t bytes_held = 0;
  uint64_t corrupt_segments = 0;
  uint32_t reroutes = 0;        // sources that were lost or replaced while bytes were missing
  uint64_t rerouted_bytes = 0;  // accepted after the first re-route
  // Received and thrown away, so received again: the part of a segment that had come when its
  // source was let go, segments that another source had brought meanwhile, and those with a wrong
  // sum.
  uint64_t reread_bytes = 0;
  // The most that this fill has held outside of its destination at one time (extra_bytes.h).
  uint64_t peak_extra_bytes = 0;
  std::vector<FillSourceReport> sources;  // in the order of their assignment
};

// Called on the thread th-fill, which all fills of the process share, one call at a time, never
// inline from a call into the Fill. Must not block.
class FillObserver {
 public:
  virtual ~FillObserver() = default;
  virtual void OnFirstWrite() = 0;
  // At most twenty times a second, and four while nothing arrives; read status().
  virtual void OnProgress() = 0;
  // All received and checked; the sources have been let go. Again after a list that was wrong.
  virtual void OnAllReceived() = 0;
  virtual void OnComplete(Digest root) = 0;     // all received, checked, the root agrees
  virtual void OnFailed(absl::Status why) = 0;  // cannot end well (the list was wrong too often)
  virtual void OnSourceFailed(AssignmentId assignment, BufferAddress source, SourceFailure failure,
                              std::string detail) = 0;
  // It sent a corrupt segment and stays in use; the segment waits for another source. SetSources
  // with a newer assignment gives one, or says (naming this source alone) that there is none. Once
  // a source and fill.
  virtual void OnSourceSuspected(AssignmentId assignment, BufferAddress source,
                                 std::string detail) = 0;
  // After Stop(): nothing is written any more and no call follows.
  virtual void OnStopped() = 0;
};

struct FillSpec {
  std::shared_ptr<SegmentStore> store;  // BeginFill was called by the owner
  SegmentSet resume;
  std::optional<Digest> root;
  ReplicatorLimits limits;
  // The fill hands on what it receives: its bytes go here and not into the store, which gives only
  // the layout then and serves nothing. `resume` is empty. Shared with the consumer. OnComplete
  // says no root where the ring wants but a part of the shard.
  std::shared_ptr<SegmentRing> ring;
};

class Fill {
 public:
  // `transports` and `observer` outlive OnStopped.
  static std::unique_ptr<Fill> Start(FillSpec spec, std::vector<Transport*> transports,
                                     FillObserver* observer);
  virtual ~Fill() = default;  // after OnStopped
  // Sources that are in use already and are named again go on undisturbed. Others are let go
  // softly: nothing new is asked of them, what they have begun to send is taken, for
  // ReplicatorLimits::soft_switch at most; the rest is asked of the new ones.
  virtual void SetSources(AssignmentId assignment, std::vector<AssignedSource> sources) = 0;
  virtual void SetRoot(Digest root) = 0;
  virtual void Stop() = 0;
  virtual FillStatus status() const = 0;
};

}  // namespace th

#endif  // TH_TRANSFER_FILL_H_
