#include "th/controlled_rank/victim.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace th {
namespace {

bool ReadsFrom(const ObservedFill& reader, const std::string& group) {
  if (reader.group == group) return false;
  return std::any_of(reader.sources.begin(), reader.sources.end(), [&](const std::string& source) {
    return absl::StartsWith(source, absl::StrCat(group, "/"));
  });
}

// The fraction that all ranks of the group hold; 0 as long as one has not been heard.
double FractionOf(const std::vector<ObservedFill>& fills, const std::string& group) {
  uint64_t bytes = 0, total = 0;
  for (const ObservedFill& fill : fills) {
    if (fill.group != group) continue;
    if (fill.total == 0) return 0;
    bytes += fill.bytes;
    total += fill.total;
  }
  return total == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(total);
}

}  // namespace

std::optional<Victim> FindVictim(const std::vector<ObservedFill>& fills, VictimRange range) {
  for (const ObservedFill& candidate : fills) {
    const double fraction = FractionOf(fills, candidate.group);
    if (fraction < range.from || fraction > range.to) continue;
    const bool read_from = std::any_of(fills.begin(), fills.end(), [&](const ObservedFill& other) {
      return ReadsFrom(other, candidate.group);
    });
    if (read_from) return Victim{.group = candidate.group, .fraction = fraction};
  }
  return std::nullopt;
}

std::vector<std::string> SplitSources(const std::string& sources) {
  std::vector<std::string> names;
  for (absl::string_view name : absl::StrSplit(sources, ',')) {
    name = absl::StripAsciiWhitespace(name);
    if (!name.empty()) names.emplace_back(name);
  }
  return names;
}

}  // namespace th
