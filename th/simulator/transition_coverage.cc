#include "th/simulator/transition_coverage.h"

#include <algorithm>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace th {
namespace {

using PlaceByName = absl::flat_hash_map<std::string, size_t>;

PlaceByName PlacesOf(TransitionTable table) {
  PlaceByName places;
  for (const DrawnTransition& drawn : TransitionsOf(table)) {
    places.emplace(drawn.name, places.size());
  }
  return places;
}

// Where the table has the step; none: it is not drawn.
std::optional<size_t> PlaceOf(TransitionTable table, absl::string_view name) {
  static const auto& places = *new std::array<PlaceByName, kTransitionTableCount>{
      PlacesOf(TransitionTable::kContract), PlacesOf(TransitionTable::kSession),
      PlacesOf(TransitionTable::kReplica)};
  const PlaceByName& of_table = places[static_cast<size_t>(table)];
  const auto found = of_table.find(name);
  if (found == of_table.end()) return std::nullopt;
  return found->second;
}

}  // namespace

TransitionCoverage::TransitionCoverage() {
  for (TransitionTable table : kTransitionTables) {
    times_[static_cast<size_t>(table)].resize(TransitionsOf(table).size());
  }
}

void TransitionCoverage::Take(TransitionTable table, absl::string_view name) {
  if (const auto place = PlaceOf(table, name)) ++times_[static_cast<size_t>(table)][*place];
}

void TransitionCoverage::Add(const TransitionCoverage& other) {
  for (size_t table = 0; table < kTransitionTableCount; ++table) {
    for (size_t place = 0; place < times_[table].size(); ++place) {
      times_[table][place] += other.times_[table][place];
    }
  }
}

uint64_t TransitionCoverage::times(TransitionTable table, absl::string_view name) const {
  const auto place = PlaceOf(table, name);
  return place.has_value() ? times_[static_cast<size_t>(table)][*place] : 0;
}

size_t TransitionCoverage::possible(TransitionTable table) const {
  const auto& drawn = TransitionsOf(table);
  return static_cast<size_t>(std::count_if(drawn.begin(), drawn.end(), [](const auto& transition) {
    return transition.why_not_here.empty();
  }));
}

size_t TransitionCoverage::taken(TransitionTable table) const {
  return possible(table) - NotTaken(table).size();
}

std::vector<std::string> TransitionCoverage::NotTaken(TransitionTable table) const {
  std::vector<std::string> names;
  for (const DrawnTransition& drawn : TransitionsOf(table)) {
    if (drawn.why_not_here.empty() && times(table, drawn.name) == 0) names.push_back(drawn.name);
  }
  return names;
}

std::vector<std::string> TransitionCoverage::TakenAgainstTheTable(TransitionTable table) const {
  std::vector<std::string> names;
  for (const DrawnTransition& drawn : TransitionsOf(table)) {
    if (!drawn.why_not_here.empty() && times(table, drawn.name) > 0) names.push_back(drawn.name);
  }
  return names;
}

std::string TransitionCoverage::Summary() const {
  std::string text;
  for (TransitionTable table : kTransitionTables) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", TransitionTableName(table), " ", taken(table),
                    "/", possible(table));
  }
  return text;
}

}  // namespace th
