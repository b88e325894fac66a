// `th doctor` of two hosts that a network joins, with and without a fault in it. Skipped where
// there are no virtual hosts.
#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testing/end_to_end/two_hosts.h"
#include "testing/status_matchers.h"
#include "th/processes/child_process.h"
#include "th/processes/runfiles.h"
#include "th/processes/tool_process.h"
#include "th/processes/virtual_hosts.h"

namespace th::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kExaminer = 0;
constexpr size_t kPeer = 1;
constexpr uint16_t kPort = 7099;
constexpr absl::Duration kPatience = absl::Seconds(60);

class DoctorPairTest : public TwoHostsTest {
 protected:
  void SetUp() override {
    TwoHostsTest::SetUp();
    if (hosts_ == nullptr) return;
    peer_ = StartDoctor(kPeer, {"--listen", PeerAddress()});
    pollfd said{.fd = peer_->output_fd(), .events = POLLIN};
    ASSERT_EQ(poll(&said, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))), 1);
    ASSERT_THAT(peer_->ReadLines(), ElementsAre(HasSubstr("listening")));
  }

  static std::string PeerAddress() {
    return absl::StrCat(VirtualHosts::AddressOf(kPeer), ":", kPort);
  }

  std::unique_ptr<ChildProcess> StartDoctor(size_t host, const std::vector<std::string>& flags) {
    const auto th = FindProgram("th/cli/th");
    EXPECT_OK(th);
    std::vector<std::string> arguments = {*th, "doctor", "--json"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    auto child = ChildProcess::Start({.name = "th doctor",
                                      .arguments = arguments,
                                      .network_namespace = hosts_->NamespaceOf(host)});
    EXPECT_OK(child);
    return *std::move(child);
  }

  // Returns the examination that the examiner prints.
  nlohmann::json Examine() {
    const auto examiner = StartDoctor(kExaminer, {"--peer", PeerAddress()});
    const auto lines = ReadToEnd(*examiner, kPatience, {});
    EXPECT_OK(lines);
    return nlohmann::json::parse(absl::StrJoin(*lines, ""));
  }

  // The only finding of that name.
  static nlohmann::json Finding(const nlohmann::json& examination, const std::string& check) {
    nlohmann::json found;
    for (const nlohmann::json& each : examination["checks"]) {
      if (each["check"] != check) continue;
      EXPECT_TRUE(found.is_null()) << check << " comes twice";
      found = each;
    }
    EXPECT_FALSE(found.is_null()) << examination.dump(1);
    return found;
  }

  std::unique_ptr<ChildProcess> peer_;
};

TEST_F(DoctorPairTest, AGoodNetworkIsCalledSo) {
  const nlohmann::json examination = Examine();
  for (const char* check : {"connect", "peer-way-back", "peer-large-packets"}) {
    EXPECT_EQ(Finding(examination, check)["verdict"], "ok") << Finding(examination, check).dump(1);
  }
}

TEST_F(DoctorPairTest, ANetworkThatDropsLargePacketsIsFound) {
  ASSERT_OK(hosts_->DropPacketsOver(kPeer, 1250));
  const nlohmann::json examination = Examine();
  EXPECT_EQ(Finding(examination, "connect")["verdict"], "ok");
  EXPECT_EQ(Finding(examination, "peer-way-back")["verdict"], "ok");
  const nlohmann::json finding = Finding(examination, "peer-large-packets");
  EXPECT_EQ(finding["verdict"], "problem");
  EXPECT_THAT(finding["advice"].get<std::string>(), HasSubstr("set the MTU of both hosts"));
  EXPECT_GE(examination["problems"], 1);
}

TEST_F(DoctorPairTest, APeerWhoseCableIsPulledIsNotReached) {
  ASSERT_OK(hosts_->Cut(kPeer));
  EXPECT_EQ(Finding(Examine(), "connect")["verdict"], "problem");
}

}  // namespace
}  // namespace th::testing
