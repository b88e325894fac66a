// The name that a user has most likely meant by a mistyped one.
//
//   SimilarName("lsit", {"list", "wait"});  // "list"
#ifndef TH_COMMAND_LINE_SIMILAR_NAME_H_
#define TH_COMMAND_LINE_SIMILAR_NAME_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace th {

// The name that takes the fewest steps to reach from `word`, each of which adds, drops or replaces
// a letter, or swaps two neighbours (the optimal string alignment distance); the first of several.
// Empty where none is within a third of the word's letters, rounded up.
std::string SimilarName(absl::string_view word, const std::vector<std::string>& names);

}  // namespace th

#endif  // TH_COMMAND_LINE_SIMILAR_NAME_H_
