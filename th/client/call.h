// One call of the user's that the session answers later.
#ifndef TH_CLIENT_CALL_H_
#define TH_CLIENT_CALL_H_

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "th/client/cancel_hook.h"
#include "th/client/progress_reporter.h"
#include "th/transfer/fill.h"
#include "th/worker_session/session_types.h"

namespace th {

// Beyond the call's own time, how long a caller waits for the session to end its operation. The
// session ends each by itself; this is for the case that it does not.
inline constexpr absl::Duration kCallGrace = absl::Seconds(10);

// Shared between the caller and th-control, which writes the results before it notifies `finished`.
struct Call {
  BufferId buffer;  // of a group operation
  OperationDone done;
  CommandFinished command;
  FillStatus fill;                             // of an update that filled
  std::shared_ptr<ProgressReporter> progress;  // of an update; null: nobody asked
  std::function<void(Call&)> then;             // runs on th-callback; null: somebody waits
  Signal finished;

  // False: `time` and the grace have passed.
  bool Wait(absl::Duration time) { return finished.Wait(time + kCallGrace); }
  // False also when the calls of this thread are cancelled: only the wait ends.
  bool WaitUnlessCancelled(absl::Duration time) {
    return finished.WaitUnlessCancelled(time + kCallGrace);
  }
};

}  // namespace th

#endif  // TH_CLIENT_CALL_H_
