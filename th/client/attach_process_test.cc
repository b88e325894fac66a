// Attach over the boundary of processes: a holder and readers that are processes of their own,
// which are stopped, killed and asked what they see. This program is all of them: --role says
// which.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "testing/open_descriptors.h"
#include "testing/status_matchers.h"
#include "th/client/arena_shard.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"
#include "th/memory/shared_memory.h"

extern char** environ;

namespace th {
namespace {

using ::th::testing::ArenaShard;
using ::th::testing::OpenDescriptors;
using ::th::testing::TestServer;

// ---- the roles, in processes of their own: one line in, one line out

ClientOptions OptionsOf(const std::string& server, std::string group) {
  return {.server = server, .run = "run", .model = "model", .group = std::move(group)};
}

class HolderRole {
 public:
  explicit HolderRole(const std::string& server)
      : client_(*Client::Join(OptionsOf(server, "trainer"))),
        buffer_(*client_->Register(shard_.tensors)) {}

  std::string Do(absl::string_view verb, uint64_t number) {
    if (verb == "publish") return Text(Publish(static_cast<int64_t>(number)));
    if (verb == "unpublish") return Text(buffer_.Unpublish());
    if (verb == "left") return absl::StrCat(BytesLeftToReaders());
    if (verb == "arena") return absl::StrCat(FindSharedMemory(shard_.data(), 1)->id);
    if (verb == "fill") shard_.FillWith(number);
    return "ok";
  }

 private:
  static std::string Text(const absl::Status& status) {
    return status.ok() ? "ok" : std::string(status.message());
  }
  absl::Status Publish(int64_t step) {
    TH_RETURN_IF_ERROR(buffer_.Publish(step));
    return buffer_.AwaitPublished().status();
  }

  ArenaShard shard_;
  std::unique_ptr<Client> client_;
  WeightBuffer buffer_;
};

class ReaderRole {
 public:
  ReaderRole(const std::string& server, std::string group)
      : client_(*Client::Join(OptionsOf(server, std::move(group)))) {}

  std::string Do(absl::string_view verb, uint64_t number) {
    if (verb == "attach") return Attach();
    if (verb == "detach") attached_.reset();
    if (verb == "sees") return ArenaShard::IsContentOf(number, *attached_) ? "yes" : "no";
    if (verb == "verify") return attached_->Verify().ok() ? "ok" : "differs";
    if (verb == "descriptors") return absl::StrCat(OpenDescriptors());
    if (verb == "arenas") return absl::StrCat(MappedArenas());
    return "ok";
  }

 private:
  std::string Attach() {
    auto result = client_->Attach(Latest());
    if (!result.ok()) return std::string(result.status().message());
    if (!result->attached()) return "not available";
    attached_ = std::move(result->version);
    return "ok";
  }
  static size_t MappedArenas() {
    std::ifstream maps("/proc/self/maps");
    std::string line;
    size_t arenas = 0;
    while (std::getline(maps, line)) arenas += line.find("tensorhub-arena") != std::string::npos;
    return arenas;
  }

