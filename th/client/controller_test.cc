// A controller refuses servers that are none, and waits as long as it is asked to; what else it
// does is in client_test.
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

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

TEST(ControllerTest, NamesTheAddressOfWhatIsNoReferenceServer) {
  tensorhub::v1::ReferenceServer::Service unimplemented;  // every call of it
  grpc::ServerBuilder builder;
  builder.RegisterService(&unimplemented);
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  const std::unique_ptr<grpc::Server> other = builder.BuildAndStart();
  ASSERT_NE(other, nullptr);
  const std::string address = absl::StrCat("127.0.0.1:", port);
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

}  // namespace
}  // namespace th
