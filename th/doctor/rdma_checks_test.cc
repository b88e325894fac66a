#include "th/doctor/rdma_checks.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kIpv4Gid[] = "0000:0000:0000:0000:0000:ffff:0a00:0001";
constexpr char kIpv6Gid[] = "fd00:0000:0000:0000:0000:0000:0000:0007";
constexpr char kLinkLocalGid[] = "fe80:0000:0000:0000:0000:0aff:fe00:0001";

RdmaPort RocePort() {
  return {.number = 1,
          .state = "ACTIVE",
          .link_layer = "Ethernet",
          .rate = "100 Gb/sec (4X EDR)",
          .gids = {{.index = 0, .address = kLinkLocalGid, .type = "RoCE v2", .net_device = "eth0"},
                   {.index = 3, .address = kIpv4Gid, .type = "RoCE v2", .net_device = "eth0"}}};
}

RdmaDevice RoceDevice(const std::string& name = "mlx5_0") {
  return {.name = name,
          .node_type = "CA",
          .driver = "mlx5_core",
          .device_file = "/dev/infiniband/uverbs0",
          .device_file_usable = true,
          .ports = {RocePort()}};
}

// A host on which nothing is wrong with RDMA.
HostFacts GoodHost() {
  HostFacts facts;
  facts.rdma.devices = {RoceDevice()};
  facts.verbs = {.library = {.opened = true}, .device_names = {"mlx5_0"}};
  facts.process.locked_memory_bytes = Limit{.soft = kUnlimited, .hard = kUnlimited};
  facts.net_device_mtu = {{"eth0", 9000}};
  return facts;
}

// Without a finding of this name, one that no test expects.
Finding FindingOf(const HostFacts& facts, const std::string& check) {
  for (const Finding& finding : CheckRdma(facts)) {
    if (finding.check == check) return finding;
  }
  return {.check = "none"};
}

std::vector<std::string> ChecksOf(const HostFacts& facts) {
  std::vector<std::string> checks;
  for (const Finding& finding : CheckRdma(facts)) checks.push_back(finding.check);
  return checks;
}

TEST(RdmaChecksTest, AGoodHostHasNothingToDo) {
  EXPECT_THAT(ChecksOf(GoodHost()),
              ElementsAre("rdma-devices", "rdma-library", "rdma-access", "rdma-ports", "rdma-gids",
                          "rdma-mtu", "locked-memory"));
  for (const Finding& finding : CheckRdma(GoodHost())) {
    EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.check;
    EXPECT_THAT(finding.advice, IsEmpty()) << finding.check;
  }
}

TEST(RdmaChecksTest, AHostWithoutDevicesIsToldThatTcpIsUsed) {
  EXPECT_THAT(ChecksOf(HostFacts()), ElementsAre("rdma-devices"));
  const Finding finding = FindingOf(HostFacts(), "rdma-devices");
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_EQ(finding.found, "none");
  EXPECT_THAT(finding.means, HasSubstr("over TCP"));
}

TEST(RdmaChecksTest, AnUnsupportedFabricIsNamed) {
  HostFacts facts;
  facts.rdma.devices = {{.name = "efa_0", .node_type = "unspecified", .driver = "efa"}};
  const Finding finding = FindingOf(facts, "rdma-devices");
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_EQ(finding.found, "only AWS EFA (efa_0)");
  EXPECT_THAT(finding.means, HasSubstr("over TCP"));
  EXPECT_THAT(ChecksOf(facts), ElementsAre("rdma-devices"));
}

TEST(RdmaChecksTest, AFabricWithoutRdmaDevicesIsNamed) {
  HostFacts facts;
  facts.rdma.other_fabrics = {"HPE Slingshot"};
  EXPECT_EQ(FindingOf(facts, "rdma-devices").found, "only HPE Slingshot");
}

TEST(RdmaChecksTest, AFabricBesideAUsableOneIsNamed) {
  HostFacts facts = GoodHost();
  facts.rdma.other_fabrics = {"NVLink between hosts"};
  const Finding finding = FindingOf(facts, "rdma-devices");
  EXPECT_EQ(finding.verdict, Verdict::kOk);
  EXPECT_THAT(finding.means, HasSubstr("does not use NVLink between hosts"));
}

TEST(RdmaChecksTest, FabricsAreToldByDriverAndNodeType) {
  EXPECT_EQ(UnsupportedFabric({.node_type = "CA", .driver = "mlx5_core"}), "");
  EXPECT_EQ(UnsupportedFabric({.node_type = "CA"}), "");
  EXPECT_EQ(UnsupportedFabric({.node_type = "unspecified", .driver = "efa"}), "AWS EFA");
  EXPECT_EQ(UnsupportedFabric({.node_type = "RNIC", .driver = "cxgb4"}), "iWARP");
  EXPECT_EQ(UnsupportedFabric({.node_type = "usNIC UDP", .driver = "enic"}), "Cisco usNIC");
  EXPECT_EQ(UnsupportedFabric({.node_type = "unspecified", .driver = "new"}),
            "a fabric of the kind unspecified with the driver new");
  EXPECT_EQ(UnsupportedFabric({}), "a fabric of the kind unknown");
}

