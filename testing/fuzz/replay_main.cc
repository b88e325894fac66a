// Runs a fuzz target over its corpus and over seeded mutations of it:
//
//   foo_fuzz_test [--mutations=N] [--seed=N] CORPUS_FILE...
//
// The same arguments give the same inputs. When the target dies, the input is named on stderr and
// kept in $TEST_UNDECLARED_OUTPUTS_DIR/crash_input (without it, in the working directory), ready to
// be checked in as one more corpus file.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "testing/fuzz/fuzz_target.h"
#include "testing/fuzz/input_mutator.h"

// Sanitizers end the process without a signal, but call this first.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace th::testing {
namespace {

struct CorpusFile {
  std::string name;
  std::string content;
};

struct Replay {
  std::vector<CorpusFile> corpus;
  uint32_t mutations = 2'000;  // a corpus file
  uint32_t seed = 1;
};

Replay& TheReplay() {
  static Replay& replay = *new Replay;
  return replay;
}

// The state that a dying process needs, without allocating.
struct Running {
  std::string label;
  std::string input;
  std::string crash_path;
};

Running& TheRunning() {
  static Running& running = *new Running;
  return running;
}

void WriteAll(int descriptor, const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t result = write(descriptor, text.data() + written, text.size() - written);
    if (result <= 0) return;
    written += static_cast<size_t>(result);
  }
}

void KeepCrashInput() {
  const Running& running = TheRunning();
  WriteAll(STDERR_FILENO, running.label);
  const int file = open(running.crash_path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
  if (file < 0) return;
  WriteAll(file, running.input);
  close(file);
}

void OnFatalSignal(int signal) {
  KeepCrashInput();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void KeepInputsThatKill() {
  const char* folder = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  TheRunning().crash_path = absl::StrCat(folder != nullptr ? folder : ".", "/crash_input");
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(KeepCrashInput);
    std::signal(SIGABRT, OnFatalSignal);
    return;
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(signal, OnFatalSignal);
  }
}

int RunTarget(const std::string& label, std::string input) {
  Running& running = TheRunning();
  running.label = absl::StrCat("fuzz target died on ", label, "\n");
  running.input = std::move(input);
  // A copy of exactly this size, so that a read past its end is one past an allocation's.
  const std::vector<uint8_t> exact(running.input.begin(), running.input.end());
  return LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

TEST(FuzzReplayTest, BearsTheEmptyInput) { EXPECT_EQ(RunTarget("the empty input", ""), 0); }

TEST(FuzzReplayTest, BearsEveryCorpusFile) {
  ASSERT_FALSE(TheReplay().corpus.empty()) << "no corpus file given";
  for (const CorpusFile& file : TheReplay().corpus) {
    EXPECT_EQ(RunTarget(file.name, file.content), 0) << file.name;
  }
}

TEST(FuzzReplayTest, BearsSeededMutationsOfEveryCorpusFile) {
  const Replay& replay = TheReplay();
  std::vector<std::string> contents;
  for (const CorpusFile& file : replay.corpus) contents.push_back(file.content);
  InputMutator mutator(std::move(contents), replay.seed);
  for (const CorpusFile& file : replay.corpus) {
    for (uint32_t i = 0; i < replay.mutations; ++i) {
      const std::string label =
          absl::StrCat("mutation ", i, " of ", file.name, " with seed ", replay.seed);
      ASSERT_EQ(RunTarget(label, mutator.Mutate(file.content)), 0) << label;
    }
  }
}

bool LoadCorpusFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    std::fprintf(stderr, "cannot read corpus file %s\n", path.c_str());
    return false;
  }
  TheReplay().corpus.push_back({path, std::string(std::istreambuf_iterator<char>(stream), {})});
  return true;
}

bool ParseArgument(absl::string_view argument) {
  Replay& replay = TheReplay();
  if (absl::ConsumePrefix(&argument, "--mutations=")) {
    return absl::SimpleAtoi(argument, &replay.mutations);
  }
  if (absl::ConsumePrefix(&argument, "--seed=")) return absl::SimpleAtoi(argument, &replay.seed);
  return LoadCorpusFile(std::string(argument));
}

}  // namespace
}  // namespace th::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (!th::testing::ParseArgument(argv[i])) {
      std::fprintf(stderr, "bad argument %s\n", argv[i]);
      return 2;
    }
  }
  th::testing::KeepInputsThatKill();
  return RUN_ALL_TESTS();
}
