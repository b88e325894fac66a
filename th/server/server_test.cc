// The whole server with real streams on loopback: its end, its addresses, its health and status.
#include "th/server/server.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/coordination/file_store.h"
#include "th/coordination/memory_store.h"
#include "th/monitoring/http_get.h"
#include "th/server/scripted_worker.h"
#include "th/server/server_fixture.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::th::testing::StatusIs;

TEST_F(ServerTest, ShutdownTellsWorkersToComeBackLater) {
  Start();
  std::vector<std::unique_ptr<ScriptedWorker>> workers;
  for (const char* group : {"trainer", "rollout-1", "rollout-2"}) {
    workers.push_back(std::make_unique<ScriptedWorker>(server_->address()));
    ASSERT_OK(workers.back()->Join(group));
  }
  const absl::Time begin = absl::Now();
  server_->Shutdown();
  EXPECT_LT(absl::Now() - begin, kShutdownGrace);
  for (const auto& worker : workers) {
    ASSERT_OK_AND_ASSIGN(const Refused refused, worker->Expect<Refused>());
    EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_LT(refused.retry_after, absl::InfiniteDuration());
    EXPECT_FALSE(worker->Read().has_value());
    EXPECT_TRUE(worker->Finish().ok());
  }
}

TEST_F(ServerTest, ShutdownAnswersControllersThatWait) {
  Start();
  absl::StatusOr<VersionInfo> waited;
  std::thread waiting([&] { waited = Wait(VersionSequence(), kTestDeadline); });
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Metrics(), "\ntensorhub_waits 1\n"); }));
  server_->Shutdown();
  waiting.join();
  EXPECT_THAT(waited, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shutting down")));
}

TEST_F(ServerTest, ShutdownFreesThePortAndTheState) {
  Start();
  const std::string address = server_->address();
  server_.reset();
  ASSERT_OK_AND_ASSIGN(auto store, OpenStore());
  EXPECT_OK(Server::Start({.listen = address, .store = std::move(store)}));
}

