#include "th/doctor/file_facts.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// A folder that stands for a host's "/".
class FileFactsTest : public ::testing::Test {
 protected:
  FileFactsTest() : root_(absl::StrCat(::testing::TempDir(), "/root")) {
    std::filesystem::remove_all(root_);
  }

  void File(const std::string& path, const std::string& content) {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << content << "\n";
  }
  void Link(const std::string& path, const std::string& target) {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::filesystem::create_symlink(target, whole);
  }
  HostFacts Read() { return ReadFileFacts(HostFiles(root_)); }

  // As Linux shows a RoCE device.
  void AddRoceDevice() {
    const std::string device = "/sys/class/infiniband/mlx5_0";
    File(device + "/node_type", "1: CA");
    Link(device + "/device/driver", "../../../bus/pci/drivers/mlx5_core");
    const std::string port = device + "/ports/1";
    File(port + "/state", "4: ACTIVE");
    File(port + "/link_layer", "Ethernet");
    File(port + "/rate", "100 Gb/sec (4X EDR)");
    File(port + "/gids/10", "0000:0000:0000:0000:0000:ffff:0a00:0001");
    File(port + "/gid_attrs/types/10", "RoCE v2");
    File(port + "/gid_attrs/ndevs/10", "eth0");
    File(port + "/gids/2", "fe80:0000:0000:0000:0000:0aff:fe00:0001");
    File(port + "/gids/3", "0000:0000:0000:0000:0000:0000:0000:0000");
    File("/sys/class/infiniband_verbs/abi_version", "6");
    File("/sys/class/infiniband_verbs/uverbs0/ibdev", "other_0");
    File("/sys/class/infiniband_verbs/uverbs1/ibdev", "mlx5_0");
  }

  std::string root_;
};

TEST_F(FileFactsTest, AnEmptyHostHasNoFacts) {
  const HostFacts facts = Read();
  EXPECT_THAT(facts.rdma.devices, IsEmpty());
  EXPECT_THAT(facts.rdma.other_fabrics, IsEmpty());
  EXPECT_EQ(facts.process.locked_memory_bytes, std::nullopt);
  EXPECT_EQ(facts.process.yama_scope, std::nullopt);
  EXPECT_EQ(facts.tcp.max_send_bytes, std::nullopt);
  EXPECT_THAT(facts.net_device_mtu, IsEmpty());
}

TEST_F(FileFactsTest, ReadsAnRdmaDeviceWithItsPortsAndGids) {
  AddRoceDevice();
  File("/dev/infiniband/uverbs1", "");
  const HostFacts facts = Read();
  ASSERT_THAT(facts.rdma.devices, SizeIs(1));
  const RdmaDevice& device = facts.rdma.devices[0];
  EXPECT_EQ(device.name, "mlx5_0");
  EXPECT_EQ(device.node_type, "CA");
  EXPECT_EQ(device.driver, "mlx5_core");
  EXPECT_EQ(device.device_file, "/dev/infiniband/uverbs1");
  EXPECT_TRUE(device.device_file_usable);
  ASSERT_THAT(device.ports, SizeIs(1));
  EXPECT_EQ(device.ports[0].number, 1u);
  EXPECT_EQ(device.ports[0].state, "ACTIVE");
  EXPECT_EQ(device.ports[0].link_layer, "Ethernet");
  EXPECT_EQ(device.ports[0].rate, "100 Gb/sec (4X EDR)");
  ASSERT_THAT(device.ports[0].gids, SizeIs(2)) << "the empty one does not count";
  EXPECT_EQ(device.ports[0].gids[0].index, 2u);
  EXPECT_EQ(device.ports[0].gids[1].index, 10u);
  EXPECT_EQ(device.ports[0].gids[1].type, "RoCE v2");
  EXPECT_EQ(device.ports[0].gids[1].net_device, "eth0");
}

TEST_F(FileFactsTest, ADeviceFileThatIsNotThereIsNotUsable) {
  AddRoceDevice();
  const HostFacts facts = Read();
  EXPECT_EQ(facts.rdma.devices[0].device_file, "/dev/infiniband/uverbs1");
  EXPECT_FALSE(facts.rdma.devices[0].device_file_usable);
}

TEST_F(FileFactsTest, NamesFabricsThatAreNoRdmaDevices) {
  File("/sys/bus/pci/devices/0000:00:05.0/vendor", "0x1d0f");
  File("/sys/bus/pci/devices/0000:00:05.0/device", "0xefa2");
  File("/sys/class/cxi/cxi0/uevent", "");
  File("/dev/nvidia-caps-imex-channels/channel0", "");
  EXPECT_THAT(Read().rdma.other_fabrics, ElementsAre("AWS EFA (its driver is not loaded)",
                                                     "HPE Slingshot", "NVLink between hosts"));
}

