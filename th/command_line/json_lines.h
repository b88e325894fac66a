// JSON objects, one a line: how a controlling process and its children speak.
#ifndef TH_COMMAND_LINE_JSON_LINES_H_
#define TH_COMMAND_LINE_JSON_LINES_H_

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "nlohmann/json.hpp"

namespace th {

// {"error": {"code": "NOT_FOUND", "message": "..."}}.
nlohmann::json ErrorToJson(const absl::Status& status);
// The status of an answer: OK without an "error". A code that is unknown is taken as UNKNOWN.
absl::Status StatusOfAnswer(const nlohmann::json& answer);

// Discarded when `line` is no JSON object.
nlohmann::json ParseLine(absl::string_view line);

// Writes whole lines. Thread-safe.
class JsonLineWriter {
 public:
  explicit JsonLineWriter(int fd) : fd_(fd) {}
  // False when the reader has gone.
  bool Write(const nlohmann::json& object);

 private:
  absl::Mutex mutex_;
  const int fd_;
};

}  // namespace th

#endif  // TH_COMMAND_LINE_JSON_LINES_H_
