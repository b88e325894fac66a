// The threads that clients bring into their host's process: all of them, gRPC's too. The server is
// another process, so that none of the threads are its.
#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "testing/process_threads.h"
#include "testing/program_run/program_run.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"

namespace th {
namespace {

using ::th::testing::ThreadsOfThisProcess;

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
  size_t count = 0;
  for (const auto& [id, thread] : ThreadsOfThisProcess()) {
    if (before.contains(id)) continue;
    ++count;
    ++brought[thread.name];
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD, SIGPIPE, SIGALRM}) {
      EXPECT_TRUE(thread.Blocks(signal)) << thread.name << " and signal " << signal;
    }
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
