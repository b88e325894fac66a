#include "th/transfer/ibverbs/rdma_device.h"

#include <arpa/inet.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/transfer/ibverbs/fake_verbs.h"

namespace th::ibverbs {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::th::testing::IsOk;
using ::th::testing::StatusIs;

GidEntry Entry(uint32_t index, GidType type, const char* address) {
  GidEntry entry{.gid = {}, .index = index, .type = type};
  EXPECT_EQ(inet_pton(AF_INET6, address, entry.gid.data()), 1) << address;
  return entry;
}

std::vector<uint32_t> Indices(const std::vector<GidEntry>& entries) {
  std::vector<uint32_t> indices;
  for (const GidEntry& entry : entries) indices.push_back(entry.index);
  return indices;
}

std::vector<GidEntry> RoceTable() {
  return {Entry(0, GidType::kRoceV1, "fe80::1"), Entry(1, GidType::kRoceV2, "fe80::1"),
          Entry(2, GidType::kRoceV1, "::ffff:10.0.0.1"), Entry(3, GidType::kRoceV2, "2001:db8::1"),
          Entry(7, GidType::kRoceV2, "::ffff:10.0.0.1")};
}

TEST(UsableGidsTest, RoceTakesVersionTwoAndPrefersIpv4) {
  EXPECT_THAT(Indices(UsableGids(LinkLayer::kEthernet, RoceTable())), ElementsAre(7, 3));
}

TEST(UsableGidsTest, RoceWithLinkLocalAddressesAloneHasNone) {
  EXPECT_THAT(UsableGids(LinkLayer::kEthernet, {Entry(1, GidType::kRoceV2, "fe80::1")}), IsEmpty());
}

TEST(UsableGidsTest, InfiniBandTakesTheFirstThatIsSet) {
  EXPECT_THAT(Indices(UsableGids(LinkLayer::kInfiniBand,
                                 {Entry(0, GidType::kInfiniBand, "::"),
                                  Entry(1, GidType::kInfiniBand, "fe80::2:c903:0:1"),
                                  Entry(2, GidType::kInfiniBand, "fe80::2:c903:0:2")})),
              ElementsAre(1, 2));
}

TEST(GidTextTest, Ipv4IsShownAsSuch) {
  EXPECT_EQ(GidText(Entry(0, GidType::kRoceV2, "::ffff:10.0.0.1").gid), "10.0.0.1");
  EXPECT_EQ(GidText(Entry(0, GidType::kRoceV2, "2001:db8::1").gid), "2001:db8::1");
}

TEST(WhyNoDeviceTest, NamesEachCauseAndWhatToDo) {
  RdmaSubsystem seen;
  EXPECT_THAT(WhyNoDevice(seen), HasSubstr("rdma_rxe"));
  seen.device_in_kernel = true;
  EXPECT_THAT(WhyNoDevice(seen), HasSubstr("modprobe ib_uverbs"));
  seen.verbs_module = true;
  EXPECT_THAT(WhyNoDevice(seen), HasSubstr("--device=/dev/infiniband"));
  seen.device_file = true;
  EXPECT_THAT(WhyNoDevice(seen), HasSubstr("may not open"));
  seen.device_file_usable = true;
  EXPECT_THAT(WhyNoDevice(seen), HasSubstr("ibverbs-providers"));
}

TEST(RdmaSubsystemTest, SeesDevicesModuleAndFiles) {
  const std::string root = ::testing::TempDir() + "/rdma";
  std::filesystem::create_directories(root + "/sys/class/infiniband/mlx5_0");
  std::filesystem::create_directories(root + "/dev/infiniband");
  RdmaSubsystem seen = LookAtRdmaSubsystem(root);
  EXPECT_TRUE(seen.device_in_kernel);
  EXPECT_FALSE(seen.verbs_module);
  EXPECT_FALSE(seen.device_file);
  std::filesystem::create_directories(root + "/sys/class/infiniband_verbs");
  std::ofstream(root + "/dev/infiniband/uverbs0") << "";
  seen = LookAtRdmaSubsystem(root);
  EXPECT_TRUE(seen.verbs_module);
  EXPECT_TRUE(seen.device_file);
  EXPECT_TRUE(seen.device_file_usable);
}

TEST(OpenRdmaDevicesTest, TakesTheGidByTypeNotByNumber) {
  FakeVerbs fake;
  fake.devices = {{.name = "fake0", .gids = RoceTable()}};
  {
    const auto devices = OpenRdmaDevices(fake.library(), {});
    ASSERT_THAT(devices, IsOk());
    ASSERT_EQ(devices->usable.size(), 1U);
    EXPECT_EQ(devices->usable[0]->gid().index, 7U);
    EXPECT_EQ(devices->usable[0]->ToString(), "fake0 port 1, RoCEv2 10.0.0.1, MTU 1024");
  }
  EXPECT_EQ(fake.open_contexts, 0U);
  EXPECT_EQ(fake.open_domains, 0U);
}

TEST(OpenRdmaDevicesTest, PassesOverGidsThatMakeNoHandle) {
  FakeVerbs fake;
  fake.devices = {{.name = "fake0", .gids = RoceTable(), .bad_gids = {7}}};
  {
    const auto devices = OpenRdmaDevices(fake.library(), {});
    ASSERT_THAT(devices, IsOk());
    EXPECT_EQ(devices->usable[0]->gid().index, 3U);
  }
  fake.devices[0].bad_gids = {7, 3};
  EXPECT_THAT(OpenRdmaDevices(fake.library(), {}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("address handle"), HasSubstr("10.0.0.1, 2001:db8::1"))));
  EXPECT_EQ(fake.open_contexts, 0U);
  EXPECT_EQ(fake.open_domains, 0U);
}

