#include "th/protocol/freed_names.h"

namespace th {

void FreedNames::Add(absl::string_view name) {
  if (Contains(name)) return;
  any_ = names_.size() >= kMaxFreedNames;
  if (any_) return names_.clear();
  names_.emplace(name);
}

bool FreedNames::Contains(absl::string_view name) const {
  return any_ || names_.find(name) != names_.end();
}

void FreedNames::Clear() { *this = {}; }

}  // namespace th
