// A process that this one starts, talks to in lines, and never leaves behind.
//
//   TH_ASSIGN_OR_RETURN(auto server, ChildProcess::Start({.name = "server", .arguments = {path}}));
//   TH_RETURN_IF_ERROR(server->WriteLine("hello"));
//   ... poll server->output_fd() ...
//   for (const std::string& line : server->ReadLines()) { ... }
//
// The child gets a process group of its own (the terminal's Ctrl-C is for this process, which then
// ends its children), an empty signal mask, SIGKILL when this process dies, and its stderr in a
// file. Start it from the thread that lives longest: the kernel ties that SIGKILL to the thread.
// Not thread-safe.
#ifndef TH_PROCESSES_CHILD_PROCESS_H_
#define TH_PROCESSES_CHILD_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace th {

// A line that is longer ends the conversation: the child is then taken as ended.
inline constexpr size_t kMaxChildLineBytes = size_t{256} << 20;

class ChildProcess {
 public:
  struct Options {
    std::string name;                    // for messages
    std::vector<std::string> arguments;  // arguments[0] is the program's path
    std::string log_path;  // where its stderr is appended; empty: this process's stderr
    // A descriptor of the network namespace that it runs in; -1: this process's own. The child ends
    // with 125 where it may not enter.
    int network_namespace = -1;
  };
  // UNAVAILABLE, saying which system call failed. A program that cannot be executed ends with 127.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(Options options);
  // Kills and reaps it.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  const std::string& name() const { return options_.name; }
  const std::string& log_path() const { return options_.log_path; }
  pid_t pid() const { return pid_; }

  // UNAVAILABLE when the child has gone.
  absl::Status WriteLine(absl::string_view line);
  void CloseInput();

  // Readable when there are lines, or the child closed its stdout. -1 after that.
  int output_fd() const { return output_fd_; }
  // The lines that have come, without waiting.
  std::vector<std::string> ReadLines();

  void Signal(int signal);
  // True when it has ended; reaps it.
  bool HasEnded();
  // DEADLINE_EXCEEDED when it is still there after `timeout`.
  absl::Status AwaitEnd(absl::Duration timeout);
  // "ended with status 3", "was killed by signal 9", "is running".
  std::string Condition();
  // -1 while it runs or when a signal ended it.
  int exit_status();

 private:
  ChildProcess(Options options, pid_t pid, int input_fd, int output_fd);
  void TakeLines(std::vector<std::string>* lines);

  const Options options_;
  const pid_t pid_;
  int input_fd_;
  int output_fd_;
  std::string unread_;  // the beginning of a line
  bool ended_ = false;
  int wait_status_ = 0;
};

}  // namespace th

#endif  // TH_PROCESSES_CHILD_PROCESS_H_