TEST_F(ServerTest, ShutdownTwiceIsHarmless) {
  Start();
  server_->Shutdown();
  server_->Shutdown();
  EXPECT_THAT(List(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(ServerTest, ATakenPortIsAnErrorThatNamesIt) {
  Start();
  EXPECT_THAT(Server::Start({.listen = server_->address(),
                             .store = std::make_unique<MemoryStore>(OpenedState{})}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(server_->address()), HasSubstr("in use"))));
}

TEST_F(ServerTest, ATakenHttpPortIsAnErrorThatNamesIt) {
  Start();
  EXPECT_THAT(Server::Start({.listen = "127.0.0.1:0",
                             .http_listen = server_->http_address(),
                             .store = std::make_unique<MemoryStore>(OpenedState{})}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(server_->http_address())));
}

TEST_F(ServerTest, AnAddressThatIsNoneIsRefused) {
  EXPECT_THAT(
      Server::Start({.listen = "nonsense", .store = std::make_unique<MemoryStore>(OpenedState{})}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nonsense")));
}

TEST_F(ServerTest, AServerNeedsAStore) {
  EXPECT_THAT(Server::Start({.listen = "127.0.0.1:0"}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(ServerTest, GrpcHealthIsServing) {
  Start();
  grpc::GenericStub stub(
      grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  SetTestDeadline(context);
  grpc::CompletionQueue queue;
  const grpc::Slice empty(std::string{});
  const grpc::ByteBuffer request(&empty, 1);
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  ASSERT_TRUE(status.ok()) << status.error_message();
  grpc::Slice bytes;
  ASSERT_TRUE(response.DumpToSingleSlice(&bytes).ok());
  // HealthCheckResponse{status: SERVING}
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), std::string("\x08\x01", 2));
}

TEST_F(ServerTest, HealthzSaysTheEpoch) {
  Start();
  EXPECT_THAT(HttpGet(server_->http_address(), "/healthz"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\r\n\r\nok epoch 1\n")));
}

// Lowers the soft limit of open files while it lives.
class LowDescriptorLimit {
 public:
  explicit LowDescriptorLimit(rlim_t limit) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit low{limit, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  }
  ~LowDescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(ServerTest, AServerThatCannotAcceptSaysSoAndGoesOnOnceItCan) {
  constexpr rlim_t kLimit = 256;
  const LowDescriptorLimit low(kLimit);
  Start();
  std::vector<int> connections;
  const auto healthy = [this] {
    return absl::StartsWith(HttpGet(server_->http_address(), "/healthz"), "HTTP/1.1 200");
  };
  while (healthy()) {
    ASSERT_LT(connections.size(), kLimit);
    connections.push_back(ConnectSocket(server_->address()));
    ASSERT_GE(connections.back(), 0);
  }
  EXPECT_THAT(HttpGet(server_->http_address(), "/healthz"),
              AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("cannot accept"), HasSubstr("256"),
                    HasSubstr("ulimit -Hn")));
  EXPECT_THAT(HttpGet(server_->http_address(), "/livez"), StartsWith("HTTP/1.1 200"));
  // The status page's own connections end, and leave room for a few more.
  char byte = 0;
  do {
    ASSERT_LT(connections.size(), kLimit);
    connections.push_back(ConnectSocket(server_->address()));
  } while (recv(connections.back(), &byte, 1, 0) > 0);
  EXPECT_THAT(Metrics(), AllOf(HasSubstr("\nprocess_max_fds 256\n"),
                               HasSubstr("\ntensorhub_connections_max 192\n"),
                               Not(HasSubstr("\ntensorhub_connections_refused_total 0\n"))));
  EXPECT_THAT(HttpGet(server_->http_address(), "/state.json"), HasSubstr("connections refused"));

  for (const int fd : connections) close(fd);
  EXPECT_TRUE(Eventually(healthy));
  ScriptedWorker worker(server_->address());
  EXPECT_OK(worker.Join("trainer"));
}

TEST_F(ServerTest, MetricsCountWhatHappened) {
  Start();
  ScriptedWorker trainer(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  ASSERT_OK(trainer.Publish(1, "step-1"));
  ASSERT_TRUE(Eventually(
      [&] { return absl::StrContains(Metrics(), "\ntensorhub_versions_sealed_total 1\n"); }));
  const std::string metrics = Metrics();
  EXPECT_THAT(metrics, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(metrics, HasSubstr("tensorhub_build_info{version=\"server_test\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("\ntensorhub_epoch 1\n"));
  EXPECT_THAT(metrics, HasSubstr("\ntensorhub_workers 1\n"));
  EXPECT_THAT(metrics, HasSubstr("\ntensorhub_models 1\n"));
  EXPECT_THAT(metrics, HasSubstr("\ntensorhub_joins_total 1\n"));
  EXPECT_THAT(metrics, HasSubstr("\ntensorhub_versions_published_total 1\n"));
  EXPECT_THAT(metrics, HasSubstr("tensorhub_versions{run=\"r1\",model=\"qwen3\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("tensorhub_turn_seconds_bucket{le=\"+Inf\"}"));
}

TEST_F(ServerTest, ThePageIsServedAndItsStateHasVersionsAndHolders) {
  Start();
  ScriptedWorker trainer(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  ASSERT_OK(trainer.Publish(1, "step-1"));
  EXPECT_THAT(HttpGet(server_->http_address(), "/"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("text/html"), HasSubstr("state.json")));
  EXPECT_THAT(HttpGet(server_->http_address(), "/state.json"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("application/json"),
                    HasSubstr(R"("model":"qwen3")"), HasSubstr(R"("label":"step-1")"),
                    HasSubstr(R"("group":"trainer")")));
}

TEST_F(ServerTest, TheStateIsTheSameForAllWhoAskWithinASecond) {
  Start();
  const absl::Time began = absl::Now();
  const std::string before = HttpGet(server_->http_address(), "/state.json");
  ASSERT_THAT(before, HasSubstr(R"("models":[])"));
  ScriptedWorker trainer(server_->address());
  ASSERT_OK(trainer.JoinAndRegister("trainer"));
  const std::string after = HttpGet(server_->http_address(), "/state.json");
  if (absl::Now() - began < absl::Seconds(1)) {  // else the answer may be a new one
    EXPECT_EQ(after, before);
  }
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(HttpGet(server_->http_address(), "/state.json"), "trainer");
  }));
}

TEST_F(ServerTest, OtherPathsAreNotFound) {
  Start();
  EXPECT_THAT(HttpGet(server_->http_address(), "/secrets"), StartsWith("HTTP/1.1 404"));
}

}  // namespace
}  // namespace th
