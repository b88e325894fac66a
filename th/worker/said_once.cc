#include "th/worker/said_once.h"

#include <utility>

namespace th {
namespace {

// Where a session's errors name their operation: each try is another one.
constexpr absl::string_view kOperation = "; operation ";

}  // namespace

bool SaidOnce::IsNew(absl::string_view warning) {
  std::string cause(warning.substr(0, warning.rfind(kOperation)));
  return std::exchange(last_, cause) != cause;
}

}  // namespace th