  std::unique_ptr<Client> client_;
  std::optional<AttachedVersion> attached_;
};

template <typename Role>
int Serve(Role role) {
  std::printf("ready\n");
  std::fflush(stdout);
  char line[256];
  while (std::fgets(line, sizeof(line), stdin) != nullptr) {
    const std::vector<std::string> words =
        absl::StrSplit(absl::StripTrailingAsciiWhitespace(line), ' ');
    uint64_t number = 0;
    if (words.size() > 1) (void)absl::SimpleAtoi(words[1], &number);
    std::printf("%s\n", role.Do(words[0], number).c_str());
    std::fflush(stdout);
  }
  return 0;
}

// ---- the test's side

class Process {
 public:
  explicit Process(std::vector<std::string> arguments) {
    int in[2], out[2];
    EXPECT_EQ(pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    arguments.insert(arguments.begin(), "/proc/self/exe");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    to_ = fdopen(in[1], "w");
    from_ = fdopen(out[0], "r");
    EXPECT_EQ(Answer(), "ready");
  }
  ~Process() {
    std::fclose(to_);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    std::fclose(from_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  std::string Ask(const std::string& line) {
    std::fprintf(to_, "%s\n", line.c_str());
    std::fflush(to_);
    return Answer();
  }
  uint64_t AskNumber(const std::string& line) {
    uint64_t number = 0;
    EXPECT_TRUE(absl::SimpleAtoi(Ask(line), &number));
    return number;
  }
  void Kill() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  std::string Answer() {
    char line[1024];
    if (std::fgets(line, sizeof(line), from_) == nullptr) return "it has ended";
    return std::string(absl::StripTrailingAsciiWhitespace(line));
  }

  pid_t pid_ = 0;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
};

class AttachProcessTest : public ::testing::Test {
 protected:
  AttachProcessTest() {
    EXPECT_EQ(holder_.Ask("fill 1"), "ok");
    EXPECT_EQ(holder_.Ask("publish 1"), "ok");
  }
  std::unique_ptr<Process> Reader(const std::string& group) {
    return std::make_unique<Process>(
        std::vector<std::string>{"--role=reader", server_.address(), group});
  }

  TestServer server_;
  Process holder_{{"--role=holder", server_.address()}};
};

TEST_F(AttachProcessTest, ReadersKeepWhatTheHolderTakesBackAndRewrites) {
  const auto first = Reader("first");
  EXPECT_EQ(first->Ask("attach"), "ok");
  EXPECT_EQ(holder_.Ask("unpublish"), "ok");
  EXPECT_EQ(holder_.Ask("fill 2"), "ok");
  EXPECT_EQ(holder_.Ask("publish 2"), "ok");
  const auto second = Reader("second");
  EXPECT_EQ(second->Ask("attach"), "ok");
  EXPECT_EQ(first->Ask("sees 1"), "yes");
  EXPECT_EQ(first->Ask("verify"), "ok");
  EXPECT_EQ(second->Ask("sees 2"), "yes");
  EXPECT_EQ(second->Ask("verify"), "ok");
  EXPECT_GT(holder_.AskNumber("left"), 0U);
  EXPECT_EQ(first->Ask("detach"), "ok");
  EXPECT_EQ(holder_.AskNumber("left"), 0U);
}

TEST_F(AttachProcessTest, AReaderThatIsKilledCostsTheHolderNothing) {
  const auto reader = Reader("engine");
  EXPECT_EQ(reader->Ask("attach"), "ok");
  const uint64_t arena = holder_.AskNumber("arena");
  reader->Kill();
  EXPECT_EQ(holder_.Ask("unpublish"), "ok");
  EXPECT_EQ(holder_.AskNumber("arena"), arena);
  EXPECT_EQ(holder_.AskNumber("left"), 0U);
}

TEST_F(AttachProcessTest, WhatIsAttachedOutlivesAHolderThatIsKilled) {
  const auto reader = Reader("engine");
  EXPECT_EQ(reader->Ask("attach"), "ok");
  holder_.Kill();
  EXPECT_EQ(reader->Ask("sees 1"), "yes");
  EXPECT_EQ(reader->Ask("verify"), "ok");
  EXPECT_EQ(reader->Ask("detach"), "ok");
}

TEST_F(AttachProcessTest, ManyTimesLeakNothing) {
  const auto reader = Reader("engine");
  EXPECT_EQ(reader->Ask("attach"), "ok");
  EXPECT_EQ(reader->Ask("detach"), "ok");
  const uint64_t descriptors = reader->AskNumber("descriptors");
  const uint64_t arenas = reader->AskNumber("arenas");
  for (int i = 2; i < 22; ++i) {
    ASSERT_EQ(reader->Ask("attach"), "ok");
    ASSERT_EQ(holder_.Ask("unpublish"), "ok");
    ASSERT_EQ(reader->Ask("sees 1"), "yes");
    ASSERT_EQ(reader->Ask("detach"), "ok");
    ASSERT_EQ(holder_.AskNumber("left"), 0U);
    ASSERT_EQ(holder_.Ask(absl::StrCat("publish ", i)), "ok");
  }
  EXPECT_LE(reader->AskNumber("descriptors"), descriptors + 4) << "connections that just end";
  EXPECT_EQ(reader->AskNumber("arenas"), arenas);
}

}  // namespace
}  // namespace th

int main(int argc, char** argv) {
  const std::string role = argc > 2 ? argv[1] : "";
  if (role == "--role=holder") return th::Serve(th::HolderRole(argv[2]));
  if (role == "--role=reader") return th::Serve(th::ReaderRole(argv[2], argv[3]));
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
