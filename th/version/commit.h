#ifndef TH_VERSION_COMMIT_H_
#define TH_VERSION_COMMIT_H_

namespace th {

// Generated from Bazel's workspace status; see BUILD.bazel.
extern const char* const kBuildCommit;

}  // namespace th

#endif  // TH_VERSION_COMMIT_H_
