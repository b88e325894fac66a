// The names of the buffers that a group has freed in one generation of its numbering. A buffer that
// is registered under such a name is a life of its own: its operations count from 1 and must never
// meet the results that the buffer before it had under the same numbers. Both sides keep them: the
// server those whose operations were numbered, a worker its own, for a server that remembers
// nothing.
//
//   FreedNames freed;
//   freed.Add("weights");            // unregistered
//   freed.Contains("weights");       // registered again: the group begins a new generation ...
//   freed.Clear();                   // ... in which no number has been used
//
// A plain value, not thread-safe.
#ifndef TH_PROTOCOL_FREED_NAMES_H_
#define TH_PROTOCOL_FREED_NAMES_H_

#include <cstddef>
#include <functional>
#include <set>
#include <string>

#include "absl/strings/string_view.h"

namespace th {

// Names that are kept. Beyond it every name counts as freed: a generation too many does no harm,
// one too few would.
inline constexpr size_t kMaxFreedNames = 1024;

class FreedNames {
 public:
  void Add(absl::string_view name);
  bool Contains(absl::string_view name) const;
  void Clear();
  size_t kept() const { return names_.size(); }  // at most kMaxFreedNames

 private:
  std::set<std::string, std::less<>> names_;
  bool any_ = false;  // there were too many to be kept
};

}  // namespace th

#endif  // TH_PROTOCOL_FREED_NAMES_H_