TEST(RdmaChecksTest, AMissingLibraryIsAProblem) {
  HostFacts facts = GoodHost();
  facts.verbs = {.library = {.error = "libibverbs.so.1: cannot open shared object file"}};
  const Finding finding = FindingOf(facts, "rdma-library");
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_THAT(finding.found, HasSubstr("cannot open shared object file"));
  EXPECT_THAT(finding.advice, HasSubstr("rdma-core"));
}

TEST(RdmaChecksTest, AMissingProviderIsAProblem) {
  HostFacts facts = GoodHost();
  facts.verbs.device_names = {"mlx5_9"};
  const Finding finding = FindingOf(facts, "rdma-library");
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_EQ(finding.found, "libibverbs has no provider for mlx5_0");
}

// The library does not list what it cannot open; one cause gets one piece of advice.
TEST(RdmaChecksTest, ADeviceFileThatCannotBeOpenedIsNoMissingProvider) {
  HostFacts facts = GoodHost();
  facts.verbs.device_names.clear();
  facts.rdma.devices[0].device_file_usable = false;
  EXPECT_EQ(FindingOf(facts, "rdma-library").verdict, Verdict::kOk);
  const Finding finding = FindingOf(facts, "rdma-access");
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_THAT(finding.found, HasSubstr("/dev/infiniband/uverbs0 (mlx5_0)"));
  EXPECT_THAT(finding.advice, HasSubstr("--device=/dev/infiniband"));
}

TEST(RdmaChecksTest, ADeviceWithoutFileNeedsAModule) {
  HostFacts facts = GoodHost();
  facts.rdma.devices[0].device_file.clear();
  const Finding finding = FindingOf(facts, "rdma-access");
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_THAT(finding.advice, HasSubstr("ib_uverbs"));
}

TEST(RdmaChecksTest, NoActivePortIsAProblem) {
  HostFacts facts = GoodHost();
  facts.rdma.devices[0].ports[0].state = "DOWN";
  const Finding finding = FindingOf(facts, "rdma-ports");
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_EQ(finding.found, "mlx5_0 port 1 DOWN");
  EXPECT_THAT(ChecksOf(facts), Not(::testing::Contains("rdma-gids")));
  facts.rdma.devices[0].ports.clear();
  EXPECT_EQ(FindingOf(facts, "rdma-ports").verdict, Verdict::kProblem);
}

TEST(RdmaChecksTest, AnInactivePortBesideAnActiveOneIsANote) {
  HostFacts facts = GoodHost();
  facts.rdma.devices.push_back(RoceDevice("mlx5_1"));
  facts.rdma.devices[1].ports[0].state = "INIT";
  const Finding finding = FindingOf(facts, "rdma-ports");
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_EQ(finding.found, "mlx5_0 port 1 ACTIVE at 100 Gb/sec (4X EDR), mlx5_1 port 1 INIT");
}

TEST(RdmaChecksTest, TheGidIsChosenByTypeAndPrefix) {
  const Finding finding = FindingOf(GoodHost(), "rdma-gids");
  EXPECT_THAT(finding.found, HasSubstr(kIpv4Gid));
  EXPECT_THAT(finding.found, HasSubstr("index 3"));
}

TEST(RdmaChecksTest, APortWithoutRoutableGidIsAProblem) {
  HostFacts facts = GoodHost();
  std::vector<Gid>& gids = facts.rdma.devices[0].ports[0].gids;
  gids.pop_back();  // the link-local address is left
  EXPECT_EQ(FindingOf(facts, "rdma-gids").verdict, Verdict::kProblem);
  gids = {{.index = 2, .address = kIpv4Gid, .type = "IB/RoCE v1", .net_device = "eth0"}};
  const Finding finding = FindingOf(facts, "rdma-gids");
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_THAT(finding.found, HasSubstr("mlx5_0 port 1"));
}

TEST(RdmaChecksTest, AGidThatIsMissingOnOneOfTwoPortsIsANote) {
  HostFacts facts = GoodHost();
  facts.rdma.devices.push_back(RoceDevice("mlx5_1"));
  facts.rdma.devices[1].ports[0].gids.clear();
  const Finding finding = FindingOf(facts, "rdma-gids");
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_THAT(finding.found, HasSubstr("mlx5_1 port 1"));
  EXPECT_THAT(finding.found, Not(HasSubstr("mlx5_0")));
}

TEST(RdmaChecksTest, Ipv6AloneIsANote) {
  HostFacts facts = GoodHost();
  facts.rdma.devices[0].ports[0].gids[1].address = kIpv6Gid;
  const Finding finding = FindingOf(facts, "rdma-gids");
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_THAT(finding.found, HasSubstr(kIpv6Gid));
}

