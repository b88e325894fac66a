// Where a worker runs, and how far two workers are from each other.
#ifndef TH_TOPOLOGY_LOCATION_H_
#define TH_TOPOLOGY_LOCATION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace th {

inline constexpr size_t kMaxNics = 64;

// Empty strings and negative numbers mean unknown. `host` is a stable identity of the machine (its
// boot id or name), `device` a GPU's UUID or PCI bus id, never its index.
struct Location {
  std::string site;
  std::string rack;
  std::string host;
  int32_t numa_node = -1;
  std::vector<std::string> nics;
  std::string device;
  std::string host_name;  // of `host`, for people alone: two hosts may have one name

  friend bool operator==(const Location&, const Location&) = default;
  // "site=a,rack=r1,host=n7,numa=0,nic=mlx5_0,nic=mlx5_1,device=...,host-name=...", without what is
  // unknown. Commas, percent signs, white space and controls within a value are written as %2c.
  std::string ToString() const;
};

// The inverse of Location::ToString; fields in any order. INVALID_ARGUMENT naming the field that is
// unknown, given twice, empty or not a name (ValidateName), or has more than kMaxNics values.
absl::StatusOr<Location> ParseLocation(absl::string_view text);

// From near to far. Each is the nearest level that the two share.
enum class Distance : uint8_t {
  kSameDevice = 0,
  kSameNumaNode = 1,
  kSameHost = 2,
  kSameRack = 3,
  kSameSite = 4,
  kOtherSite = 5,
};

absl::string_view DistanceName(Distance distance);

// Symmetric. A level is shared only where no level above it is known to differ. What is unknown on
// either side is taken as shared on the level of the site (a fleet that names no sites is one
// site), and as not shared on the levels below.
Distance DistanceBetween(const Location& a, const Location& b);

}  // namespace th

#endif  // TH_TOPOLOGY_LOCATION_H_