TEST_F(FileFactsTest, EfaWithItsDriverIsNamedOnce) {
  File("/sys/bus/pci/devices/0000:00:05.0/vendor", "0x1d0f");
  File("/sys/bus/pci/devices/0000:00:05.0/device", "0xefa2");
  File("/sys/class/infiniband/efa_0/node_type", "7: unspecified");
  Link("/sys/class/infiniband/efa_0/device/driver", "../drivers/efa");
  const HostFacts facts = Read();
  EXPECT_THAT(facts.rdma.other_fabrics, IsEmpty());
  EXPECT_EQ(facts.rdma.devices[0].driver, "efa");
}

TEST_F(FileFactsTest, ReadsLimitsAndCapabilities) {
  File("/proc/self/limits",
       "Limit                     Soft Limit           Hard Limit           Units     \n"
       "Max open files            1024                 1048576              files     \n"
       "Max locked memory         8388608              unlimited            bytes     ");
  File("/proc/self/status", "Name:\tth\nCapInh:\t0000000000000000\nCapEff:\t0000000000084000");
  File("/proc/sys/kernel/yama/ptrace_scope", "1");
  const ProcessFacts process = Read().process;
  ASSERT_TRUE(process.open_files.has_value());
  EXPECT_EQ(process.open_files->soft, 1024u);
  EXPECT_EQ(process.open_files->hard, 1'048'576u);
  ASSERT_TRUE(process.locked_memory_bytes.has_value());
  EXPECT_EQ(process.locked_memory_bytes->soft, 8'388'608u);
  EXPECT_EQ(process.locked_memory_bytes->hard, kUnlimited);
  EXPECT_TRUE(process.may_lock_memory);
  EXPECT_TRUE(process.may_trace_others);
  EXPECT_EQ(process.yama_scope, 1);
}

TEST_F(FileFactsTest, AProcessWithoutCapabilitiesHasNone) {
  File("/proc/self/status", "CapEff:\t0000000000000000");
  EXPECT_FALSE(Read().process.may_lock_memory);
  EXPECT_FALSE(Read().process.may_trace_others);
}

TEST_F(FileFactsTest, ReadsTcpMemoryAndClock) {
  File("/proc/sys/net/ipv4/tcp_congestion_control", "bbr");
  File("/proc/sys/net/ipv4/tcp_available_congestion_control", "reno bbr cubic");
  File("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t33554432");
  File("/proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304");
  File("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
  File("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
       "always within_size advise [never] deny force");
  File("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc");
  File("/sys/class/net/eth0/mtu", "9000");
  const HostFacts facts = Read();
  EXPECT_EQ(facts.tcp.congestion_control, "bbr");
  EXPECT_THAT(facts.tcp.available_controls, ElementsAre("reno", "bbr", "cubic"));
  EXPECT_EQ(facts.tcp.max_receive_bytes, 33'554'432u);
  EXPECT_EQ(facts.tcp.max_send_bytes, 4'194'304u);
  EXPECT_EQ(facts.memory.transparent_huge_pages, "madvise");
  EXPECT_EQ(facts.memory.shared_huge_pages, "never");
  EXPECT_EQ(facts.clock.source, "tsc");
  EXPECT_THAT(facts.net_device_mtu, ElementsAre(Pair("eth0", 9000u)));
}

TEST_F(FileFactsTest, CountsGpusAndFindsTheirModules) {
  for (const char* name : {"nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm"}) {
    File(absl::StrCat("/dev/", name), "");
  }
  File("/sys/module/nvidia/version", "580.65.06");
  EXPECT_EQ(Read().gpu.device_files, 2u);
  EXPECT_EQ(Read().gpu.kernel_driver, "580.65.06");
  EXPECT_FALSE(Read().gpu.peer_memory_module);
  File("/sys/module/nvidia_peermem/version", "580.65.06");
  EXPECT_TRUE(Read().gpu.peer_memory_module);
}

TEST_F(FileFactsTest, NonsenseIsAbsent) {
  File("/proc/self/limits", "Max open files");
  File("/proc/sys/net/ipv4/tcp_rmem", "many");
  File("/sys/kernel/mm/transparent_hugepage/enabled", "]never[");
  File("/sys/class/net/eth0/mtu", "-1");
  File("/sys/class/infiniband/x/ports/first/state", "4: ACTIVE");
  const HostFacts facts = Read();
  EXPECT_EQ(facts.process.open_files, std::nullopt);
  EXPECT_EQ(facts.tcp.max_receive_bytes, std::nullopt);
  EXPECT_EQ(facts.memory.transparent_huge_pages, "");
  EXPECT_THAT(facts.net_device_mtu, IsEmpty());
  EXPECT_THAT(facts.rdma.devices[0].ports, IsEmpty());
}

}  // namespace
}  // namespace th::doctor
