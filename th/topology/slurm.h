// Where Slurm says that a task runs, as its environment names it.
#ifndef TH_TOPOLOGY_SLURM_H_
#define TH_TOPOLOGY_SLURM_H_

#include <string>

#include "absl/strings/string_view.h"

namespace th {

// The rack of a node: the switch that it hangs on, "rack1" of SLURM_TOPOLOGY_ADDR
// "core.rack1.node1" with SLURM_TOPOLOGY_ADDR_PATTERN "switch.switch.node". Switches of one name in
// different parts of a network would be one rack, but a cluster's switches have different names.
// Empty: Slurm knows no switch (its topology plugin is not topology/tree), or several that are one
// to the node, or the name is none (ValidateName). Pure.
std::string SlurmRack(absl::string_view address, absl::string_view pattern);

}  // namespace th

#endif  // TH_TOPOLOGY_SLURM_H_
