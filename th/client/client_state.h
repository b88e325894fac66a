// The objects behind the handles of client.h.
#ifndef TH_CLIENT_CLIENT_STATE_H_
#define TH_CLIENT_CLIENT_STATE_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "th/client/call.h"
#include "th/client/client.h"
#include "th/client/process_guard.h"
#include "th/client/session_driver.h"
#include "th/client/shard_search.h"
#include "th/protocol/messages.h"
#include "th/weights/shard_layout.h"

namespace th {

struct Client::Impl {
  // The connection of calls that no membership makes, shared by all of them and kept. Errors of
  // Controller::Connect.
  absl::StatusOr<std::shared_ptr<Controller>> ConnectedController(absl::Duration timeout);
  // The layout, without a call when it is that of the last Receive. Errors of GetLayout.
  absl::StatusOr<std::shared_ptr<const ShardLayout>> LayoutOf(Controller& asked,
                                                              const Digest& digest,
                                                              absl::Duration timeout);

  // Errors of the two before, and of Controller::FindShard.
  absl::StatusOr<ShardToRead> FindShard(const VersionSelector& version, const ShardChoice& choice,
                                        absl::Time deadline);

  const ProcessGuard guard;
  // Shared with streams that outlive the membership.
  const std::shared_ptr<ControlByteCount> control_bytes = std::make_shared<ControlByteCount>(0);
  std::shared_ptr<SessionDriver> membership;
  std::string server;
  absl::Mutex mu;
  std::shared_ptr<Controller> controller ABSL_GUARDED_BY(mu);  // see ConnectedController
  // The layout of the last Receive; the next one mostly means the same shard.
  std::shared_ptr<const ShardLayout> last_received ABSL_GUARDED_BY(mu);
};

struct WeightBuffer::Impl {
  // True when bytes of the last publication were sent.
  bool HasReaders() {
    absl::MutexLock lock(&mu);
    return buffer->bytes_sent().load() > bytes_sent_before_publish;
  }

  const ProcessGuard guard;
  std::shared_ptr<SessionDriver> membership;
  std::shared_ptr<LocalBuffer> buffer;
  absl::Mutex mu;
  std::shared_ptr<Call> last_publish ABSL_GUARDED_BY(mu);
  absl::Duration last_publish_timeout ABSL_GUARDED_BY(mu);
  uint64_t bytes_sent_before_publish ABSL_GUARDED_BY(mu) = 0;
  PublishResult last_snapshot ABSL_GUARDED_BY(mu);  // of the last publish, but for its version
  // A snapshot and its publication are one step.
  absl::Mutex snapshot_mu ABSL_ACQUIRED_BEFORE(mu);
};

// ---- the common part of the verbs of a WeightBuffer: refusals, and how long one waits at most

inline absl::Status NoBuffer() {
  return absl::FailedPreconditionError("this WeightBuffer is empty (moved from, or never made)");
}

inline absl::Status Unanswered(absl::string_view verb) {
  return absl::DeadlineExceededError(absl::StrCat(verb, " did not end in time"));
}

// The longest wait of an unpublish, update or apply. Each copy that it waits for gives it its time
// anew.
template <typename Options>
absl::Duration LongestWait(const Options& options) {
  const absl::Duration once = options.timeout + options.drain_timeout;
  if (options.on_retention == OnRetention::kDrop) return once;
  return once + kMaxOffloadsOfOperation * (options.offload_timeout + options.timeout);
}

// 32 hexadecimal digits from the system's random source.
std::string RandomIdempotencyKey();

}  // namespace th

#endif  // TH_CLIENT_CLIENT_STATE_H_
