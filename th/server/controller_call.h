// One call of a controller: one request, one answer.
//
// A call is counted, its answer with it, until gRPC is done with both: a controller that asks and
// does not read takes no more of the server's memory than OpenCalls allows.
#ifndef TH_SERVER_CONTROLLER_CALL_H_
#define TH_SERVER_CONTROLLER_CALL_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "th/server/registry_loop.h"
#include "th/server/server_metrics.h"

namespace th {

// Limits on calls in progress, over all controllers. A call beyond them ends with
// RESOURCE_EXHAUSTED.
struct CallLimits {
  size_t max_open = kMaxPendingQuestions + kMaxWaits;  // from the request until the answer is sent
  size_t max_answer_bytes = size_t{512} << 20;         // of all answers that have not been sent
  // A controller waits for a version no longer than this at a time; one that has longer asks again.
  absl::Duration longest_wait = absl::Minutes(10);
};

// The calls of all controllers. Thread-safe.
class OpenCalls {
 public:
  // `metrics`, which counts what is refused, outlives it.
  OpenCalls(CallLimits limits, ServerMetrics* metrics) : limits_(limits), metrics_(metrics) {}

  // Counts one more call. RESOURCE_EXHAUSTED: it is not counted, and Close must not be called for
  // it.
  absl::Status Open();
  // Reserves `bytes` for the answer of an open call. RESOURCE_EXHAUSTED: nothing is reserved; the
  // answer must not be sent. Never refuses a `final` one, however many bytes there are.
  absl::Status AddAnswer(size_t bytes, bool final);
  // Ends an open call and releases the `answer_bytes` that AddAnswer has reserved for it.
  void Close(size_t answer_bytes);

 private:
  const CallLimits limits_;
  ServerMetrics* const metrics_;
  absl::Mutex mutex_;
  size_t open_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t answer_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// One unary call, served as bytes: reads the request, calls the handler, sends one answer or one
// error. gRPC gets it from CreateReactor; it deletes itself in OnDone.
//
//   const ControllerCall::Handler echo = [](ControllerCall& call, grpc::ByteBuffer& request) {
//     call.Answer(Echo(request));
//   };
//
// The handler, or work that it starts, calls exactly one of Answer, AnswerCommand and Fail, once,
// on any thread. After that the call may be deleted at any time, but not before the handler has
// returned.
class ControllerCall final : public grpc::ServerGenericBidiReactor {
 public:
  // Decodes the request and ends the call, now or later. Must not block.
  using Handler = std::function<void(ControllerCall& call, grpc::ByteBuffer& request)>;

  // `open_calls` and `handler` outlive the gRPC server. `peer` is the caller as gRPC names it.
  ControllerCall(OpenCalls* open_calls, const Handler* handler, const std::string& peer);

  // Names the caller for people: "controller at 10.0.0.5".
  const std::string& caller() const { return caller_; }

  void Answer(const google::protobuf::MessageLite& answer) { Send(answer, /*final=*/false); }
  // Answers a command that has taken effect. Never refused for lack of memory: the caller must hear
  // of it.
  void AnswerCommand(const google::protobuf::MessageLite& answer) { Send(answer, /*final=*/true); }
  void Fail(const absl::Status& why);
  // Sets what is called, at most once, when the caller cancels or disconnects before the answer has
  // been sent: on one of gRPC's threads, or inline if that has happened already. It may come after
  // Answer or Fail. To be called in the handler only.
  void SetCancelCallback(absl::AnyInvocable<void()> on_cancel);

  // gRPC's threads.
  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void Send(const google::protobuf::MessageLite& answer, bool final);

  OpenCalls* const open_calls_;
  const Handler* const handler_;
  const std::string caller_;
  bool counted_ = false;  // in open_calls_
  grpc::ByteBuffer request_;
  grpc::ByteBuffer answer_;
  size_t answer_bytes_ = 0;

  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::AnyInvocable<void()> on_cancel_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace th

#endif  // TH_SERVER_CONTROLLER_CALL_H_
