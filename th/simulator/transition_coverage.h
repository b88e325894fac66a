// Which steps of the drawn transition tables some runs have taken: the contract's
// (th/mutability_contract/transitions.h), a rank's operations (docs/protocol/session.md) and a
// replica's phases (docs/protocol/registry.md).
//
//   TransitionCoverage coverage;
//   coverage.Take(TransitionTable::kContract, "published | unpublish | always");
//   coverage.Add(of_another_run);
//   coverage.Summary()                                // "contract 1/17, session 0/98, ..."
//   coverage.NotTaken(TransitionTable::kContract)     // the names of the other 16
//
// Not thread-safe.
#ifndef TH_SIMULATOR_TRANSITION_COVERAGE_H_
#define TH_SIMULATOR_TRANSITION_COVERAGE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "th/simulator/transition_tables.h"

namespace th {

class TransitionCoverage {
 public:
  TransitionCoverage();

  // A step that no table draws is ignored: its outcome is a refusal or nothing.
  void Take(TransitionTable table, absl::string_view name);
  void Add(const TransitionCoverage& other);

  uint64_t times(TransitionTable table, absl::string_view name) const;  // that it was taken
  // The steps of those that can happen in a simulated fleet.
  size_t taken(TransitionTable table) const;
  size_t possible(TransitionTable table) const;
  std::vector<std::string> NotTaken(TransitionTable table) const;  // in the tables' order
  // Those that were taken although the tables say that they cannot happen here.
  std::vector<std::string> TakenAgainstTheTable(TransitionTable table) const;
  std::string Summary() const;  // "contract 17/17, session 98/98, replica 50/50"

 private:
  std::array<std::vector<uint64_t>, kTransitionTableCount> times_;
};

}  // namespace th

#endif  // TH_SIMULATOR_TRANSITION_COVERAGE_H_
