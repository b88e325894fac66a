#include "th/command_line/exit_status.h"

namespace th {

ExitStatus ExitStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitStatus::kOk;
    case absl::StatusCode::kUnavailable:
      return ExitStatus::kUnreachable;
    case absl::StatusCode::kNotFound:
      return ExitStatus::kNotThere;
    case absl::StatusCode::kCancelled:
      return ExitStatus::kInterrupted;
    default:
      return ExitStatus::kFailed;
  }
}

ExitStatus ExitStatusOfJoin(const absl::Status& joined) {
  return absl::IsInvalidArgument(joined) ? ExitStatus::kUsage : ExitStatusOf(joined);
}

}  // namespace th
