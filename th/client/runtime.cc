#include "th/client/runtime.h"

#include <pthread.h>

#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace th {
namespace {

thread_local int foreign_depth = 0;

struct Shared {
  absl::Mutex mu;
  std::weak_ptr<Runtime> runtime ABSL_GUARDED_BY(mu);
};

// Never destroyed: a client may still end during the host's exit.
Shared& SharedRuntime() {
  static Shared* shared = new Shared;
  return *shared;
}

}  // namespace

ForeignThreadScope::ForeignThreadScope() { ++foreign_depth; }
ForeignThreadScope::~ForeignThreadScope() { --foreign_depth; }

void DestroySafely(std::function<void()> destroy) {
  if (foreign_depth == 0) return destroy();
  SignalsBlocked blocked;
  std::thread([destroy = std::move(destroy)] {
    pthread_setname_np(pthread_self(), "th-reaper");
    destroy();
  }).detach();
}

std::shared_ptr<Runtime> Runtime::Acquire() {
  Shared& shared = SharedRuntime();
  absl::MutexLock lock(&shared.mu);
  if (auto runtime = shared.runtime.lock()) return runtime;
  std::shared_ptr<Runtime> runtime(
      new Runtime, [](Runtime* ended) { DestroySafely([ended] { delete ended; }); });
  shared.runtime = runtime;
  return runtime;
}

TaskLoop& Runtime::SealerOf(const std::string& gpu) {
  if (gpu.empty()) return sealer_;
  absl::MutexLock lock(&mu_);
  return gpu_sealers_.try_emplace(gpu, "th-seal-gpu").first->second;
}

void Runtime::RunOnControl(const std::function<void()>& task) {
  if (control_.OnLoop()) return task();
  absl::Notification done;
  control_.Post([&] {
    task();
    done.Notify();
  });
  done.WaitForNotification();
}

}  // namespace th
