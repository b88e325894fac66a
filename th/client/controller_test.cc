// A controller refuses servers that are none; what it does with good ones is in client_test.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
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

}  // namespace
}  // namespace th
