// TH_MUTATE marks one place that a test must guard: beside the correct expression stands a wrong
// one that is compiled only into the `mutation_test` of that name. Everywhere else the wrong
// expression is removed by the preprocessor, so a release binary has no trace of it.
//
//   const bool admits = TH_MUTATE(kAdmitWhileDraining, state == State::kPublished,
//                                 state == State::kPublished || state == State::kDraining);
//
// An argument with a comma outside of parentheses needs parentheses around it. A statement is fine
// too: `TH_MUTATE(kForgetTheLease, leases_.erase(it), static_cast<void>(0));`
//
// See README.md in this folder for the BUILD rule.

#ifndef TOOLS_MUTATION_MUTATION_H_
#define TOOLS_MUTATION_MUTATION_H_

// The mutation `name` is on when TH_MUTATION_name is defined to 1. Pasting that 1 gives a macro
// that expands to `~,`, an extra argument, which shifts `mutant` to the place of the chosen one.
#define TH_MUTATION_SHIFT_1 ~,
#define TH_MUTATION_SECOND(ignored, chosen, ...) chosen
#define TH_MUTATION_SECOND_OF(...) TH_MUTATION_SECOND(__VA_ARGS__)
#define TH_MUTATION_CHOOSE_PASTED(shift, correct, mutant) \
  TH_MUTATION_SECOND_OF(shift mutant, correct, ~)
#define TH_MUTATION_CHOOSE(on, correct, mutant) \
  TH_MUTATION_CHOOSE_PASTED(TH_MUTATION_SHIFT_##on, correct, mutant)
#define TH_MUTATION_EXPAND(on, correct, mutant) TH_MUTATION_CHOOSE(on, correct, mutant)

#ifndef TH_MUTATIONS_AT_RUNTIME
#define TH_MUTATE(name, correct, mutant) TH_MUTATION_EXPAND(TH_MUTATION_##name, correct, mutant)
#else
// Sources that are compiled once for many mutants: the program says which mutation is on. Both
// expressions must then be of one type.
namespace th {
bool MutationIsOn(const char* name);
}  // namespace th
#define TH_MUTATE(name, correct, mutant) (::th::MutationIsOn(#name) ? (mutant) : (correct))
#endif

#endif  // TOOLS_MUTATION_MUTATION_H_
