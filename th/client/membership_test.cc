// Joining, leaving, sharing a process, forking.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/process_threads.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"
#include "th/transfer/ibverbs/ibverbs_transport.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::th::testing::kPatience;
using ::th::testing::Rank;
using ::th::testing::StatusIs;
using ::th::testing::TestServer;
using ::th::testing::TestShard;
using ::th::testing::ThreadsOfThisProcess;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(MembershipTest, ARankJoinsAndLeaves) {
  TestServer server;
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(Rank(server, "trainer")));
  EXPECT_OK(client->membership());
  EXPECT_OK(client->Leave());
  EXPECT_THAT(client->membership(), StatusIs(absl::StatusCode::kCancelled));
}

TEST(MembershipTest, LeavingTwiceIsLeavingOnce) {
  TestServer server;
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(Rank(server, "trainer")));
  EXPECT_OK(client->Leave());
  EXPECT_OK(client->Leave());
}

TEST(MembershipTest, ANoticeEndsTheMembershipAtItsDeadline) {
  TestServer server;
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(Rank(server, "trainer")));
  EXPECT_OK(client->Preempt(absl::Now() + absl::Milliseconds(200)));
  EXPECT_TRUE(client->AwaitEnded(kPatience));
  ASSERT_OK_AND_ASSIGN(auto again, Client::Join(Rank(server, "trainer")));
  EXPECT_OK(again->membership());
  EXPECT_OK(client->Leave());
}

TEST(MembershipTest, ANoticeInThePastIsRefusedAndChangesNothing) {
  TestServer server;
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(Rank(server, "trainer")));
  EXPECT_THAT(client->Preempt(absl::Now() - absl::Seconds(1)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_OK(client->membership());
}

TEST(MembershipTest, WithoutAServerTheJoinEndsInTimeAndNamesTheAddress) {
  TestServer server;
  const std::string address = server.address();
  server.Stop();
  ClientOptions options = Rank(server, "trainer");
  options.join_timeout = absl::Milliseconds(400);
  const absl::Time begin = MonotonicNow();
  const auto client = Client::Join(options);
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(5));
  EXPECT_THAT(client, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Message(client.status()),
              AllOf(HasSubstr("run=run model=model"), HasSubstr(address)));
}

TEST(MembershipTest, AServerThatComesWhileJoiningIsFound) {
  TestServer server;
  server.Stop();
  const ClientOptions rank = Rank(server, "trainer");
  absl::StatusOr<std::unique_ptr<Client>> client = absl::UnknownError("not yet");
  std::thread joining([&] { client = Client::Join(rank); });
  server.Start();
  joining.join();
  EXPECT_OK(client.status());
}

TEST(MembershipTest, OptionsThatCannotBeAreRefusedByName) {
  TestServer server;
  struct Case {
    std::string what;
    void (*spoil)(ClientOptions&);
  };
  const std::vector<Case> cases = {
      {"run", [](ClientOptions& o) { o.run = ""; }},
      {"model", [](ClientOptions& o) { o.model = "a b"; }},
      {"group", [](ClientOptions& o) { o.group = std::string(1000, 'g'); }},
      {"rank 3", [](ClientOptions& o) { o.rank = 3; }},
      {"rank", [](ClientOptions& o) { o.ranks = 0; }},
      {"host:port", [](ClientOptions& o) { o.server = "nowhere"; }},
      {"join_timeout", [](ClientOptions& o) { o.join_timeout = absl::ZeroDuration(); }},
      {"data_threads", [](ClientOptions& o) { o.data_threads = 0; }},
      {"connections_per_source", [](ClientOptions& o) { o.connections_per_source = 1000; }},
  };
  for (const Case& each : cases) {
    ClientOptions options = Rank(server, "trainer");
    each.spoil(options);
    const auto client = Client::Join(options);
    EXPECT_THAT(client, StatusIs(absl::StatusCode::kInvalidArgument)) << each.what;
    EXPECT_THAT(Message(client.status()), HasSubstr(each.what));
  }
}

TEST(MembershipTest, ASecondWorkerOfALiveRankIsRefused) {
  TestServer server;
  ASSERT_OK_AND_ASSIGN(auto holder, Client::Join(Rank(server, "trainer", 1, 2)));
  const auto second = Client::Join(Rank(server, "trainer", 1, 2));
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(Message(second.status()), HasSubstr("trainer/1"));
  EXPECT_OK(holder->membership());
}

TEST(MembershipTest, ARankThatLeftCanBeTakenAgain) {
  TestServer server;
  { ASSERT_OK_AND_ASSIGN(auto first, Client::Join(Rank(server, "trainer"))); }
  EXPECT_OK(Client::Join(Rank(server, "trainer")).status());
}

