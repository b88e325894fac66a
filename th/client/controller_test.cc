// A controller refuses servers that are none, and waits as long as it is asked to; what else it
// does is in client_test.
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"
#include "th/client/test_worker.h"
#include "th/proto/tensorhub.grpc.pb.h"
#include "th/wire/wire.h"

namespace th {

// Calls for which a client needs a rank.
struct ControllerOfTest {
  static absl::StatusOr<AwaitedForm> AwaitForm(Controller& controller, const std::string& form,
                                               const std::string& group) {
    return controller.AwaitForm(Latest(), form, group, testing::kPatience);
  }
};

namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

// A gRPC server on loopback that is none of ours.
class OtherServer {
 public:
  explicit OtherServer(grpc::Service* service) {
    grpc::ServerBuilder builder;
    builder.RegisterService(service);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    server_ = builder.BuildAndStart();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(ControllerTest, NamesTheAddressOfWhatIsNoReferenceServer) {
  pb::ReferenceServer::Service unimplemented;  // every call of it
  const OtherServer other(&unimplemented);
  const std::string address = other.address();
  ASSERT_OK_AND_ASSIGN(auto controller,
                       Controller::Connect({.server = address, .run = "r1", .model = "m"}));
  EXPECT_THAT(controller->List().status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(address)));
}

TEST(ControllerTest, WaitsLongerThanTheServerWaitsAtATime) {
  testing::TestServer server({.longest_wait = absl::Milliseconds(5)});
  ASSERT_OK_AND_ASSIGN(
      auto controller,
      Controller::Connect({.server = server.address(), .run = "r1", .model = "m"}));
  const absl::Time began = absl::Now();
  EXPECT_THAT(controller->WaitFor(testing::Label("7"), absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("within 100ms")));
  EXPECT_GE(absl::Now() - began, absl::Milliseconds(99));
}

TEST(ControllerTest, FindsTheServerAtAnotherAddress) {
  const std::string file = ::testing::TempDir() + "/address";
  const auto write = [&file](const testing::TestServer& server) {
    std::ofstream(file) << server.address() << "\n";
  };
  auto first = std::make_unique<testing::TestServer>();
  write(*first);
  ASSERT_OK_AND_ASSIGN(auto controller,
                       Controller::Connect({.server = "file:" + file, .run = "r1", .model = "m"}));
  ASSERT_OK(controller->List(testing::kPatience));
  testing::TestServer second;
  ASSERT_NE(second.address(), first->address());
  first.reset();
  write(second);
  EXPECT_OK(controller->List(testing::kPatience));
}

// Has version 1, which group "first" holds in form "engine", and knows nothing of ClaimForm.
class EarlierServer final : public pb::ReferenceServer::Service {
 public:
  grpc::Status WaitVersion(grpc::ServerContext*, const pb::WaitVersionRequest*,
                           pb::ResolveResponse* response) override {
    *response->mutable_version() = ToProto(version_);
    return grpc::Status::OK;
  }
  grpc::Status List(grpc::ServerContext*, const pb::ListRequest*, pb::Catalog* response) override {
    const CatalogVersion version{.info = version_,
                                 .replicas = {{.group = "first", .form = "engine"}}};
    *response = ToProto(Catalog{.models = {{.key = {"r1", "m"}, .versions = {version}}}});
    return grpc::Status::OK;
  }

 private:
  const VersionInfo version_{VersionSequence::Of(Epoch(7), 1), VersionLabel::FromStep(1)};
};

TEST(ControllerTest, AServerOfAnEarlierReleaseHasEachMakeAFormThatNobodyHas) {
  EarlierServer earlier;
  const OtherServer server(&earlier);
  ASSERT_OK_AND_ASSIGN(
      auto controller,
      Controller::Connect({.server = server.address(), .run = "r1", .model = "m"}));
  ASSERT_OK_AND_ASSIGN(const AwaitedForm missing,
                       ControllerOfTest::AwaitForm(*controller, "other", "rollout-1"));
  EXPECT_TRUE(missing.make);
  EXPECT_EQ(missing.version.label.text(), "1");
  ASSERT_OK_AND_ASSIGN(const AwaitedForm there,
                       ControllerOfTest::AwaitForm(*controller, "engine", "rollout-1"));
  EXPECT_FALSE(there.make);
}

}  // namespace
}  // namespace th
