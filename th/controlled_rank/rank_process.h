// The controlling side of a rank in a process of its own (controlled_rank.h): one command at a
// time, its answer, and events between.
//
//   TH_ASSIGN_OR_RETURN(auto rank, RankProcess::Start({.name = "rollout-1/0", .arguments =
//   {...}})); rank->Send({{"do", "update"}, {"version", "latest"}});
//   ... poller.RunUntil([&] { return rank->answered(); }, ...) ...
//   if (rank->answer().ok()) Use((*rank->answer())["bytes"]);
//
// Not thread-safe.
#ifndef TH_CONTROLLED_RANK_RANK_PROCESS_H_
#define TH_CONTROLLED_RANK_RANK_PROCESS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "th/processes/child_process.h"

namespace th {

// The program, as FindProgram (th/processes/runfiles.h) takes it.
inline constexpr char kControlledRank[] = "th/controlled_rank/controlled_rank";

class RankProcess {
 public:
  static absl::StatusOr<std::unique_ptr<RankProcess>> Start(ChildProcess::Options options);

  ChildProcess& process() { return *process_; }
  const std::string& name() const { return process_->name(); }

  // Forgets the answer before. A process that has gone answers with an error.
  void Send(const nlohmann::json& command);
  // Waits for a line that no command asks for: what a program says once it is up.
  void ExpectAnswer() { answer_.reset(); }
  bool answered() const { return answer_.has_value(); }
  // Once answered. The error is the rank's own, with its name before the message.
  const absl::StatusOr<nlohmann::json>& answer() const { return *answer_; }

  // Called for every {"event": ...} line.
  std::function<void(const nlohmann::json&)> on_event;

  // Takes what has come on its output.
  void HandleOutput();

 private:
  explicit RankProcess(std::unique_ptr<ChildProcess> process) : process_(std::move(process)) {}
  void HandleLine(absl::string_view line);
  void TakeAnswer(const nlohmann::json& answer);

  std::unique_ptr<ChildProcess> process_;
  // Nothing while an answer is awaited.
  std::optional<absl::StatusOr<nlohmann::json>> answer_ = nlohmann::json::object();
};

}  // namespace th

#endif  // TH_CONTROLLED_RANK_RANK_PROCESS_H_
