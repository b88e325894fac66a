// The drawn transition tables as the simulator's observers name their steps, and which of them
// cannot happen in a simulated fleet, with the reason. Tests compare them with what is drawn.
#ifndef TH_SIMULATOR_TRANSITION_TABLES_H_
#define TH_SIMULATOR_TRANSITION_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace th {

enum class TransitionTable : uint8_t {
  kContract,  // "published | unpublish | always": state, event, condition
  kSession,   // "update asked | sealed": phase, event
  kReplica,   // "update by one rank | idle": event, phase
};
inline constexpr TransitionTable kTransitionTables[] = {
    TransitionTable::kContract, TransitionTable::kSession, TransitionTable::kReplica};
inline constexpr size_t kTransitionTableCount = 3;
absl::string_view TransitionTableName(TransitionTable table);  // "contract", "session", "replica"

struct DrawnTransition {
  std::string name;
  std::string why_not_here;  // empty: it can happen in a simulated fleet
  bool rare = false;         // fewer than one random run in a hundred takes it
};
// In the order in which they are drawn.
const std::vector<DrawnTransition>& TransitionsOf(TransitionTable table);

// How many are listed as impossible and as rare; a name that no table draws would be one too many.
size_t ImpossibleTransitions();
size_t RareTransitions();

// The first output of a step of the session's table that changes neither operations nor state.
// Empty: it changes one of them. "-": there is nothing to be seen.
absl::string_view FirstOutputOfSessionStep(absl::string_view name);

}  // namespace th

#endif  // TH_SIMULATOR_TRANSITION_TABLES_H_
