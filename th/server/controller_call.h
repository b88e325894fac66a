// One call of a controller: one request, one answer.
//
// A call is counted, its answer with it, until gRPC is done with both: a controller that asks and
// does not read takes no more of the server's memory than OpenCalls allows.
#ifndef TH_SERVER_CONTROLLER_CALL_H_
#define TH_SERVER_CONTROLLER_CALL_H_

#include <cstddef>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "google/protobuf/message.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "th/server/registry_loop.h"
#include "th/server/server_metrics.h"

namespace th {

// The most that controllers may keep the server busy with at once. What is beyond is refused with
// RESOURCE_EXHAUSTED.
struct CallLimits {
  size_t max_open = kMaxPendingQuestions + kMaxWaits;  // calls whose answer has not left yet
  size_t max_answer_bytes = size_t{512} << 20;         // of their answers together
};

// The calls of all controllers. Thread-safe.
class OpenCalls {
 public:
  // `metrics`, which counts what is refused, outlives it.
  OpenCalls(CallLimits limits, ServerMetrics* metrics) : limits_(limits), metrics_(metrics) {}

  // RESOURCE_EXHAUSTED: one more is not counted, and must end at once.
  absl::Status Open();
  // An open call answers with so many bytes. RESOURCE_EXHAUSTED: they are not counted, and must not
  // be sent.
  absl::Status AddAnswer(size_t bytes);
  // Ends a call, whose answer has `answer_bytes` that AddAnswer has taken.
  void Close(size_t answer_bytes);

 private:
  const CallLimits limits_;
  ServerMetrics* const metrics_;
  absl::Mutex mutex_;
  size_t open_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t answer_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Belongs to itself until gRPC is done with it. Thread-safe.
class ControllerCall final : public grpc::ServerGenericBidiReactor {
 public:
  // Must let the call end, by Answer or Fail, exactly once, on any thread, at once or later.
  using Handler = std::function<void(ControllerCall& call, grpc::ByteBuffer& request)>;

  // `open_calls` and `handler` outlive the gRPC server.
  ControllerCall(OpenCalls* open_calls, const Handler* handler);

  void Answer(const google::protobuf::Message& answer);
  void Fail(const absl::Status& why);
  // Calls `hung_up` once, on one of gRPC's threads or inline, if the caller hangs up before the
  // call has ended.
  void OnHangUp(absl::AnyInvocable<void()> hung_up);

  // gRPC's threads.
  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  OpenCalls* const open_calls_;
  const Handler* const handler_;
  bool counted_ = false;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer answer_;
  size_t answer_bytes_ = 0;

  absl::Mutex mutex_;
  bool has_hung_up_ ABSL_GUARDED_BY(mutex_) = false;
  absl::AnyInvocable<void()> hung_up_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace th

#endif  // TH_SERVER_CONTROLLER_CALL_H_
