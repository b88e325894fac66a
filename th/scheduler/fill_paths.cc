#include "th/scheduler/fill_paths.h"

#include <algorithm>
#include <limits>

#include "tools/mutation/mutation.h"

namespace th {
namespace {

// Instead of a chain's length: it fills from the reader; no path leads up to a complete holder.
constexpr uint32_t kBelowReader = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kUnfed = kBelowReader - 1;

}  // namespace

FillPaths::Step FillPaths::StepTo(const BufferAddress& buffer) {
  known_[buffer] = kUnfed;  // until it is known; for who comes back to it over a cycle
  if (buffer == reader_) {
    return {.buffer = buffer,
            .holder = {},
            .chain = TH_MUTATE(kAllowCycles, kBelowReader, uint32_t{0})};
  }
  const FillGraph::Holder holder = graph_.At(buffer);
  return {.buffer = buffer, .holder = holder, .chain = holder.complete ? 0 : kUnfed};
}

void FillPaths::Join(Step& step, uint32_t above) {
  if (step.chain == kBelowReader || above == kBelowReader) {
    step.chain = kBelowReader;
  } else if (!step.holder.complete && above != kUnfed) {
    step.chain = step.chain == kUnfed ? above + 1 : std::max(step.chain, above + 1);
  }
}

std::optional<uint32_t> FillPaths::ChainAbove(const BufferAddress& holder) {
  std::vector<Step> steps;
  if (!known_.contains(holder)) steps.push_back(StepTo(holder));
  while (!steps.empty()) {
    Step& step = steps.back();
    if (step.next == step.holder.sources.size()) {
      known_[step.buffer] = step.chain;
      const uint32_t chain = step.chain;
      steps.pop_back();
      if (!steps.empty()) Join(steps.back(), chain);
      continue;
    }
    const BufferAddress& above = step.holder.sources[step.next++];
    if (auto found = known_.find(above); found != known_.end()) {
      Join(step, found->second);
    } else {
      steps.push_back(StepTo(above));
    }
  }
  const uint32_t chain = known_.at(holder);
  if (chain == kBelowReader || chain == kUnfed) return std::nullopt;
  return chain;
}

}  // namespace th
