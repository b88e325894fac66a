// The RDMA devices that a client names, from Join to the bytes of an update. Needs two devices,
// rxe0 and rxe1, as in the Soft-RoCE machine.
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/test_cluster.h"
#include "th/client/test_worker.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::th::testing::Message;
using ::th::testing::Rank;
using ::th::testing::TestServer;
using ::th::testing::TestShard;
using ::th::testing::Worker;

constexpr size_t kShardBytes = 4'000'000;

// The packets that the device has sent since it exists.
uint64_t PacketsOf(const std::string& device) {
  const std::string path =
      absl::StrCat("/sys/class/infiniband/", device, "/ports/1/hw_counters/sent_pkts");
  uint64_t packets = 0;
  EXPECT_TRUE(std::ifstream(path) >> packets) << path;
  return packets;
}

class RdmaDevicesTest : public ::testing::Test {
 protected:
  // All members share the data plane that the first one chooses.
  Worker Member(const std::string& group, const ClientOptions& options) {
    ClientOptions own = options;
    own.group = group;
    return Worker::Make(own, TestShard(kShardBytes));
  }
  // Publishes at one member, and moves another there; how its bytes came.
  SourceShare Move(const ClientOptions& options) {
    Worker trainer = Member("trainer", options), rollout = Member("rollout", options);
    trainer.shard.FillWith(2);
    EXPECT_OK(trainer.PublishAndWait(2));
    const absl::StatusOr<UpdateResult> moved = rollout.buffer.Update(Latest());
    EXPECT_OK(moved.status());
    if (!moved.ok()) return {};
    EXPECT_TRUE(moved->moved());
    EXPECT_TRUE(rollout.shard.HasContentOf(2));
    EXPECT_THAT(moved->sources, SizeIs(1));
    return moved->sources.at(0);
  }

  TestServer server_;
};

TEST_F(RdmaDevicesTest, TheDeviceThatIsNamedCarriesTheBytesAndNoOtherDoes) {
  ClientOptions options = Rank(server_, "trainer");
  options.transports = {"ibverbs"};
  options.rdma_devices = {"rxe1"};
  const uint64_t named = PacketsOf("rxe1"), other = PacketsOf("rxe0");
  EXPECT_EQ(Move(options).transport, "ibverbs");
  EXPECT_GT(PacketsOf("rxe1"), named + kShardBytes / 4096 / 2) << "packets of 4 KiB at most";
  EXPECT_EQ(PacketsOf("rxe0"), other);
}

TEST_F(RdmaDevicesTest, OneThatIsNotThereIsAnErrorWithThoseThatAre) {
  ClientOptions options = Rank(server_, "trainer");
  options.rdma_devices = {"rxe0", "no_such_0"};
  const absl::Status joined = Client::Join(options).status();
  EXPECT_THAT(Message(joined), AllOf(HasSubstr("option rdma_devices is rxe0,no_such_0: "),
                                     HasSubstr("no_such_0"), HasSubstr("rxe1")));
}

}  // namespace
}  // namespace th
