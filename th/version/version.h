// The version that a binary was built from, for `--version`, logs and the handshake.
//
//   std::cout << "tensorhub_server " << th::BuildVersion() << "\n";   // 0.1.0 (commit
//   1a2b3c4d5e6f)
//
// Only binaries depend on this package: the commit changes with every commit, and what depends on
// it is linked again.

#ifndef TH_VERSION_VERSION_H_
#define TH_VERSION_VERSION_H_

#include <string>

namespace th {

// "0.1.0 (commit 1a2b3c4d5e6f)"; the commit ends in "-modified" when the tree had changes, and is
// "unknown" when the build was not made in a git checkout of this repository.
std::string BuildVersion();

// "0.1.0": the release that this code leads to, as CHANGELOG.md names it.
std::string ReleaseVersion();

}  // namespace th

#endif  // TH_VERSION_VERSION_H_