TEST(MembershipTest, RanksThatDisagreeOnTheGroupsSizeAreRefused) {
  TestServer server;
  ASSERT_OK_AND_ASSIGN(auto one, Client::Join(Rank(server, "trainer", 0, 2)));
  const auto other = Client::Join(Rank(server, "trainer", 1, 4));
  EXPECT_FALSE(other.ok());
  EXPECT_THAT(Message(other.status()), AllOf(HasSubstr("2"), HasSubstr("4")));
}

TEST(MembershipTest, ALaterClientMustAgreeOnTheDataPlane) {
  TestServer server;
  ClientOptions first = Rank(server, "trainer");
  first.data_address = "127.0.0.1";
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(first));
  struct Case {
    std::string option;
    void (*change)(ClientOptions&);
  };
  for (const Case& each : std::vector<Case>{
           {"data_address", [](ClientOptions& o) { o.data_address = ""; }},
           {"data_threads", [](ClientOptions& o) { o.data_threads = 3; }},
           {"connections_per_source", [](ClientOptions& o) { o.connections_per_source = 1; }},
           {"uplink_bytes_per_second", [](ClientOptions& o) { o.uplink_bytes_per_second = 5; }},
           {"transports", [](ClientOptions& o) { o.transports = {"tcp"}; }},
           {"rdma_devices", [](ClientOptions& o) { o.rdma_devices = {"mlx5_0"}; }},
           {"rdma_registered_limit_bytes",
            [](ClientOptions& o) { o.rdma_registered_limit_bytes = 4096; }},
           {"strict_transport", [](ClientOptions& o) { o.strict_transport = true; }}}) {
    ClientOptions options = first;
    options.group = "rollout";
    each.change(options);
    const auto second = Client::Join(options);
    EXPECT_THAT(second, StatusIs(absl::StatusCode::kFailedPrecondition)) << each.option;
    EXPECT_THAT(Message(second.status()), HasSubstr(absl::StrCat("option ", each.option)));
  }
}

