// The files in which the kernel shows what a host is (/proc, /sys, /dev), below a root that tests
// set up themselves.
//
//   HostFiles files("");
//   files.Line("/proc/sys/net/ipv4/tcp_congestion_control");  // "cubic"
//
// Immutable, so thread-safe. What cannot be read is empty: a kernel, a container or a user without
// rights shows less, and each fact is judged on its own.
#ifndef TH_DOCTOR_HOST_FILES_H_
#define TH_DOCTOR_HOST_FILES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace th::doctor {

class HostFiles {
 public:
  static constexpr size_t kMaxBytes = 1 << 20;  // of a file; what is beyond is not read

  // `root` comes before every path: empty for this host itself.
  explicit HostFiles(std::string root) : root_(std::move(root)) {}

  // The content of the file, without white space at its ends.
  std::string Content(absl::string_view path) const;
  // Its first line.
  std::string Line(absl::string_view path) const;
  std::optional<uint64_t> Number(absl::string_view path) const;
  // The names in a folder, sorted.
  std::vector<std::string> Names(absl::string_view folder) const;
  // The last part of what a symbolic link names.
  std::string LinkName(absl::string_view path) const;
  bool Exists(absl::string_view path) const;
  // True when this process may read and write the file.
  bool Usable(absl::string_view path) const;

 private:
  std::string OnDisk(absl::string_view path) const;

  std::string root_;
};

}  // namespace th::doctor

#endif  // TH_DOCTOR_HOST_FILES_H_
