// A record of warnings that were given, so that one that comes again and again is given once.
//
//   if (said.IsNew(status.message())) LOG(WARNING) << status.message();
//   ... and when it went well ...
//   said.Clear();
//
// Errors that differ only in the operation that they name are the same. Not thread-safe.
#ifndef TH_WORKER_SAID_ONCE_H_
#define TH_WORKER_SAID_ONCE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace th {

class SaidOnce {
 public:
  // False when it is what was said last.
  bool IsNew(absl::string_view warning);
  // The next one is new, whatever it is.
  void Clear() { last_.clear(); }

 private:
  std::string last_;
};

}  // namespace th

#endif  // TH_WORKER_SAID_ONCE_H_