TEST(MembershipTest, TransportsThatThereAreNotOrTwiceAreRefused) {
  TestServer server;
  for (const std::vector<std::string>& transports :
       std::vector<std::vector<std::string>>{{"carrier_pigeon"}, {"tcp", "same_host", "tcp"}}) {
    ClientOptions options = Rank(server, "trainer");
    options.transports = transports;
    const auto client = Client::Join(options);
    EXPECT_THAT(client, StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(Message(client.status()),
                AllOf(HasSubstr("option transports"),
                      HasSubstr("cuda_ipc or same_host or ibverbs or tcp")));
  }
}

TEST(MembershipTest, WhatTheDataPlaneDoesWithoutIsNamedWithTheReason) {
  TestServer server;
  ClientOptions options = Rank(server, "trainer");
  options.uplink_bytes_per_second = 1'000'000;  // RDMA does not keep to it, whatever this host has
  ASSERT_OK_AND_ASSIGN(const auto client, Client::Join(options));
  EXPECT_THAT(client->left_out(),
              Contains(AllOf(StartsWith("ibverbs: "), HasSubstr("uplink_bytes_per_second"))));
  // This process has no GPU's memory, and no use for it.
  EXPECT_THAT(client->left_out(), Not(Contains(StartsWith("cuda_ipc"))));
}

TEST(MembershipTest, RdmaThatIsNamedAndNotThereIsRefusedWithTheReason) {
  TestServer server;
  ClientOptions options = Rank(server, "trainer");
  options.transports = {"ibverbs", "tcp"};
  options.uplink_bytes_per_second = 1'000'000;
  const auto capped = Client::Join(options);
  EXPECT_THAT(capped, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Message(capped.status()), HasSubstr("uplink_bytes_per_second"));
  if (HasRdma().ok()) GTEST_SKIP() << "this machine has an RDMA device";
  options.uplink_bytes_per_second = 0;
  const auto without = Client::Join(options);
  EXPECT_THAT(without, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(Message(without.status()),
              AllOf(HasSubstr("RDMA device"),
                    HasSubstr("leave ibverbs out of the option transports to do without it")));
}

TEST(MembershipTest, OptionsOfRdmaHaveNoEffectWithoutIt) {
  TestServer server;
  ClientOptions options = Rank(server, "trainer");
  options.transports = {"same_host", "tcp"};
  options.rdma_devices = {"mlx5_0"};
  EXPECT_THAT(Client::Join(options).status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                                       HasSubstr("rdma_devices has no effect")));
  options.rdma_devices.clear();
  options.rdma_registered_limit_bytes = 1 << 20;
  EXPECT_THAT(Client::Join(options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rdma_registered_limit_bytes has no effect without ibverbs")));
  options.transports.clear();
  options.rdma_registered_limit_bytes = 0;
  EXPECT_THAT(
      Client::Join(options).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rdma_registered_limit_bytes is 0")));
}

// Where RDMA is not named it is left out with a reason; who names its devices wants it.
TEST(MembershipTest, RdmaDevicesThatAreNamedAndNotThereAreAnError) {
  TestServer server;
  ClientOptions options = Rank(server, "trainer");
  options.rdma_devices = {"no_such_0"};
  const absl::Status joined = Client::Join(options).status();
  EXPECT_FALSE(joined.ok());
  EXPECT_NE(joined.code(), absl::StatusCode::kUnavailable) << "that is a server that is away";
  EXPECT_THAT(Message(joined),
              AllOf(HasSubstr("option rdma_devices is no_such_0: "), HasSubstr("RDMA device")));
}

TEST(MembershipTest, TheDataPlaneListensOnTheWayToTheServer) {
  TestServer server;
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(Rank(server, "trainer")));
  EXPECT_TRUE(absl::StartsWith(client->data_endpoint(), "127.0.0.1:")) << client->data_endpoint();
}

TEST(MembershipTest, AWildcardAddressIsAdvertisedAsTheWayToTheServer) {
  TestServer server;
  ClientOptions options = Rank(server, "trainer");
  options.data_address = "0.0.0.0";
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(options));
  EXPECT_TRUE(absl::StartsWith(client->data_endpoint(), "127.0.0.1:")) << client->data_endpoint();
}

TEST(MembershipTest, TheFirstFreePortOfARangeIsTaken) {
  TestServer server;
  ClientOptions options = Rank(server, "trainer");
  const int taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto close_taken = absl::MakeCleanup([taken] { close(taken); });
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  ASSERT_EQ(getsockname(taken, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const int first = ntohs(address.sin_port);
  const int last = std::min(first + 1000, 65535);
  ASSERT_LT(first, last);
  options.data_address = absl::StrCat("lo:", first, "-", last);
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(options));
  const std::vector<std::string> parts = absl::StrSplit(client->data_endpoint(), ':');
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(parts.back(), &port)) << client->data_endpoint();
  EXPECT_EQ(parts.front(), "127.0.0.1");
  EXPECT_GT(port, first);
  EXPECT_LE(port, last);
  client.reset();

  options.data_address = absl::StrCat("127.0.0.1:", first);
  EXPECT_THAT(Client::Join(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(absl::StrCat("cannot listen on 127.0.0.1:", first))));
}

TEST(MembershipTest, CallsOfABufferWhoseClientLeftAreCancelled) {
  TestServer server;
  TestShard shard;
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(Rank(server, "trainer")));
  ASSERT_OK_AND_ASSIGN(WeightBuffer buffer, client->Register(shard.tensors));
  client.reset();
  EXPECT_THAT(buffer.Publish(1), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(buffer.Update(Latest()), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(buffer.Unpublish(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(buffer.bytes(), 300'000u + 66 + 4 + 5005);
}

TEST(MembershipTest, AnUpdateThatWaitsEndsWhenItsClientLeaves) {
  TestServer server;
  TestShard published, shard;
  ASSERT_OK_AND_ASSIGN(auto trainer, Client::Join(Rank(server, "trainer")));
  ASSERT_OK_AND_ASSIGN(WeightBuffer source, trainer->Register(published.tensors));
  ASSERT_OK(source.Publish(1));
  ASSERT_OK(source.AwaitPublished().status());
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(Rank(server, "rollout", 0, 2)));
  ASSERT_OK_AND_ASSIGN(WeightBuffer buffer, client->Register(shard.tensors));
  absl::Notification done;
  absl::Status result;
  // The group's other rank never asks: nothing but the leave can end this update.
  buffer.UpdateAsync(Latest(), {}, [&](absl::StatusOr<UpdateResult> updated) {
    result = updated.status();
    done.Notify();
  });
  EXPECT_OK(client->Leave());
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
  EXPECT_FALSE(result.ok());
}

TEST(MembershipTest, LeavingAServerThatIsGoneIsBounded) {
  TestServer server;
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(Rank(server, "trainer")));
  server.Stop();
  const absl::Time begin = MonotonicNow();
  (void)client->Leave(absl::Milliseconds(500));
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(10));
}

TEST(MembershipTest, AClientMayBeDestroyedInACallback) {
  TestServer server;
  TestShard shard;
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(Rank(server, "rollout")));
  ASSERT_OK_AND_ASSIGN(WeightBuffer buffer, client->Register(shard.tensors));
  absl::Notification destroyed;
  buffer.UpdateAsync(Latest(), {}, [&](absl::StatusOr<UpdateResult>) {
    buffer = WeightBuffer();
    client.reset();
    destroyed.Notify();
  });
  ASSERT_TRUE(destroyed.WaitForNotificationWithTimeout(kPatience));
  while (RuntimeThreadCount() > 0) std::this_thread::yield();
}

TEST(MembershipTest, ACallThatWaitsIsRefusedInACallback) {
  TestServer server;
  TestShard shard;
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(Rank(server, "rollout")));
  ASSERT_OK_AND_ASSIGN(WeightBuffer buffer, client->Register(shard.tensors));
  absl::Notification done;
  absl::Status update, unpublish;
  buffer.UpdateAsync(Latest(), {}, [&](absl::StatusOr<UpdateResult>) {
    update = buffer.Update(Latest()).status();
    unpublish = buffer.Unpublish();
    done.Notify();
  });
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
  EXPECT_THAT(update, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(unpublish, StatusIs(absl::StatusCode::kFailedPrecondition));
}

// ---- the host's process

TEST(MembershipTest, ThreadsAreBoundedNamedAndBlockSignals) {
  TestServer server;
  {  // starts gRPC's own threads of the server's side
    ASSERT_OK_AND_ASSIGN(auto warm, Client::Join(Rank(server, "warm")));
  }
  const auto before = ThreadsOfThisProcess();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 8; ++i) {
    ASSERT_OK_AND_ASSIGN(clients.emplace_back(), Client::Join(Rank(server, absl::StrCat("g", i))));
  }
  EXPECT_EQ(RuntimeThreadCount(), 3);
  std::map<std::string, int> ours;
  for (const auto& [id, thread] : ThreadsOfThisProcess()) {
    if (!absl::StartsWith(thread.name, "th-")) continue;
    ++ours[thread.name];
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGPIPE}) {
      EXPECT_TRUE(thread.Blocks(signal)) << thread.name << " and signal " << signal;
    }
  }
  EXPECT_EQ(ours["th-control"], 1);
  EXPECT_EQ(ours["th-callback"], 1);
  EXPECT_EQ(ours["th-seal"], 1);
  clients.clear();
  EXPECT_EQ(RuntimeThreadCount(), 0);
}

