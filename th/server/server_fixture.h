// A server with real streams on loopback, and one call of each kind of a controller, for its tests.
#ifndef TH_SERVER_SERVER_FIXTURE_H_
#define TH_SERVER_SERVER_FIXTURE_H_

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/coordination/file_store.h"
#include "th/monitoring/http_get.h"
#include "th/server/scripted_worker.h"
#include "th/server/server.h"
#include "th/wire/grpc_status.h"
#include "th/wire/wire.h"

namespace th {

inline constexpr absl::Duration kShutdownGrace = absl::Seconds(5);

class ServerTest : public ::testing::Test {
 protected:
  ServerTest()
      : state_dir_(absl::StrCat(::testing::TempDir(), "/server-",
                                ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(state_dir_);
    limits_.recovery_window = absl::Milliseconds(50);
  }
  ~ServerTest() override {
    server_.reset();
    std::filesystem::remove_all(state_dir_);
  }

  // A server over what an earlier one has left.
  void Start(OutboundLimits outbound = {}) {
    absl::StatusOr<std::unique_ptr<FileStore>> store = OpenStore();
    ASSERT_OK(store);
    StartWith(*std::move(store), outbound);
  }
  // By a clock that stands before all epochs: the first one is 1.
  absl::StatusOr<std::unique_ptr<FileStore>> OpenStore() const {
    return FileStore::Open(state_dir_, {.now = [] { return absl::UnixEpoch(); }});
  }
  void StartWith(std::unique_ptr<DurableStore> store, OutboundLimits outbound = {}) {
    absl::StatusOr<std::unique_ptr<Server>> server =
        Server::Start({.listen = "127.0.0.1:0",
                       .http_listen = "127.0.0.1:0",
                       .store = std::move(store),
                       .limits = limits_,
                       .outbound = outbound,
                       .calls = call_limits_,
                       .software = "server_test",
                       .shutdown_grace = kShutdownGrace});
    ASSERT_OK(server);
    server_ = *std::move(server);
    stub_ = ConnectTo(server_->address());
  }

  // One unary call: `method` of the stub with the query as protobuf.
  template <typename Response, typename Query, typename Method>
  absl::StatusOr<Response> Call(Method method, const Query& query) {
    grpc::ClientContext context;
    SetTestDeadline(context);
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, ToProto(query), &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }
  absl::StatusOr<Catalog> List() {
    auto response = Call<pb::Catalog>(&Stub::List, ListQuery{hello_, "", ""});
    if (!response.ok()) return response.status();
    return FromProto(*response);
  }
  absl::StatusOr<VersionInfo> Resolve(VersionSelector selector) {
    auto response = Call<pb::ResolveResponse>(
        &Stub::Resolve, ResolveQuery{hello_, TestModel(), std::move(selector)});
    if (!response.ok()) return response.status();
    return FromProto(response->version());
  }
  absl::StatusOr<VersionInfo> Wait(VersionSequence after, absl::Duration timeout) {
    auto response = Call<pb::ResolveResponse>(
        &Stub::WaitVersion, WaitQuery{hello_, TestModel(), LatestVersion{}, after, timeout});
    if (!response.ok()) return response.status();
    return FromProto(response->version());
  }
  absl::StatusOr<CommandFinished> Command(RunCommand command) {
    auto response = Call<pb::CommandFinished>(
        &Stub::Command, ControllerCommand{hello_, TestModel(), std::move(command)});
    if (!response.ok()) return response.status();
    return FromProto(*response);
  }
  // Looks again and again until `good`, or the test's deadline has passed.
  bool Eventually(const std::function<bool()>& good) {
    const absl::Time deadline = absl::Now() + kTestDeadline;
    while (absl::Now() < deadline) {
      if (good()) return true;
      std::this_thread::yield();
    }
    return false;
  }
  std::string Metrics() { return HttpGet(server_->http_address(), "/metrics"); }

  using Stub = tensorhub::v1::ReferenceServer::Stub;
  const std::string state_dir_;
  const ProtocolHello hello_{.min_version = 1, .max_version = 1, .software = "test"};
  RegistryLimits limits_;
  CallLimits call_limits_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Stub> stub_;
};

}  // namespace th

#endif  // TH_SERVER_SERVER_FIXTURE_H_
