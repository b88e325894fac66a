#include "th/processes/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace th {
namespace {

constexpr int kCannotExecute = 127;
constexpr int kAbandoned = 126;
constexpr int kCannotEnter = 125;

absl::Status SystemError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

void CloseIfOpen(int* fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

// Runs between fork and exec: only calls that are safe there.
[[noreturn]] void BecomeChild(int input, int output, int log, int network_namespace, pid_t parent,
                              char* const* arguments) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kAbandoned);  // it died before the line above
  if (network_namespace >= 0 && setns(network_namespace, CLONE_NEWNET) != 0) _exit(kCannotEnter);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  if (log >= 0) dup2(log, STDERR_FILENO);
  execv(arguments[0], arguments);
  _exit(kCannotExecute);
}

// Closes what is left open when starting fails half-way.
struct Descriptors {
  std::array<int, 2> input = {-1, -1};   // child's end first
  std::array<int, 2> output = {-1, -1};  // own end first
  int log = -1;
  ~Descriptors() {
    for (int* fd : {&input[0], &input[1], &output[0], &output[1], &log}) CloseIfOpen(fd);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(Options options) {
  Descriptors fds;
  // A socket instead of a pipe: writing to a child that has gone raises no SIGPIPE.
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.input.data()) != 0) {
    return SystemError("socketpair");
  }
  if (pipe2(fds.output.data(), O_CLOEXEC) != 0) return SystemError("pipe");
  fcntl(fds.output[0], F_SETFL, O_NONBLOCK);
  if (!options.log_path.empty()) {
    fds.log = open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fds.log < 0) return SystemError(absl::StrCat("cannot write ", options.log_path));
  }
  std::vector<char*> arguments;
  for (std::string& argument : options.arguments) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return SystemError("fork");
  if (pid == 0) {
    BecomeChild(fds.input[0], fds.output[1], fds.log, options.network_namespace, parent,
                arguments.data());
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(
      std::move(options), pid, std::exchange(fds.input[1], -1), std::exchange(fds.output[0], -1)));
}

ChildProcess::ChildProcess(Options options, pid_t pid, int input_fd, int output_fd)
    : options_(std::move(options)), pid_(pid), input_fd_(input_fd), output_fd_(output_fd) {}

ChildProcess::~ChildProcess() {
  if (!HasEnded()) {
    Signal(SIGKILL);
    waitpid(pid_, &wait_status_, 0);
  }
  CloseIfOpen(&input_fd_);
  CloseIfOpen(&output_fd_);
}

absl::Status ChildProcess::WriteLine(absl::string_view line) {
  const std::string text = absl::StrCat(line, "\n");
  for (size_t done = 0; done < text.size();) {
    const ssize_t sent = send(input_fd_, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (sent > 0) {
      done += static_cast<size_t>(sent);
    } else if (errno != EINTR) {
      return absl::UnavailableError(
          absl::StrCat(name(), " ", Condition(), " and takes no command"));
    }
  }
  return absl::OkStatus();
}

void ChildProcess::CloseInput() { CloseIfOpen(&input_fd_); }

std::vector<std::string> ChildProcess::ReadLines() {
  std::vector<std::string> lines;
  std::array<char, 65536> buffer;
  while (output_fd_ >= 0) {
    const ssize_t got = read(output_fd_, buffer.data(), buffer.size());
    if (got > 0) {
      unread_.append(buffer.data(), static_cast<size_t>(got));
      TakeLines(&lines);
      if (unread_.size() > kMaxChildLineBytes) CloseIfOpen(&output_fd_);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      CloseIfOpen(&output_fd_);
    } else if (errno == EAGAIN) {
      break;
    }
  }
  return lines;
}

void ChildProcess::TakeLines(std::vector<std::string>* lines) {
  size_t begin = 0;
  for (size_t end = 0; (end = unread_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines->push_back(unread_.substr(begin, end - begin));
  }
  unread_.erase(0, begin);
}

void ChildProcess::Signal(int signal) {
  if (!HasEnded()) kill(pid_, signal);
}

bool ChildProcess::HasEnded() {
  if (!ended_) ended_ = waitpid(pid_, &wait_status_, WNOHANG) == pid_;
  return ended_;
}

absl::Status ChildProcess::AwaitEnd(absl::Duration timeout) {
  // Readable once the process has ended.
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  if (fd < 0) return HasEnded() ? absl::OkStatus() : SystemError("pidfd_open");
  pollfd waited{.fd = fd, .events = POLLIN, .revents = 0};
  poll(&waited, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  close(fd);
  if (HasEnded()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(name(), " is still running after ", absl::FormatDuration(timeout)));
}

std::string ChildProcess::Condition() {
  if (!HasEnded()) return "is running";
  if (WIFSIGNALED(wait_status_))
    return absl::StrCat("was killed by signal ", WTERMSIG(wait_status_));
  return absl::StrCat("ended with status ", WEXITSTATUS(wait_status_));
}

int ChildProcess::exit_status() {
  return HasEnded() && WIFEXITED(wait_status_) ? WEXITSTATUS(wait_status_) : -1;
}

}  // namespace th
