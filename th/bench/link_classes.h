// The hosts of a fan-out whose links differ, class by class, as `th bench fanout --rates` takes
// them.
//
//   TH_ASSIGN_OR_RETURN(const std::vector<LinkClass> classes,
//                       ParseLinkClasses({"1gbit*6", "250mbit*2"}));
//   HostsOf(classes)        // 8
//   FastestOf(classes).rate // "1gbit"
//
// Pure: values in, values out; thread-safe.
#ifndef TH_BENCH_LINK_CLASSES_H_
#define TH_BENCH_LINK_CLASSES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace th {

// Each is a process that holds the whole version.
inline constexpr uint32_t kMostFanoutReaders = 64;

// OK, or INVALID_ARGUMENT naming the numbers of readers that a fan-out can have.
absl::Status CheckFanoutReaders(int64_t readers);

// Hosts whose links have the same rate, each way.
struct LinkClass {
  std::string rate;  // as it was written, "250mbit"
  uint64_t bytes_per_second = 0;
  uint32_t hosts = 0;
};

// The rate of a virtual host's link. INVALID_ARGUMENT: it is none, or no link can be shaped to it.
absl::StatusOr<uint64_t> ParseLinkRate(const std::string& text);

// "1gbit*6": six hosts; "1gbit": one. INVALID_ARGUMENT as ParseLinkRate, or for a number of hosts
// that is none; both say how to write it.
absl::StatusOr<LinkClass> ParseLinkClass(absl::string_view text);

// INVALID_ARGUMENT: as above; a rate that two entries have, in whatever unit; no entry.
absl::StatusOr<std::vector<LinkClass>> ParseLinkClasses(const std::vector<std::string>& entries);

uint32_t HostsOf(const std::vector<LinkClass>& classes);
// The class with the highest rate. `classes` is not empty.
const LinkClass& FastestOf(const std::vector<LinkClass>& classes);

}  // namespace th

#endif  // TH_BENCH_LINK_CLASSES_H_
