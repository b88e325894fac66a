// The results of the verbs.
//
//   TH_ASSIGN_OR_RETURN(th::UpdateResult result, weights.Update(th::Latest()));
//   if (result.moved()) LOG(INFO) << result.version().ToString() << " after " << result.seconds();
#ifndef TH_CLIENT_RESULTS_H_
#define TH_CLIENT_RESULTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/event.h"
#include "th/protocol/messages.h"
#include "th/topology/location.h"
#include "th/weights/version.h"

namespace th {

// The result of Publish.
struct PublishResult {
  VersionInfo version;
  uint64_t snapshot_bytes = 0;  // 0: it is served in place
  absl::Duration snapshot;      // that the copy took
};

// The result of AwaitForm.
struct AwaitedForm {
  VersionInfo version;
  bool make = false;  // the form is offered by nobody, and this group is the one that makes it
};

// One source's part of an update.
struct SourceShare {
  std::string name;  // "rollout-1/1"
  std::string peer;  // "tcp 10.0.0.7:4711"
  std::string transport;
  // Why not over a better transport that the source has: "same_host: on another host".
  std::string passed_over;
  uint64_t bytes = 0;
  absl::Duration active;  // from its first byte to its last
  std::string failure;    // why it was left; empty: it was not
  Distance distance = Distance::kSameSite;
};

class UpdateResult {
 public:
  bool moved() const { return outcome == UpdateOutcome::kMoved; }
  bool already_there() const { return outcome == UpdateOutcome::kAlreadyThere; }
  bool not_available() const { return outcome == UpdateOutcome::kNotAvailable; }
  const VersionInfo& version() const { return info; }

  UpdateOutcome outcome = UpdateOutcome::kNone;
  NotAvailableReason reason = NotAvailableReason::kNone;
  VersionInfo info;  // with the publisher's attributes
  // The server's name of the operation, the same in its log, in `th events` and at every source.
  EventId event;
  // Where the seconds of this rank went. Their sum is the stall, but of Stage, which stalls nobody.
  absl::Duration resolve, queue, transfer, verify, apply;
  absl::Duration seconds() const { return resolve + queue + transfer + verify + apply; }
  absl::Duration stall() const { return beside ? absl::ZeroDuration() : seconds(); }
  bool beside = false;  // of Stage: the buffer was in use all the time
  uint64_t bytes_received = 0;
  // Not received: the buffer had the same bytes from the version before.
  uint64_t bytes_unchanged = 0;
  uint32_t reroutes = 0;
  uint64_t rerouted_bytes = 0;  // received after the first re-route
  // Received and thrown away, so received again: mostly the part of a segment that had come when
  // its source was lost.
  uint64_t reread_bytes = 0;
  uint64_t corrupt_segments = 0;
  // Received beside the weights and thrown away: gaps between tensors of a source that its readers'
  // adapters read together (ibverbs), at most 1 % of each segment.
  uint64_t packing_overhead_bytes = 0;
  // The most memory beyond the caller's buffer that the transfer held at one time: a staged copy,
  // requests, control frames, bytes on their way. The kernel's socket buffers are not counted.
  uint64_t peak_extra_bytes = 0;
  uint64_t staged_bytes = 0;  // of these, the staged copy's
  std::vector<SourceShare> sources;
};

template <typename T>
using ResultCallback = std::function<void(absl::StatusOr<T>)>;

// Which groups have applied a version. A value.
struct AppliedResult {
  struct Lacking {
    std::string group;
    std::string why;  // "holds step-56 (#7.3)", "is filling, 12 of 96 bytes", "has not joined"
  };
  bool all() const { return lacking.empty(); }

  VersionInfo version;
  std::vector<std::string> applied;  // they hold it whole, on all their ranks
  std::vector<Lacking> lacking;
};

}  // namespace th

#endif  // TH_CLIENT_RESULTS_H_
