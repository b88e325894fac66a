// The one way to a WorkerSession, which is not thread-safe.
#ifndef TH_CLIENT_SESSION_ACCESS_H_
#define TH_CLIENT_SESSION_ACCESS_H_

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "th/worker_session/worker_session.h"

namespace th {

class SessionAccess {
 public:
  virtual ~SessionAccess() = default;
  // Runs `event` with the session to itself; what the session then asks for is carried out later,
  // on th-control. Any thread; `event` must not block or call out.
  virtual void Enter(absl::FunctionRef<void(WorkerSession& session, absl::Time now)> event) = 0;
};

}  // namespace th

#endif  // TH_CLIENT_SESSION_ACCESS_H_
