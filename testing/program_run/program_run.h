// Runs the project's own binaries in tests: their output, their exit status, and a server to talk
// to.
//
//   const ProgramRun run = RunProgram({Th(), "list", "--json"});
//   EXPECT_EQ(run.status, 3);
//   EXPECT_THAT(run.errors, HasSubstr("127.0.0.1:1"));
#ifndef TESTING_PROGRAM_RUN_PROGRAM_RUN_H_
#define TESTING_PROGRAM_RUN_PROGRAM_RUN_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "th/processes/child_process.h"

namespace th {

std::string Th();
std::string Worker();
std::string Server();

struct ProgramRun {
  int status = -1;                 // -1: ended by a signal
  std::vector<std::string> lines;  // of stdout
  std::string errors;              // stderr

  std::string output() const;
  // The last line of stdout; discarded when it is no JSON object.
  nlohmann::json json() const;
};

// To its end.
ProgramRun RunProgram(std::vector<std::string> arguments);

// A program under way. Its destructor kills it.
class RunningProgram {
 public:
  explicit RunningProgram(std::vector<std::string> arguments);

  ChildProcess& process() { return *process_; }
  // Waits for a line of stdout that contains `text`, after the one that it returned before; empty
  // when the output ends without.
  std::string AwaitLine(const std::string& text);
  // Waits for a line of stderr that contains `text`; false when the program ends without.
  bool AwaitError(const std::string& text);
  // Waits for its end.
  ProgramRun Finish();

 private:
  bool ReadMore();

  std::string log_path_;
  std::unique_ptr<ChildProcess> process_;
  std::vector<std::string> lines_;
  size_t next_line_ = 0;  // the first that AwaitLine has not looked at
};

// tensorhub_server on a port of the system's choice, with state of its own.
class RunningServer {
 public:
  RunningServer();
  // "127.0.0.1:4711".
  const std::string& address() const { return address_; }
  RunningProgram& program() { return *program_; }
  void Kill();
  // Again, with the same address and state.
  void Start();

 private:
  const std::string state_dir_;
  std::string address_ = "127.0.0.1:0";
  std::optional<RunningProgram> program_;
};

// A new folder under the test's own.
std::string FreshFolder(const std::string& name);
// A folder of safetensors with a few tensors whose bytes follow from `seed`.
std::string MakeModelFolder(const std::string& name, int seed);

}  // namespace th

#endif  // TESTING_PROGRAM_RUN_PROGRAM_RUN_H_
