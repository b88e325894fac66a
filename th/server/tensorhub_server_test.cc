// The binary as a user starts it: what it prints, how it ends.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testing/status_matchers.h"
#include "th/monitoring/descriptors.h"
#include "th/monitoring/http_get.h"
#include "th/server/scripted_worker.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string BinaryPath() {
  // By its own name: TEST_WORKSPACE is the main workspace, which may be another.
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/tensorhub/th/server/tensorhub_server");
}

// A child process with its output in a pipe, or in `output_path`, and its errors in a file.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments, const std::string& error_path,
                   const std::string& output_path = "")
      : error_path_(error_path) {
    int out[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    arguments.insert(arguments.begin(), BinaryPath());
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(output_path.empty() ? out[1] : open(output_path.c_str(), O_WRONLY), STDOUT_FILENO);
      dup2(open(error_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(126);
    }
    close(out[1]);
    out_ = out[0];
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(out_);
  }

  // The first line on stdout, without its end; what there was when the process ended before.
  std::string FirstLine() {
    std::string line;
    char byte;
    while (read(out_, &byte, 1) == 1 && byte != '\n') line += byte;
    return line;
  }
  void Signal(int signal) const { kill(pid_, signal); }
  // The exit status; 1000 + signal when a signal ended it.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  std::string Errors() const {
    std::ifstream file(error_path_);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

 private:
  const std::string error_path_;
  pid_t pid_ = -1;
  int out_ = -1;
};

class TensorhubServerTest : public ::testing::Test {
 protected:
  TensorhubServerTest()
      : directory_(absl::StrCat(::testing::TempDir(), "/binary-",
                                ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  ~TensorhubServerTest() override { std::filesystem::remove_all(directory_); }

  // The server has a state directory of its own unless the arguments name one.
  std::unique_ptr<Process> Start(std::vector<std::string> arguments) {
    if (arguments.size() < 3 || arguments[2] != "--state-dir") {
      arguments.insert(arguments.end(), {"--state-dir", directory_ + "/state"});
    }
    return std::make_unique<Process>(std::move(arguments),
                                     absl::StrCat(directory_, "/errors-", ++started_));
  }
  std::unique_ptr<Process> StartListening() {
    auto process = Start({"--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--json"});
    announced_ = nlohmann::json::parse(process->FirstLine(), nullptr, false);
    EXPECT_TRUE(announced_.is_object()) << process->Errors();
    return process;
  }
  std::string Announced(const char* field) const { return announced_.value(field, ""); }

  const std::string directory_;
  nlohmann::json announced_;
  int started_ = 0;
};

TEST_F(TensorhubServerTest, AnAddressThatCannotBeAnnouncedIsAnError) {
  Process process({"--listen=127.0.0.1:0", "--state-dir", directory_ + "/state"},
                  directory_ + "/errors", "/dev/full");
  EXPECT_EQ(process.Wait(), 2);
  EXPECT_THAT(process.Errors(), HasSubstr("stdout cannot be written"));
}

TEST_F(TensorhubServerTest, SaysWhereItListensAndServes) {
  auto process = StartListening();
  EXPECT_THAT(HttpGet(Announced("http"), "/healthz"),
              HasSubstr(absl::StrCat("ok epoch ", announced_.value("epoch", 0u))));
  ScriptedWorker worker(Announced("address"));
  EXPECT_OK(worker.Join("trainer"));
}

TEST_F(TensorhubServerTest, RaisesTheLimitOfOpenFilesAndTakesMoreConnectionsThanTheSoftOne) {
  constexpr rlim_t kSoft = 1024;
  constexpr size_t kConnections = 1500;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  ASSERT_GE(limit.rlim_max, 4096u) << "this test needs a higher hard limit of open files";
  limit.rlim_cur = kSoft;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  auto process = StartListening();  // inherits it
  ASSERT_OK(RaiseDescriptorLimit());
  EXPECT_THAT(process->Errors(),
              AllOf(HasSubstr("raised from 1024 to the hard limit"),
                    HasSubstr(absl::StrCat("enough for ", ConnectionLimit(limit.rlim_max)))));
  std::vector<int> connections;
  for (size_t i = 0; i < kConnections; ++i) {
    connections.push_back(ConnectSocket(Announced("address")));
    ASSERT_GE(connections.back(), 0);
  }
  ScriptedWorker worker(Announced("address"));
  EXPECT_OK(worker.Join("trainer"));
  EXPECT_THAT(HttpGet(Announced("http"), "/healthz"), HasSubstr("ok epoch"));
  for (const int fd : connections) close(fd);
}

TEST_F(TensorhubServerTest, LogsJsonObjectsFromTheLevelOnThatIsAskedFor) {
  auto process = Start({"--listen=127.0.0.1:0", "--log-json"});
  process->FirstLine();
  process->Signal(SIGTERM);
  EXPECT_EQ(process->Wait(), 0);
  const std::vector<std::string> lines = absl::StrSplit(process->Errors(), '\n', absl::SkipEmpty());
  EXPECT_FALSE(lines.empty());
  for (const std::string& line : lines) {
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
    EXPECT_TRUE(object.is_object()) << line;
    EXPECT_EQ(object.value("level", ""), "INFO") << line;
  }
  auto quiet = Start({"--listen=127.0.0.1:0", "--log-level=error"});
  quiet->FirstLine();
  quiet->Signal(SIGTERM);
  EXPECT_EQ(quiet->Wait(), 0);
  EXPECT_EQ(quiet->Errors(), "");
}

TEST_F(TensorhubServerTest, EventsAreInTheLogOfEventsWhenTheServerIsKilled) {
  const std::string log = directory_ + "/events";
  const auto text = [&] {
    std::ifstream file(log);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  for (const std::string gone : {"first", "second"}) {  // the second by a server after the first
    auto process = Start({"--listen=127.0.0.1:0", "--json", "--lease=500ms", "--event-log", log});
    announced_ = nlohmann::json::parse(process->FirstLine(), nullptr, false);
    ASSERT_TRUE(announced_.is_object()) << process->Errors();
    { EXPECT_OK(ScriptedWorker(Announced("address")).Join(gone)); }
    const absl::Time give_up = absl::Now() + absl::Seconds(30);
    while (!absl::StrContains(text(), gone) && absl::Now() < give_up) std::this_thread::yield();
    process->Signal(SIGKILL);
    process->Wait();
  }
  EXPECT_THAT(text(), AllOf(HasSubstr(R"("kind":"lease expired")"), HasSubstr("first/0"),
                            HasSubstr("second/0"), HasSubstr(R"("epoch":2)")));
}

TEST_F(TensorhubServerTest, TheLogOfEventsHasItsStartAndItsOrderlyEnd) {
  const std::string log = directory_ + "/events";
  const auto count = [&](const std::string& kind) {
    std::ifstream file(log);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const std::vector<std::string> parts =
        absl::StrSplit(text, absl::StrCat("\"kind\":\"", kind, "\""));
    return parts.size() - 1;
  };
  auto process = Start({"--listen=127.0.0.1:0", "--json", "--event-log", log});
  announced_ = nlohmann::json::parse(process->FirstLine(), nullptr, false);
  auto refused = Start({"--listen=" + Announced("address"), "--event-log=" + log + "-of-refused",
                        "--state-dir", directory_ + "/other"});
  EXPECT_EQ(refused->Wait(), 3) << "its port is taken";
  process->Signal(SIGTERM);
  EXPECT_EQ(process->Wait(), 0);
  EXPECT_EQ(count("server started"), 1u);
  EXPECT_EQ(count("server stops"), 1u);
  std::ifstream of_refused(log + "-of-refused");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(of_refused), {}), "");
}

TEST_F(TensorhubServerTest, ALogOfEventsThatCannotBeWrittenEndsItWithStatus4) {
  std::ofstream(directory_ + "/file") << "no folder";
  auto process = Start({"--listen=127.0.0.1:0", "--event-log", directory_ + "/file/events"});
  EXPECT_EQ(process->Wait(), 4);
  EXPECT_THAT(process->Errors(), HasSubstr("/file/events"));
  process = Start({"--listen=127.0.0.1:0", "--event-log-limit=64MiB"});
  EXPECT_EQ(process->Wait(), 2);
  process = Start({"--listen=127.0.0.1:0", "--event-log=e", "--event-log-limit=64"});
  EXPECT_EQ(process->Wait(), 2);
  EXPECT_THAT(process->Errors(), HasSubstr("has no unit"));
  process = Start({"--listen=127.0.0.1:0", "--event-log=e", "--event-log-limit=64KiB"});
  EXPECT_EQ(process->Wait(), 2);
  EXPECT_THAT(process->Errors(), HasSubstr("such as 64MiB"));
}

TEST_F(TensorhubServerTest, APersonIsToldInOneLine) {
  const std::string port_file = directory_ + "/port";
  auto process = Start({"--listen=127.0.0.1:0", "--port-file", port_file});
  const std::string line = process->FirstLine();
  int port = 0;
  std::ifstream(port_file) >> port;
  EXPECT_THAT(line, StartsWith(absl::StrCat("tensorhub_server listening on 127.0.0.1:", port)));
  EXPECT_GT(port, 0);
}

class SignalTest : public TensorhubServerTest, public ::testing::WithParamInterface<int> {};

TEST_P(SignalTest, EndsItCleanly) {
  auto process = StartListening();
  ScriptedWorker worker(Announced("address"));
  ASSERT_OK(worker.Join("trainer"));
  process->Signal(GetParam());
  EXPECT_EQ(process->Wait(), 0) << process->Errors();
  ASSERT_OK_AND_ASSIGN(const Refused refused, worker.Expect<Refused>());
  EXPECT_LT(refused.retry_after, absl::InfiniteDuration());
}

TEST_P(SignalTest, AtOnceAfterTheStartEndsItCleanly) {
  auto process = Start({"--listen=127.0.0.1:0"});
  process->FirstLine();
  process->Signal(GetParam());
  EXPECT_EQ(process->Wait(), 0) << process->Errors();
}

INSTANTIATE_TEST_SUITE_P(Signals, SignalTest, ::testing::Values(SIGTERM, SIGINT));

// The parent is a shell, which is killed: it can pass nothing on.
TEST_F(TensorhubServerTest, EndsWithItsParentWhereItIsAsked) {
  int out[2];
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  const std::string command = absl::StrCat(
      BinaryPath(), " --listen=127.0.0.1:0 --end-with-parent=$$ --state-dir=", directory_,
      "/state & wait");
  const pid_t shell = fork();
  if (shell == 0) {
    dup2(out[1], STDOUT_FILENO);
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(126);
  }
  close(out[1]);
  char byte;
  while (read(out[0], &byte, 1) == 1 && byte != '\n') {
  }
  ASSERT_EQ(byte, '\n') << "the server did not begin";
  kill(shell, SIGKILL);
  waitpid(shell, nullptr, 0);
  // Shell and server alone have the pipe's other end.
  pollfd end = {.fd = out[0], .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&end, 1, 30'000), 1) << "the server outlives its parent";
  EXPECT_EQ(read(out[0], &byte, 1), 0);
  close(out[0]);
}

TEST_F(TensorhubServerTest, AParentThatItDoesNotHaveEndsItAtOnce) {
  auto process = Start({"--listen=127.0.0.1:0", "--end-with-parent=1999999999"});
  process->FirstLine();
  EXPECT_EQ(process->Wait(), 0) << process->Errors();
  EXPECT_THAT(process->Errors(), HasSubstr("process 1999999999, has ended"));
}

TEST_F(TensorhubServerTest, ARestartAfterKillHasAHigherEpoch) {
  auto first = StartListening();
  const uint32_t before = announced_.value("epoch", 0u);
  EXPECT_GT(before, 0u);
  first->Signal(SIGKILL);
  EXPECT_EQ(first->Wait(), 1000 + SIGKILL);
  auto second = StartListening();
  EXPECT_GT(announced_.value("epoch", 0u), before);
}

TEST_F(TensorhubServerTest, ATakenPortEndsItWithStatus3) {
  auto first = StartListening();
  auto second = Start({"--listen", Announced("address"), "--state-dir", directory_ + "/other"});
  EXPECT_EQ(second->Wait(), 3);
  EXPECT_THAT(second->Errors(), AllOf(HasSubstr(Announced("address")), HasSubstr("in use")));
}

TEST_F(TensorhubServerTest, AStateDirectoryInUseEndsItWithStatus4) {
  auto first = StartListening();
  auto second = Start({"--listen=127.0.0.1:0"});
  EXPECT_EQ(second->Wait(), 4);
  EXPECT_THAT(second->Errors(),
              AllOf(HasSubstr(directory_ + "/state"),
                    HasSubstr(absl::StrCat("process ", announced_.value("pid", 0)))));
}

TEST_F(TensorhubServerTest, ADamagedStateEndsItWithStatus4) {
  std::filesystem::create_directories(directory_ + "/state");
  std::ofstream(directory_ + "/state/state") << "tensorhub-state 2 0000\n{}";
  auto process = Start({"--listen=127.0.0.1:0"});
  EXPECT_EQ(process->Wait(), 4);
  EXPECT_THAT(process->Errors(),
              AllOf(HasSubstr(directory_ + "/state/state"), HasSubstr("checksum")));
}

TEST_F(TensorhubServerTest, AnUnknownFlagEndsItWithStatus2) {
  auto process = Start({"--nope"});
  EXPECT_EQ(process->Wait(), 2);
  EXPECT_THAT(process->Errors(), HasSubstr("--nope"));
}

TEST_F(TensorhubServerTest, VersionIsPrinted) {
  auto process = Start({"--version"});
  EXPECT_THAT(process->FirstLine(), StartsWith("tensorhub_server "));
  EXPECT_EQ(process->Wait(), 0);
}

}  // namespace
}  // namespace th
