// How th and tensorhub_worker end, as scripts see it. The tables in the READMEs are this one.
#ifndef TH_COMMAND_LINE_EXIT_STATUS_H_
#define TH_COMMAND_LINE_EXIT_STATUS_H_

#include "absl/status/status.h"

namespace th {

enum class ExitStatus : int {
  kOk = 0,
  kFailed = 1,        // it failed, or what was compared differs
  kUsage = 2,         // flags or arguments
  kUnreachable = 3,   // no server answered in time
  kNotThere = 4,      // no such run, model, version or group, or nobody holds it
  kLocalFiles = 5,    // a folder or file is missing, damaged or cannot be written
  kInterrupted = 130  // SIGINT or SIGTERM before the end
};

// The exit status that follows from the status of a call to the server.
ExitStatus ExitStatusOf(const absl::Status& status);
// The same of Client::Join, which calls INVALID_ARGUMENT what the flags say, alone or together.
ExitStatus ExitStatusOfJoin(const absl::Status& joined);

}  // namespace th

#endif  // TH_COMMAND_LINE_EXIT_STATUS_H_
