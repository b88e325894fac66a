// How a function of tensorhub.h is made: its arguments are read into a Call, which is run at once,
// or on a thread of its own behind a th_operation.
//
//   absl::StatusOr<Call> Update(th_buffer* buffer, const char* version, ...) {
//     ... read everything that is the caller's ...
//     return Call{[=] { return Answer{...}; }, &buffer->running};
//   }
//   th_status th_update(...) {
//     return RunNow([&] { return Update(...); }, {.outcome = outcome, .json = result});
//   }
//   th_status th_update_start(...) { return Start([&] { return Update(...); }, operation); }
#ifndef TH_C_INTERFACE_C_CALL_H_
#define TH_C_INTERFACE_C_CALL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "th/c_interface/c_handles.h"
#include "th/c_interface/tensorhub.h"

namespace th::c {

// The results of a call, besides its status.
struct Answer {
  th_outcome outcome = TH_NONE;
  std::string json;  // empty: it gives none
  bool yes = false;  // of th_wait_applied: all; of th_await_form: make
  std::unique_ptr<th_client> client;
  std::unique_ptr<th_buffer> buffer;
  std::unique_ptr<th_attached> attached;
  std::unique_ptr<th_controller> controller;
};

// The progress of an update or stage, while it runs.
struct Progress {
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<uint64_t> bytes_total{0};
};

// A call whose arguments are read.
struct Call {
  std::function<absl::StatusOr<Answer>()> run;
  RunningSet* on = nullptr;  // of the handle that it uses; null: none
  std::shared_ptr<Progress> progress = nullptr;
};

// Where RunNow puts what comes of a call. Null: the caller does not want it.
struct Outs {
  th_outcome* outcome = nullptr;
  char** json = nullptr;
  int32_t* yes = nullptr;
  th_client** client = nullptr;
  th_buffer** buffer = nullptr;
  th_attached** attached = nullptr;
  th_controller** controller = nullptr;
};

using ReadCall = absl::FunctionRef<absl::StatusOr<Call>()>;

// Sets all of `outs` to nothing first.
th_status RunNow(ReadCall read, Outs outs);
// Starts an operation. Errors of `read`; RESOURCE_EXHAUSTED.
th_status Start(ReadCall read, th_operation** operation);

// ---- errors, and what is given out

// Notes it as the thread's last error.
th_status Reported(const absl::Status& status);
// Nothing may be thrown into C: memory can run out in any function.
th_status Guarded(absl::FunctionRef<absl::Status()> body);
absl::StatusOr<Answer> Caught(const std::function<absl::StatusOr<Answer>()>& run);

absl::Status Needed(const void* pointer, absl::string_view what);
absl::Status Give(const std::string& text, char** out);

}  // namespace th::c

#endif  // TH_C_INTERFACE_C_CALL_H_
