#ifndef TOOLS_MUTATION_SWITCH_H_
#define TOOLS_MUTATION_SWITCH_H_

#include <string_view>

namespace th {

// True when the environment variable TH_MUTATION names the mutation `name`. Read once; thread-safe.
bool MutationIsOn(std::string_view name);

// The variable's value; empty: nothing is broken.
std::string_view MutationInForce();

}  // namespace th

#endif  // TOOLS_MUTATION_SWITCH_H_
