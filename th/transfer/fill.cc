#include "th/transfer/fill.h"

#include <utility>

#include "th/transfer/fill_state.h"

namespace th {
namespace {

class FillHandle : public Fill {
 public:
  explicit FillHandle(std::shared_ptr<FillState> state) : state_(std::move(state)) {}
  void SetSources(AssignmentId assignment, std::vector<AssignedSource> sources) override {
    state_->SetSources(assignment, std::move(sources));
  }
  void SetRoot(Digest root) override { state_->SetRoot(root); }
  void Stop() override { state_->Post(&FillState::StopOnFillThread); }
  FillStatus status() const override { return state_->status(); }

 private:
  // Shared with what is posted to the fill thread.
  const std::shared_ptr<FillState> state_;
};

}  // namespace

std::unique_ptr<Fill> Fill::Start(FillSpec spec, std::vector<Transport*> transports,
                                  FillObserver* observer) {
  auto state = std::make_shared<FillState>(std::move(spec), std::move(transports), observer);
  if (state->ring() != nullptr) {
    state->ring()->OnRoom([hands_on = std::weak_ptr<FillState>(state)](SegmentIndex end) {
      if (const auto fill = hands_on.lock()) fill->HandedOn(end);
    });
  }
  // A resumed fill may have everything already.
  state->Post(&FillState::AdvanceOnFillThread);
  return std::make_unique<FillHandle>(std::move(state));
}

}  // namespace th
