#include "th/command_line/run_command_line.h"

#include <iostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  int status = 0;
  std::string output;
  std::string errors;
};

// A program with one command that needs --dir, says --count and ends with kNotThere.
Outcome RunWith(std::vector<std::string> arguments) {
  CLI::App app("a program");
  app.name("program");
  app.require_subcommand(1);
  ExitStatus exit = ExitStatus::kOk;
  std::string dir;
  CLI::App* command = app.add_subcommand("go", "goes");
  command->add_option("--dir", dir, "where")->required();
  unsigned count = 1;
  command->add_option("--count", count, "how many")->check(CLI::Range(1u, 20u));
  bool fast = false;
  command->add_flag("--fast", fast, "hurries");
  command->callback([&] {
    std::cout << "count " << count << (fast ? " fast" : "") << "\n";
    exit = ExitStatus::kNotThere;
  });
  arguments.insert(arguments.begin(), "program");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.status = RunCommandLine(&app, static_cast<int>(argv.size()), argv.data(), &exit);
  outcome.output = ::testing::internal::GetCapturedStdout();
  outcome.errors = ::testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(RunCommandLineTest, EndsAsTheCommandDid) {
  EXPECT_EQ(RunWith({"go", "--dir", "x"}).status, 4);
}

TEST(RunCommandLineTest, HelpIsNoError) {
  const Outcome outcome = RunWith({"go", "--help"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("--dir"));
}

TEST(RunCommandLineTest, WhatIsMissingIsAUsageErrorOnStderr) {
  EXPECT_EQ(RunWith({}).status, 2);
  const Outcome outcome = RunWith({"go"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.errors, HasSubstr("--dir"));
}

TEST(RunCommandLineTest, AnEmptyValueIsAUsageErrorOfAnyOption) {
  for (const char* flag : {"--dir", "--count"}) {
    const Outcome outcome = RunWith({"go", "--dir", "x", flag, ""});
    EXPECT_EQ(outcome.status, 2) << flag;
    EXPECT_THAT(outcome.errors, HasSubstr(std::string(flag) + ": has an empty value")) << flag;
  }
}

TEST(RunCommandLineTest, IntegersAreDecimal) {
  for (const char* ten : {"10", "010", "00010"}) {
    EXPECT_THAT(RunWith({"go", "--dir", "x", "--count", ten}).output, HasSubstr("count 10\n"));
  }
  EXPECT_EQ(RunWith({"go", "--dir", "x", "--count", "000"}).status, 2);
  EXPECT_EQ(RunWith({"go", "--dir", "x", "--count", "021"}).status, 2);
}

TEST(RunCommandLineTest, AFlagThatTakesNoValueIsGivenNone) {
  for (const char* flag : {"--fast", "--fast=true"}) {
    EXPECT_THAT(RunWith({"go", "--dir", "x", flag}).output, HasSubstr("count 1 fast\n")) << flag;
  }
  EXPECT_THAT(RunWith({"go", "--dir", "x"}).output, HasSubstr("count 1\n"));
  for (const char* value : {"3", "1", "0", "false", "soon"}) {
    const Outcome outcome = RunWith({"go", "--dir", "x", std::string("--fast=") + value});
    EXPECT_EQ(outcome.status, 2) << value;
    EXPECT_THAT(outcome.errors,
                HasSubstr(std::string("--fast: takes no value: leave out =") + value));
  }
}

TEST(RunCommandLineTest, WhatIsUnknownIsNamedInItsOrderWithTheCommand) {
  EXPECT_EQ(RunWith({"go", "--dir", "x", "--cuont", "3"}).errors,
            "program go takes no --cuont 3; program go --help lists what it takes; did you mean "
            "--count?\n");
}

TEST(RunCommandLineTest, AFlagBeforeItsCommandIsSentBehindIt) {
  EXPECT_EQ(RunWith({"--count", "3", "go", "--dir", "x"}).errors,
            "--count stands before the command; it belongs behind it: program go --count ...\n");
}

TEST(RunCommandLineTest, WhatIsUnknownIsNamedEvenIfSomethingIsMissingToo) {
  EXPECT_THAT(RunWith({"frobnicate"}).errors, HasSubstr("frobnicate"));
  EXPECT_THAT(RunWith({"go", "--frobnicate"}).errors, HasSubstr("--frobnicate"));
  EXPECT_EQ(RunWith({"go", "--dir", "x", "--frobnicate"}).status, 2);
}

}  // namespace
}  // namespace th
