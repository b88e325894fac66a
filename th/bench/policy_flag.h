// --policy of policy_server: the shipped server with one more flag, by which it chooses sources as
// other systems do. What `th bench fanout` and `th bench scenario` compare TensorHub with.
#ifndef TH_BENCH_POLICY_FLAG_H_
#define TH_BENCH_POLICY_FLAG_H_

#include "CLI/CLI.hpp"
#include "th/server/flags.h"

namespace th {

// For RunServerProgram. Without the flag the policy is the shipped server's.
void AddPolicyFlag(CLI::App& app, ServerFlags& flags);

}  // namespace th

#endif  // TH_BENCH_POLICY_FLAG_H_
