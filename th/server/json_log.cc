#include "th/server/json_log.h"

#include <cstdio>

#include "nlohmann/json.hpp"

namespace th {

std::string JsonLogLine(absl::Time at, absl::string_view level, absl::string_view file, int line,
                        absl::string_view message) {
  const nlohmann::ordered_json object = {
      {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", at, absl::UTCTimeZone())},
      {"level", std::string(level)},
      {"file", std::string(file)},
      {"line", line},
      {"message", std::string(message)}};
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

JsonLog::JsonLog() {
  FLAGS_logtostderr = false;
  FLAGS_stderrthreshold = google::NUM_SEVERITIES;  // nothing of glog's own
  for (int severity = 0; severity < google::NUM_SEVERITIES; ++severity) {
    google::SetLogDestination(severity, "");  // and no files
  }
  google::AddLogSink(this);
}

JsonLog::~JsonLog() {
  google::RemoveLogSink(this);
  FLAGS_logtostderr = true;
}

void JsonLog::send(google::LogSeverity severity, const char* /*full_filename*/,
                   const char* base_filename, int line, const google::LogMessageTime& time,
                   const char* message, size_t message_bytes) {
  const absl::Time at = absl::FromUnixMicros(static_cast<int64_t>(time.timestamp() * 1e6));
  const std::string text = JsonLogLine(at, google::GetLogSeverityName(severity), base_filename,
                                       line, {message, message_bytes}) +
                           "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);  // unbuffered: whole lines
}

}  // namespace th
