#include "th/command_line/similar_name.h"

#include <algorithm>
#include <cstddef>

namespace th {
namespace {

size_t StepsBetween(absl::string_view a, absl::string_view b) {
  // steps[i][j]: between the first i letters of `a` and the first j of `b`.
  std::vector<std::vector<size_t>> steps(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        steps[i][j] = i + j;
        continue;
      }
      const size_t replaced = steps[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      steps[i][j] = std::min({replaced, steps[i - 1][j] + 1, steps[i][j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) steps[i][j] = std::min(steps[i][j], steps[i - 2][j - 2] + 1);
    }
  }
  return steps[a.size()][b.size()];
}

}  // namespace

std::string SimilarName(absl::string_view word, const std::vector<std::string>& names) {
  std::string similar;
  size_t least = (word.size() + 2) / 3 + 1;
  for (const std::string& name : names) {
    const size_t steps = StepsBetween(word, name);
    if (steps >= least) continue;
    least = steps;
    similar = name;
  }
  return similar;
}

}  // namespace th
