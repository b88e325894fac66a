#include "th/controlled_rank/rank_process.h"

#include "absl/strings/str_cat.h"
#include "th/command_line/json_lines.h"
#include "th/status/status_macros.h"

namespace th {

absl::StatusOr<std::unique_ptr<RankProcess>> RankProcess::Start(ChildProcess::Options options) {
  TH_ASSIGN_OR_RETURN(auto process, ChildProcess::Start(std::move(options)));
  return std::unique_ptr<RankProcess>(new RankProcess(std::move(process)));
}

void RankProcess::Send(const nlohmann::json& command) {
  answer_.reset();
  const absl::Status sent = process_->WriteLine(command.dump());
  if (!sent.ok()) answer_ = sent;
}

void RankProcess::HandleOutput() {
  for (const std::string& line : process_->ReadLines()) HandleLine(line);
  if (process_->output_fd() >= 0 || answered()) return;
  // It closes its output by ending; give the kernel the moment to say how.
  (void)process_->AwaitEnd(absl::Seconds(1));
  answer_ = absl::UnavailableError(
      absl::StrCat(name(), " ", process_->Condition(), " before it answered",
                   process_->log_path().empty() ? "" : "; its log is ", process_->log_path()));
}

void RankProcess::HandleLine(absl::string_view line) {
  const nlohmann::json object = ParseLine(line);
  if (object.is_object() && object.contains("event")) {
    if (on_event) on_event(object);
    return;
  }
  TakeAnswer(object);
}

void RankProcess::TakeAnswer(const nlohmann::json& answer) {
  const absl::Status status = StatusOfAnswer(answer);
  if (status.ok()) {
    answer_ = answer;
  } else {
    answer_ = absl::Status(status.code(), absl::StrCat(name(), ": ", status.message()));
  }
}

}  // namespace th
