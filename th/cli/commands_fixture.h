// The fixture of tests of the commands: a server of their own, and what is asked of it.
//
//   TEST_F(CommandsTest, AnEmptyServerListsNothing) { EXPECT_EQ(RunTh({"list"}).status, 4); }
#ifndef TH_CLI_COMMANDS_FIXTURE_H_
#define TH_CLI_COMMANDS_FIXTURE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/program_run/program_run.h"

namespace th {

class CommandsTest : public ::testing::Test {
 protected:
  // Arguments with the server's address at the end.
  std::vector<std::string> Against(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(),
                     {"--server", server_.address(), "--run", "r1", "--model", "m"});
    return arguments;
  }
  ProgramRun RunTh(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), Th());
    return RunProgram(Against(std::move(arguments)));
  }
  std::unique_ptr<RunningProgram> StartPublisher(const std::string& folder,
                                                 const std::string& label,
                                                 std::vector<std::string> more = {"--ranks", "2"}) {
    std::vector<std::string> arguments = {Worker(), "publish", "--dir", folder, "--label", label};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::make_unique<RunningProgram>(Against(std::move(arguments)));
  }
  std::unique_ptr<RunningProgram> Publish(const std::string& folder, const std::string& label) {
    auto publisher = StartPublisher(folder, label);
    EXPECT_THAT(publisher->AwaitLine("published"), ::testing::HasSubstr("version=" + label));
    return publisher;
  }
  // "1.2": how a published version is named by its sequence.
  std::string SequenceOf(const std::string& label) {
    return RunTh({"describe", label, "--json"}).json().value("sequence", "");
  }

  RunningServer server_;
};

}  // namespace th

#endif  // TH_CLI_COMMANDS_FIXTURE_H_
