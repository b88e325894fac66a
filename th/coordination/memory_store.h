// A store that forgets: for tests and simulations, where the process is the whole world.
#ifndef TH_COORDINATION_MEMORY_STORE_H_
#define TH_COORDINATION_MEMORY_STORE_H_

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "th/coordination/durable_store.h"
#include "th/coordination/epoch_start.h"

namespace th {

// Not thread-safe.
class MemoryStore : public DurableStore {
 public:
  explicit MemoryStore(OpenedState opened) : opened_(std::move(opened)) {
    written_ = opened_.durable;
    if (opened_.identity == StateIdentity{}) {
      opened_.identity = {.cluster = ClusterId(1), .epoch_ids = {EpochIdOf(opened_.epoch)}};
    }
  }

  const OpenedState& opened() const override { return opened_; }
  absl::Status BeginAbove(Epoch heard, const DurableState& state) override {
    if (!failure_.ok()) return failure_;
    opened_.epoch = std::max(opened_.epoch, heard).Next();
    BeginEpochOf(opened_.identity, EpochIdOf(opened_.epoch));
    opened_.durable = written_ = state;
    opened_.started_before = true;
    return absl::OkStatus();
  }
  absl::Status Write(const DurableState& state) override {
    if (!failure_.ok()) return failure_;
    written_ = state;
    return absl::OkStatus();
  }

  // The state that was written last.
  const DurableState& written() const { return written_; }
  // Every write from here on fails with this.
  void FailWith(absl::Status failure) { failure_ = std::move(failure); }

 private:
  static EpochId EpochIdOf(Epoch epoch) { return EpochId(epoch.value); }

  OpenedState opened_;
  DurableState written_;
  absl::Status failure_;
};

}  // namespace th

#endif  // TH_COORDINATION_MEMORY_STORE_H_
