#include "th/text/byte_size.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace th {
namespace {

struct Unit {
  uint64_t bytes;
  absl::string_view name;
};
constexpr Unit kUnits[] = {{uint64_t{1} << 40, "TiB"},
                           {uint64_t{1} << 30, "GiB"},
                           {uint64_t{1} << 20, "MiB"},
                           {uint64_t{1} << 10, "KiB"}};

}  // namespace

std::string ByteSizeText(uint64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes < unit.bytes) continue;
    if (bytes % unit.bytes == 0) return absl::StrCat(bytes / unit.bytes, unit.name);
    return absl::StrFormat("%.1f%s", static_cast<double>(bytes) / static_cast<double>(unit.bytes),
                           unit.name);
  }
  return absl::StrCat(bytes, "B");
}

std::string ExactByteSizeText(uint64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes >= unit.bytes && bytes % unit.bytes == 0) {
      return absl::StrCat(bytes / unit.bytes, unit.name);
    }
  }
  return absl::StrCat(bytes, "B");
}

}  // namespace th
