// TH_MUTATE marks one place that a test must guard: beside the correct expression stands a wrong
// one, which only the copies of the sources that `mutable_copies` makes for `mutation_test` know.
// Everywhere else the preprocessor removes it, so a release binary has no trace of it.
//
//   const bool admits = TH_MUTATE(kAdmitWhileDraining, state == State::kPublished,
//                                 state == State::kPublished || state == State::kDraining);
//
// Both expressions are of one type. An argument with a comma outside of parentheses needs
// parentheses around it. See README.md in this folder for the BUILD rule.

#ifndef TOOLS_MUTATION_MUTATION_H_
#define TOOLS_MUTATION_MUTATION_H_

#ifndef TH_MUTATIONS_AT_RUNTIME
#define TH_MUTATE(name, correct, mutant) (correct)
#else
#include "tools/mutation/switch.h"
#define TH_MUTATE(name, correct, mutant) (::th::MutationIsOn(#name) ? (mutant) : (correct))
#endif

#endif  // TOOLS_MUTATION_MUTATION_H_
