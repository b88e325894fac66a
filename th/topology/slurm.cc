#include "th/topology/slurm.h"

#include <vector>

#include "absl/strings/str_split.h"
#include "th/weights/version.h"

namespace th {

std::string SlurmRack(absl::string_view address, absl::string_view pattern) {
  const std::vector<absl::string_view> names = absl::StrSplit(address, '.');
  const std::vector<absl::string_view> kinds = absl::StrSplit(pattern, '.');
  const size_t levels = kinds.size();
  if (levels < 2 || kinds[levels - 1] != "node" || kinds[levels - 2] != "switch") return "";
  // A node's own name may have dots, a switch's may not.
  if (names.size() < levels) return "";
  const std::string rack(names[levels - 2]);
  return ValidateName("rack", rack).ok() ? rack : "";
}

}  // namespace th