TEST(RdmaChecksTest, InfiniBandNeedsNeitherGidNorMtu) {
  HostFacts facts = GoodHost();
  facts.rdma.devices[0].ports[0].link_layer = "InfiniBand";
  EXPECT_THAT(ChecksOf(facts), ElementsAre("rdma-devices", "rdma-library", "rdma-access",
                                           "rdma-ports", "locked-memory"));
}

TEST(RdmaChecksTest, ASmallMtuIsANote) {
  HostFacts facts = GoodHost();
  facts.net_device_mtu["eth0"] = 1500;
  const Finding finding = FindingOf(facts, "rdma-mtu");
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_THAT(finding.found, HasSubstr("1024 bytes on mlx5_0 (eth0 has MTU 1500)"));
  EXPECT_THAT(finding.advice, HasSubstr("ip link set eth0 mtu 9000"));
  facts.net_device_mtu.clear();
  EXPECT_THAT(ChecksOf(facts), Not(::testing::Contains("rdma-mtu")));
}

TEST(RdmaChecksTest, TheMtuOfRoceIsAPowerOfTwoThatFitsWithItsHeaders) {
  EXPECT_EQ(RoceMtu(9000), 4096u);
  EXPECT_EQ(RoceMtu(4192), 4096u);
  EXPECT_EQ(RoceMtu(4191), 2048u);
  EXPECT_EQ(RoceMtu(1500), 1024u);
  EXPECT_EQ(RoceMtu(0), 256u);
}

TEST(RdmaChecksTest, TheLimitOfLockedMemoryIsJudgedByItsSize) {
  HostFacts facts = GoodHost();
  facts.process.locked_memory_bytes = Limit{.soft = 8 << 20, .hard = 8 << 20};
  EXPECT_EQ(FindingOf(facts, "locked-memory").verdict, Verdict::kProblem);
  EXPECT_THAT(FindingOf(facts, "locked-memory").advice, HasSubstr("ulimit -l unlimited"));
  facts.process.locked_memory_bytes = Limit{.soft = uint64_t{16} << 30, .hard = kUnlimited};
  EXPECT_EQ(FindingOf(facts, "locked-memory").verdict, Verdict::kNote);
  facts.process.may_lock_memory = true;
  EXPECT_EQ(FindingOf(facts, "locked-memory").verdict, Verdict::kOk);
  facts.process = {};
  EXPECT_EQ(FindingOf(facts, "locked-memory").verdict, Verdict::kNote);
}

TEST(RdmaChecksTest, GpuMemoryNeedsDmaBufOrTheModule) {
  HostFacts facts = GoodHost();
  facts.gpu.gpus = {{.name = "H100", .dma_buf = true}, {.name = "H100", .dma_buf = false}};
  const Finding finding = FindingOf(facts, "gpu-rdma");
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_THAT(finding.means, HasSubstr("by way of host memory"));
  EXPECT_THAT(finding.advice, HasSubstr("nvidia_peermem"));
  facts.gpu.peer_memory_module = true;
  EXPECT_EQ(FindingOf(facts, "gpu-rdma").verdict, Verdict::kOk);
  facts.gpu = {.gpus = {{.name = "H100", .dma_buf = true}}};
  EXPECT_EQ(FindingOf(facts, "gpu-rdma").verdict, Verdict::kOk);
  EXPECT_THAT(FindingOf(facts, "gpu-rdma").found, HasSubstr("DMA-BUF"));
}

TEST(RdmaChecksTest, ARouteByARoceDeviceIsTheWayOfRdma) {
  HostFacts facts = GoodHost();
  facts.route = RouteFacts{.target = "node7:1",
                           .outcome = RouteFacts::Outcome::kConnected,
                           .peer_address = "10.0.0.7",
                           .source_address = "10.0.0.1",
                           .net_device = "eth0"};
  EXPECT_EQ(FindingOf(facts, "rdma-route").verdict, Verdict::kOk);
  EXPECT_THAT(FindingOf(facts, "rdma-route").found, HasSubstr("eth0, which is mlx5_0 port 1"));
  facts.route->net_device = "eth9";
  const Finding finding = FindingOf(facts, "rdma-route");
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_THAT(finding.found, HasSubstr("eth9, which is no RoCE device"));
  EXPECT_THAT(finding.advice, HasSubstr("--to"));
}

TEST(RdmaChecksTest, ARouteToThisHostOrToNobodySaysNothingOfRdma) {
  HostFacts facts = GoodHost();
  facts.route = RouteFacts{.outcome = RouteFacts::Outcome::kConnected, .net_device = "lo"};
  EXPECT_THAT(ChecksOf(facts), Not(::testing::Contains("rdma-route")));
  facts.route = RouteFacts{.outcome = RouteFacts::Outcome::kRefused, .net_device = "eth9"};
  EXPECT_THAT(ChecksOf(facts), Not(::testing::Contains("rdma-route")));
}

}  // namespace
}  // namespace th::doctor
