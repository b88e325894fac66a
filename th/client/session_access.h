// The one way to a WorkerSession, which is not thread-safe.
#ifndef TH_CLIENT_SESSION_ACCESS_H_
#define TH_CLIENT_SESSION_ACCESS_H_

#include "th/worker_session/worker_session.h"

namespace th {

class SessionAccess {
 public:
  virtual ~SessionAccess() = default;
  // Tells the session of one event, now; what the session then asks for is carried out later, on
  // th-control. Any thread.
  virtual SessionAnswer Handle(SessionEvent event) = 0;
};

}  // namespace th

#endif  // TH_CLIENT_SESSION_ACCESS_H_
