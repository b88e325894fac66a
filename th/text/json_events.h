// JSON as a stream of events, for readers of hostile headers: nothing is built that the reader did
// not ask for, nesting costs no stack, and every key is seen, duplicates too.
#ifndef TH_TEXT_JSON_EVENTS_H_
#define TH_TEXT_JSON_EVENTS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace th {

// The reader of a document: called for its parts, in their order. The first status that is not OK
// ends the reading and is its result.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;

  virtual absl::Status OnStartObject() = 0;
  virtual absl::Status OnKey(std::string key) = 0;
  virtual absl::Status OnEndObject() = 0;
  virtual absl::Status OnStartArray() = 0;
  virtual absl::Status OnEndArray() = 0;
  virtual absl::Status OnString(std::string value) = 0;
  virtual absl::Status OnUnsigned(uint64_t value) = 0;
  // Null, a boolean, or a number that is negative, fractional or 2^64 and more. `text` shows it.
  virtual absl::Status OnOther(absl::string_view text) = 0;
};

// Reads one object. INVALID_ARGUMENT, beginning with `what`, when `text` is not UTF-8, does not
// begin with '{' or is not JSON (saying at which byte).
absl::Status ReadJsonObject(absl::string_view what, absl::string_view text, JsonEvents& events);

// `text` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
std::string JsonString(absl::string_view text);

}  // namespace th

#endif  // TH_TEXT_JSON_EVENTS_H_
