// The limit of operations and receives of a process.
#ifndef TH_C_INTERFACE_C_SLOT_H_
#define TH_C_INTERFACE_C_SLOT_H_

#include <atomic>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace th::c {

// Each has a thread and a descriptor.
inline constexpr int kMaxOperations = 256;

// One operation's place among them, while it lives. Movable.
class OperationSlot {
 public:
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<OperationSlot> Take() {
    if (Count().fetch_add(1) < kMaxOperations) return OperationSlot();
    --Count();
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxOperations, " operations of this process have not been freed; free one"));
  }
  ~OperationSlot() {
    if (taken_) --Count();
  }
  OperationSlot(OperationSlot&& other) noexcept : taken_(std::exchange(other.taken_, false)) {}
  OperationSlot& operator=(OperationSlot&&) = delete;

 private:
  OperationSlot() = default;
  // Constant-initialised: the library has no global initialisation.
  static std::atomic<int>& Count() {
    static std::atomic<int> count{0};
    return count;
  }
  bool taken_ = true;
};

}  // namespace th::c

#endif  // TH_C_INTERFACE_C_SLOT_H_
