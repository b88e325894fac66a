// The threads that clients bring into their host's process: all of them, gRPC's too. The server is
// another process, so that none of the threads are its.
#include <dirent.h>

#include <csignal>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/cli/program_run.h"
#include "th/client/client.h"

namespace th {
namespace {

struct ThreadInfo {
  std::string name;
  uint64_t blocked_signals = 0;
};

std::map<int, ThreadInfo> ThreadsOfThisProcess() {
  std::map<int, ThreadInfo> threads;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) {
    int id = 0;
    if (!absl::SimpleAtoi(entry->d_name, &id)) continue;
    std::ifstream status(absl::StrCat("/proc/self/task/", id, "/status"));
    ThreadInfo& info = threads[id];
    for (std::string line; std::getline(status, line);) {
      if (absl::StartsWith(line, "Name:\t")) info.name = line.substr(6);
      if (absl::StartsWith(line, "SigBlk:\t")) {
        (void)absl::SimpleHexAtoi(line.substr(8), &info.blocked_signals);
      }
    }
  }
  closedir(tasks);
  return threads;
}

uint64_t Bit(int signal) { return uint64_t{1} << (signal - 1); }

// A rank with one small buffer.
struct Member {
  Member(const std::string& server, std::string group) {
    auto joined =
        Client::Join({.server = server, .run = "r", .model = "m", .group = std::move(group)});
    EXPECT_OK(joined.status());
    if (!joined.ok()) return;
    client = *std::move(joined);
    Tensor tensor;
    tensor.name = "w";
    tensor.dtype = DType::kU8;
    tensor.shape = {static_cast<int64_t>(memory.size())};
    tensor.data = memory.data();
    auto registered = client->Register({tensor});
    EXPECT_OK(registered.status());
    if (registered.ok()) weights = *std::move(registered);
  }

  std::vector<char> memory = std::vector<char>(1 << 20);
  std::unique_ptr<Client> client;
  WeightBuffer weights;
};

// Enough for gRPC's pollers, timers and executors on a machine of this size, whatever the number of
// clients.
size_t MostThreads() { return 16 + 4 * std::thread::hardware_concurrency(); }

TEST(ClientThreadsTest, EachBlocksSignalsAndTheyAreBounded) {
  RunningServer server;
  const auto before = ThreadsOfThisProcess();
  std::vector<std::unique_ptr<Member>> members;
  members.push_back(std::make_unique<Member>(server.address(), "trainer"));
  ASSERT_OK(members[0]->weights.Publish(1));
  for (int i = 0; i < 12; ++i) {
    members.push_back(std::make_unique<Member>(server.address(), absl::StrCat("rollout-", i)));
    ASSERT_OK(members.back()->weights.Update(Latest()).status());
  }
  ASSERT_OK_AND_ASSIGN(auto controller, Controller::Connect({server.address(), "r", "m"}));
  ASSERT_OK(controller->List().status());

  std::map<std::string, int> brought;
  const uint64_t wanted = Bit(SIGINT) | Bit(SIGTERM) | Bit(SIGHUP) | Bit(SIGUSR1) | Bit(SIGCHLD) |
                          Bit(SIGPIPE) | Bit(SIGALRM);
  size_t count = 0;
  for (const auto& [id, thread] : ThreadsOfThisProcess()) {
    if (before.contains(id)) continue;
    ++count;
    ++brought[thread.name];
    EXPECT_EQ(thread.blocked_signals & wanted, wanted) << thread.name;
  }
  EXPECT_EQ(brought["th-control"], 1);
  EXPECT_EQ(brought["th-callback"], 1);
  EXPECT_EQ(brought["th-seal"], 1);
  EXPECT_EQ(brought["th-data-0"], 1);
  EXPECT_LE(count, MostThreads());
  for (const auto& [name, threads] : brought) {
    RecordProperty(name.empty() ? "unnamed" : name, threads);
  }
}

TEST(ClientThreadsTest, OursEndWithTheLastClient) {
  RunningServer server;
  { const Member member(server.address(), "trainer"); }
  for (const auto& [id, thread] : ThreadsOfThisProcess()) {
    EXPECT_FALSE(absl::StartsWith(thread.name, "th-")) << thread.name;
  }
}

}  // namespace
}  // namespace th