// The exit code of a child in which `body` ran; -1 when it hung or died.
template <typename Body>
int ExitCodeOfChild(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a hang is a death by SIGALRM
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool RefusesFork(const absl::Status& status) {
  return status.code() == absl::StatusCode::kFailedPrecondition &&
         absl::StrContains(status.message(), "forked from pid");
}

TEST(MembershipTest, InAForkedChildEveryCallIsRefusedAndNothingHangs) {
  TestServer server;
  TestShard shard;
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(Rank(server, "trainer")));
  ASSERT_TRUE(absl::StrContains(MetricsText(), "group=\"trainer\""));
  ASSERT_OK_AND_ASSIGN(auto controller, Controller::Connect({server.address(), "run", "model"}));
  ASSERT_OK_AND_ASSIGN(WeightBuffer buffer, client->Register(shard.tensors));
  ASSERT_OK(buffer.Publish(1));
  ASSERT_OK(buffer.AwaitPublished().status());
  const int code = ExitCodeOfChild([&] {
    int failed = 0;
    failed += absl::StrContains(MetricsText(), "group=\"trainer\"") ? 1 : 0;
    auto check = [&, call = 0](const absl::Status& status) mutable {
      ++call;
      if (!RefusesFork(status) && failed == 0) failed = call;
    };
    check(buffer.Publish(2));
    check(buffer.Unpublish());
    check(buffer.Update(Latest()).status());
    check(buffer.AwaitPublished().status());
    check(buffer.AwaitSealed(absl::Seconds(1)));
    check(buffer.Reset());
    check(buffer.Rebind(shard.tensors));
    check(client->Register(shard.tensors).status());
    check(client->RollBack(Latest()).status());
    check(client->Leave());
    check(client->membership());
    check(controller->List().status());
    check(Client::Join(Rank(server, "child")).status());
    check(Controller::Connect({server.address(), "run", "model"}).status());
    buffer = WeightBuffer();
    client.reset();
    controller.reset();
    return failed;
  });
  EXPECT_EQ(code, 0) << "number of the call that was not refused, or -1: the child hung";
  EXPECT_OK(buffer.Unpublish());  // the parent is as before
}

}  // namespace
}  // namespace th
