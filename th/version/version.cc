#include "th/version/version.h"

#include <string>

#include "th/version/commit.h"

namespace th {

std::string ReleaseVersion() { return "0.1.0"; }

std::string BuildVersion() { return ReleaseVersion() + " (commit " + kBuildCommit + ")"; }

}  // namespace th
