#include "testing/program_run/program_run.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/command_line/json_lines.h"
#include "th/memory/checkpoint_writer.h"
#include "th/processes/runfiles.h"

namespace th {
namespace {

namespace fs = std::filesystem;

// Longer than anything takes on a busy machine; the test's own limit comes after.
constexpr absl::Duration kPatience = absl::Minutes(3);
constexpr int kErrorPollMs = 5;

std::string Program(absl::string_view path) {
  const absl::StatusOr<std::string> program = FindProgram(path);
  EXPECT_OK(program);
  return program.value_or("");
}

std::string TextOf(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string NextLogPath() {
  static std::atomic<int> next = 0;
  return absl::StrCat(::testing::TempDir(), "/program-", getpid(), "-", next++, ".log");
}

}  // namespace

std::string Th() { return Program("th/cli/th"); }
std::string Worker() { return Program("th/worker/tensorhub_worker"); }
std::string Server() { return Program("th/server/tensorhub_server"); }

std::string ProgramRun::output() const { return absl::StrJoin(lines, "\n"); }

nlohmann::json ProgramRun::json() const { return ParseLine(lines.empty() ? "" : lines.back()); }

ProgramRun RunProgram(std::vector<std::string> arguments) {
  return RunningProgram(std::move(arguments)).Finish();
}

RunningProgram::RunningProgram(std::vector<std::string> arguments) : log_path_(NextLogPath()) {
  const std::string name = arguments[0];
  auto process =
      ChildProcess::Start({.name = name, .arguments = std::move(arguments), .log_path = log_path_});
  EXPECT_OK(process);
  process_ = *std::move(process);
}

bool RunningProgram::ReadMore() {
  if (process_->output_fd() < 0) return false;
  pollfd waited{.fd = process_->output_fd(), .events = POLLIN, .revents = 0};
  poll(&waited, 1, -1);
  for (std::string& line : process_->ReadLines()) lines_.push_back(std::move(line));
  return true;
}

std::string RunningProgram::AwaitLine(const std::string& text) {
  for (;;) {
    while (next_line_ < lines_.size()) {
      const std::string& line = lines_[next_line_++];
      if (absl::StrContains(line, text)) return line;
    }
    if (!ReadMore()) break;
  }
  ADD_FAILURE() << "no line with \"" << text << "\" in:\n"
                << absl::StrJoin(lines_, "\n") << "\n"
                << TextOf(log_path_);
  return "";
}

bool RunningProgram::AwaitError(const std::string& text) {
  for (;;) {
    const bool ended = process_->HasEnded();
    if (absl::StrContains(TextOf(log_path_), text)) return true;
    if (ended) return false;
    poll(nullptr, 0, kErrorPollMs);
  }
}

ProgramRun RunningProgram::Finish() {
  while (ReadMore()) {
  }
  EXPECT_OK(process_->AwaitEnd(kPatience));
  return {.status = process_->exit_status(), .lines = lines_, .errors = TextOf(log_path_)};
}

RunningServer::RunningServer() : state_dir_(FreshFolder("state")) { Start(); }

void RunningServer::Start() {
  program_.emplace(std::vector<std::string>{Server(), "--listen=" + address_, "--json",
                                            "--state-dir=" + state_dir_});
  const nlohmann::json said = ParseLine(program_->AwaitLine("address"));
  if (said.is_object()) address_ = said.value("address", "");
}

void RunningServer::Kill() {
  program_->process().Signal(SIGKILL);
  program_->Finish();
}

std::string FreshFolder(const std::string& name) {
  static std::atomic<int> next = 0;
  std::string path = absl::StrCat(::testing::TempDir(), "/", name, "-", getpid(), "-", next++);
  fs::remove_all(path);
  fs::create_directories(path);
  return path;
}

std::string MakeModelFolder(const std::string& name, int seed) {
  std::string folder = FreshFolder(name);
  std::vector<std::string> contents;
  for (size_t bytes : {100'000, 64, 300'000, 8}) {
    std::string& content = contents.emplace_back(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) content[i] = static_cast<char>(i * 37 + i / 251 + seed);
  }
  std::vector<CheckpointTensor> tensors;
  for (size_t i = 0; i < contents.size(); ++i) {
    const uint64_t bytes = contents[i].size();
    tensors.push_back({.spec = {.name = absl::StrCat("tensor.", i),
                                .dtype = DType::kU8,
                                .shape = {static_cast<int64_t>(bytes)},
                                .bytes = bytes},
                       .data = contents[i].data()});
  }
  EXPECT_OK(WriteCheckpoint(folder, tensors, {}));
  return folder;
}

}  // namespace th
