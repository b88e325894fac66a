// One fill of one buffer, between the session that ordered it and the data plane that does it.
//
// Events of the fill go to the session. Lives until the fill has stopped, by itself if need be: the
// data plane holds plain pointers to it.
#ifndef TH_CLIENT_FILL_DRIVER_H_
#define TH_CLIENT_FILL_DRIVER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "th/client/data_plane.h"
#include "th/client/progress_reporter.h"
#include "th/client/session_access.h"
#include "th/transfer/fill.h"
#include "th/transfer/mapping_fill.h"
#include "th/worker_session/session_types.h"

namespace th {

// The cost of a fill, as it is reported and counted.
FillCost CostOf(const FillStatus& status);

// Start, SetSources, SetRoot and Stop on th-control; the observer's methods on th-fill.
class FillDriver : public FillObserver, public std::enable_shared_from_this<FillDriver> {
 public:
  struct Parts {
    std::shared_ptr<DataPlane> data_plane;
    std::shared_ptr<SessionAccess> session;
    std::shared_ptr<SegmentStore> store;
    SegmentStore::KnownChecksums before = {};    // of what it holds from before the fill
    std::shared_ptr<SegmentRing> ring;           // null: the store keeps what is received
    std::shared_ptr<MappingTarget> mapping;      // not null: nothing is received, it is mapped
    std::shared_ptr<ProgressReporter> progress;  // null: nobody asked
    // The reasons, by name, of transports that cannot write to the buffer's memory.
    std::map<std::string, absl::Status> refused_by = {};
    // On th-fill, once, when nothing is written any more. (Null: the fill never began.)
    std::function<void(std::shared_ptr<FillDriver>)> on_stopped;
  };
  static std::shared_ptr<FillDriver> Start(const StartFill& order, Parts parts);

  void SetSources(const th::SetSources& order);
  void SetRoot(const Digest& root);
  // Idempotent; on_stopped follows.
  void Stop();

  const VersionInfo& version() const { return version_; }
  OperationKey operation() const { return operation_; }
  bool stopping() const { return fill().stopping(); }
  bool wrote() const { return fill().wrote(); }
  bool completed() const { return fill().completed(); }
  FillStatus status() const { return fill().status(); }

  void OnFirstWrite() override;
  void OnProgress(FillProgressed progress) override;
  void OnAllReceived() override;
  void OnComplete(Digest root) override;
  void OnFailed(absl::Status why) override;
  void OnSourceFailed(FillSourceFailed lost) override;
  void OnSourceSuspected(AssignmentId assignment, BufferAddress source,
                         std::string detail) override;
  void OnStopped() override;

 private:
  FillDriver(const StartFill& order, Parts parts);
  UpdateProgress Progress() const;
  FillControl& fill() const;
  std::shared_ptr<FillControl> MakeFill(const StartFill& order);

  const BufferId buffer_;
  const OperationKey operation_;
  const VersionInfo version_;
  Parts parts_;
  // Its first events may come before Start has returned.
  mutable absl::Mutex mu_;
  std::shared_ptr<FillControl> fill_ ABSL_GUARDED_BY(mu_);  // shared with its own thread
  std::shared_ptr<FillDriver> self_;                        // until OnStopped
};

}  // namespace th

#endif  // TH_CLIENT_FILL_DRIVER_H_