TEST(OpenRdmaDevicesTest, LeavesOutWhatCannotBeUsedWithItsReason) {
  FakeVerbs fake;
  fake.devices = {{.name = "down0", .port = IBV_PORT_DOWN, .gids = RoceTable()},
                  {.name = "efa0", .transport = IBV_TRANSPORT_UNSPECIFIED},
                  {.name = "v1", .gids = {Entry(0, GidType::kRoceV1, "::ffff:10.0.0.1")}},
                  {.name = "mine", .open_error = EACCES},
                  {.name = "good", .gids = RoceTable()}};
  const auto devices = OpenRdmaDevices(fake.library(), {});
  ASSERT_THAT(devices, IsOk());
  ASSERT_EQ(devices->usable.size(), 1U);
  EXPECT_EQ(devices->usable[0]->name(), "good");
  EXPECT_THAT(devices->left_out,
              ElementsAre(AllOf(HasSubstr("down0"), HasSubstr("port 1 is down")),
                          AllOf(HasSubstr("efa0"), HasSubstr("reliable connections")),
                          AllOf(HasSubstr("v1"), HasSubstr("RoCEv2 GID")),
                          AllOf(HasSubstr("mine"), HasSubstr("/dev/infiniband/uverbs0"))));
}

TEST(OpenRdmaDevicesTest, ANamedOneThatCannotBeUsedIsAnErrorThoughOthersCan) {
  FakeVerbs fake;
  fake.devices = {{.name = "down0", .port = IBV_PORT_DOWN, .gids = RoceTable()},
                  {.name = "mine", .open_error = EACCES},
                  {.name = "good", .gids = RoceTable()}};
  EXPECT_THAT(OpenRdmaDevices(fake.library(), {"good", "down0"}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("down0: port 1 is down"), Not(HasSubstr("mine")))));
  EXPECT_EQ(fake.open_contexts, 0U);
  EXPECT_THAT(OpenRdmaDevices(fake.library(), {"good"}), IsOk());
}

TEST(OpenRdmaDevicesTest, WithoutAUsableOneNamesEachReason) {
  FakeVerbs fake;
  fake.devices = {{.name = "down0", .port = IBV_PORT_DOWN}, {.name = "mine", .open_error = EPERM}};
  EXPECT_THAT(OpenRdmaDevices(fake.library(), {}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("down0: port 1 is down"), HasSubstr("mine: "))));
}

TEST(OpenRdmaDevicesTest, WithoutAnyDeviceSaysSo) {
  FakeVerbs fake;
  EXPECT_THAT(OpenRdmaDevices(fake.library(), {}), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(OpenRdmaDevicesTest, NameThatIsNotThereIsRefusedWithThoseThatAre) {
  FakeVerbs fake;
  fake.devices = {{.name = "fake0", .gids = RoceTable()}, {.name = "fake1", .gids = RoceTable()}};
  EXPECT_THAT(
      OpenRdmaDevices(fake.library(), {"mlx5_0"}),
      StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("mlx5_0"), HasSubstr("fake0, fake1"))));
  const auto devices = OpenRdmaDevices(fake.library(), {"fake1"});
  ASSERT_THAT(devices, IsOk());
  ASSERT_EQ(devices->usable.size(), 1U);
  EXPECT_EQ(devices->usable[0]->name(), "fake1");
}

}  // namespace
}  // namespace th::ibverbs
