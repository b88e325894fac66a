// The threads that all clients and controllers of a process share. Made by the first of them,
// ended with the last.
//
//   th-control   carries out what the sessions ask for, runs timers; all gRPC objects are made here
//   th-callback  the only thread that runs the user's functions
//   th-seal      sums published buffers of host memory, makes and gives back copies
//   th-seal-gpu  sums those of one GPU; a thread each, begun with the first
//
// The data plane adds its own (data_plane.h), gRPC its own as well; all of them have all signals
// blocked. Thread-safe.
#ifndef TH_CLIENT_RUNTIME_H_
#define TH_CLIENT_RUNTIME_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "th/client/task_loop.h"

namespace th {

class Runtime {
 public:
  // The one of this process. May be dropped on any thread, its own and data threads too.
  static std::shared_ptr<Runtime> Acquire();

  TaskLoop& control() { return control_; }
  TaskLoop& callbacks() { return callbacks_; }
  TaskLoop& sealer() { return sealer_; }
  // For buffers whose sums a GPU takes; empty: sealer(). A GPU that hangs holds up nothing but
  // them.
  TaskLoop& SealerOf(const std::string& gpu);

  // Runs `task` on th-control and returns when it has run. Not for th-control's own tasks' locks:
  // hold none. On th-control it runs inline.
  void RunOnControl(const std::function<void()>& task);

 private:
  Runtime() = default;
  ~Runtime() = default;

  TaskLoop callbacks_{"th-callback"};
  TaskLoop sealer_{"th-seal"};
  absl::Mutex mu_;
  std::map<std::string, TaskLoop> gpu_sealers_ ABSL_GUARDED_BY(mu_);  // one a GPU of the process
  TaskLoop control_{"th-control"};  // last: its tasks post to the others
};

// Marks this thread as one that others own (a data thread, gRPC's) for its scope: what ends within
// is destroyed elsewhere, so that no thread joins itself.
class ForeignThreadScope {
 public:
  ForeignThreadScope();
  ~ForeignThreadScope();
  ForeignThreadScope(const ForeignThreadScope&) = delete;
  ForeignThreadScope& operator=(const ForeignThreadScope&) = delete;
};

// Runs `destroy` here, or on a thread of its own when this one is within a ForeignThreadScope.
void DestroySafely(std::function<void()> destroy);

}  // namespace th

#endif  // TH_CLIENT_RUNTIME_H_
