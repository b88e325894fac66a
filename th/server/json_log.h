// The server's log as one JSON object a line, for machines that collect logs.
//
//   {"time":"2026-11-26T18:30:00.125000Z","level":"INFO","file":"server.cc","line":217,"message":"..."}
//
// glog writes its own lines beside what a sink does, so that this one replaces them.
#ifndef TH_SERVER_JSON_LOG_H_
#define TH_SERVER_JSON_LOG_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "glog/logging.h"

namespace th {

// Without the end of the line. Bytes of `message` that are no UTF-8 are replaced.
std::string JsonLogLine(absl::Time at, absl::string_view level, absl::string_view file, int line,
                        absl::string_view message);

// Writes the log to stderr while it lives, and keeps glog from doing so. One a process, which has
// called InitGoogleLogging.
class JsonLog : public google::LogSink {
 public:
  JsonLog();
  ~JsonLog() override;
  void send(google::LogSeverity severity, const char* full_filename, const char* base_filename,
            int line, const google::LogMessageTime& time, const char* message,
            size_t message_bytes) override;
};

}  // namespace th

#endif  // TH_SERVER_JSON_LOG_H_
