#include "th/transfer/cuda_ipc/allocation_table.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th::cuda_ipc {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(20);

SharedAllocation SomeAllocation(uint64_t address) {
  SharedAllocation allocation{.address = address};
  for (size_t i = 0; i < sizeof(allocation.exported.handle.reserved); ++i) {
    allocation.exported.handle.reserved[i] = static_cast<char>(i * 7);
  }
  allocation.exported.device_uuid = "GPU-fafafafa-fafa-fafa-fafa-fafafafafa01";
  allocation.exported.bytes = 1 << 20;
  return allocation;
}

class AllocationTableTest : public ::testing::Test {
 protected:
  AllocationTableTest() {
    auto table = AllocationTable::Create();
    EXPECT_OK(table.status());
    table_ = *std::move(table);
    const auto reader = table_->ReaderOf(getpid());
    EXPECT_OK(reader.status());
    auto peer = PeerTable::Open(getpid(), table_->offered(), *reader);
    EXPECT_OK(peer.status());
    peer_ = *std::move(peer);
  }

  std::pair<uint32_t, uint64_t> Share(uint64_t address) {
    const auto slot = table_->Take();
    EXPECT_OK(slot.status());
    return {*slot, table_->Share(*slot, SomeAllocation(address))};
  }

  std::unique_ptr<AllocationTable> table_;
  std::shared_ptr<PeerTable> peer_;
};

TEST_F(AllocationTableTest, AReaderFindsWhatIsShared) {
  const auto [first, first_id] = Share(0x1000);
  const auto [second, second_id] = Share(0x2000);
  table_->Link(first, second);
  ASSERT_OK_AND_ASSIGN(const SharedAllocation found, peer_->Read(first));
  EXPECT_EQ(found.id, first_id);
  EXPECT_EQ(found.address, 0x1000);
  EXPECT_EQ(found.next, second + 1);
  EXPECT_EQ(found.exported.Encode(), SomeAllocation(0).exported.Encode());
  EXPECT_NE(first_id, second_id);
  EXPECT_EQ(table_->shared(), 2);
}

TEST_F(AllocationTableTest, AProcessHasOneMappingOfATable) {
  ASSERT_OK_AND_ASSIGN(const auto again, PeerTable::Open(getpid(), table_->offered(), 0));
  EXPECT_EQ(again, peer_);
}

TEST_F(AllocationTableTest, WhatIsRetiredIsNotShared) {
  const auto [slot, id] = Share(0x1000);
  EXPECT_TRUE(peer_->StillShared(slot, id));
  table_->Retire(slot);
  EXPECT_FALSE(peer_->StillShared(slot, id));
  EXPECT_FALSE(peer_->Enter(slot, id));
  EXPECT_THAT(peer_->Read(slot), StatusIs(absl::StatusCode::kNotFound, HasSubstr("detached")));
  EXPECT_TRUE(table_->AwaitReleased({slot}, absl::ZeroDuration()));
}

TEST_F(AllocationTableTest, SlotsThatAreNoneSaySo) {
  EXPECT_THAT(peer_->Read(kMaxSharedAllocations), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(peer_->Read(17), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(AllocationTableTest, ItsOwnerWaitsForReadersThatHaveItOpen) {
  const auto [slot, id] = Share(0x1000);
  ASSERT_TRUE(peer_->Enter(slot, id));
  ASSERT_TRUE(peer_->Enter(slot, id));
  table_->Retire(slot);
  EXPECT_FALSE(table_->AwaitReleased({slot}, absl::ZeroDuration()));
  peer_->Leave(slot);
  EXPECT_FALSE(table_->AwaitReleased({slot}, absl::ZeroDuration()));
  std::thread leaver([&, slot = slot] { peer_->Leave(slot); });
  EXPECT_TRUE(table_->AwaitReleased({slot}, kPatience));
  leaver.join();
}

TEST_F(AllocationTableTest, AReaderHearsOfWhatIsRetired) {
  const auto [slot, id] = Share(0x1000);
  const uint32_t seen = peer_->changes();
  std::thread owner([&, slot = slot] { table_->Retire(slot); });
  while (peer_->changes() == seen) peer_->AwaitChange(seen, kPatience);
  EXPECT_FALSE(peer_->StillShared(slot, id));
  owner.join();
}

TEST_F(AllocationTableTest, ASlotIsNotUsedAgainWhileSomebodyHasItOpen) {
  const auto [slot, id] = Share(0x1000);
  ASSERT_TRUE(peer_->Enter(slot, id));
  table_->Retire(slot);
  table_->Give(slot);
  EXPECT_EQ(table_->shared(), 0);
  ASSERT_OK_AND_ASSIGN(const uint32_t other, table_->Take());
  EXPECT_NE(other, slot);
  peer_->Leave(slot);
  ASSERT_OK_AND_ASSIGN(const uint32_t again, table_->Take());
  EXPECT_EQ(again, slot);
}

// As a reader that was killed with its imports open.
TEST_F(AllocationTableTest, NobodyWaitsForAReaderThatHasEnded) {
  const auto [slot, id] = Share(0x1000);
  int entered[2];
  ASSERT_EQ(pipe(entered), 0);
  const OfferedTable offered = table_->offered();
  const pid_t child = fork();
  if (child == 0) {
    peer_ = nullptr;  // what the parent has mapped is not here
    const auto peer = PeerTable::Open(getppid(), offered, 1);
    const char said = peer.ok() && (*peer)->Enter(slot, id) ? 'y' : 'n';
    [[maybe_unused]] const ssize_t written = write(entered[1], &said, 1);
    while (true) pause();
  }
  close(entered[1]);
  ASSERT_OK_AND_ASSIGN(const uint32_t bit, table_->ReaderOf(child));
  ASSERT_EQ(bit, 1);
  char said = 0;
  ASSERT_EQ(read(entered[0], &said, 1), 1);
  ASSERT_EQ(said, 'y');
  table_->Retire(slot);
  EXPECT_FALSE(table_->AwaitReleased({slot}, absl::Milliseconds(1)));
  kill(child, SIGKILL);
  EXPECT_TRUE(table_->AwaitReleased({slot}, kPatience));
  waitpid(child, nullptr, 0);
  ASSERT_OK_AND_ASSIGN(const uint32_t next, table_->ReaderOf(getppid()));
  EXPECT_EQ(next, bit) << "the bit of a process that has ended is free";
  close(entered[0]);
}

TEST_F(AllocationTableTest, WhatIsNoTableIsRefused) {
  const OfferedTable offered = table_->offered();
  OfferedTable other = offered;
  ++other.life;
  EXPECT_THAT(PeerTable::Open(getpid(), other, 0), StatusIs(absl::StatusCode::kInvalidArgument));
  ++other.inode;
  EXPECT_THAT(PeerTable::Open(getpid(), other, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no table")));
  other.file_descriptor = 1'000'000;
  EXPECT_THAT(PeerTable::Open(getpid(), other, 0), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(PeerTable::Open(getpid(), offered, kMaxReaderProcesses),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(FetchDescriptorTest, WhatIsNotThereSaysSo) {
  EXPECT_THAT(FetchDescriptor(getpid(), 1'000'000), StatusIs(absl::StatusCode::kNotFound));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_OK_AND_ASSIGN(const stream::Socket fetched,
                       FetchDescriptor(getpid(), static_cast<uint64_t>(ends[1])));
  ASSERT_EQ(write(fetched.fd(), "x", 1), 1);
  char got = 0;
  EXPECT_EQ(read(ends[0], &got, 1), 1);
  close(ends[0]);
  close(ends[1]);
}

// Where this process has mapped its table of that name; null: nowhere.
void* AddressOfTable() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:tensorhub-cuda-ipc") == std::string::npos) continue;
    return reinterpret_cast<void*>(std::stoull(line, nullptr, 16));
  }
  return nullptr;
}

TEST(MappedTableTest, AForkedChildLeavesAloneWhatLiesThereMeanwhile) {
  ASSERT_OK_AND_ASSIGN(auto table, AllocationTable::Create());
  void* const address = AddressOfTable();
  ASSERT_NE(address, nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const void* const mine = mmap(address, page, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (mine != address) _exit(1);
    table.reset();
    unsigned char resident = 0;
    _exit(mincore(address, page, &resident) == 0 ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: the child has a mapping; 2: its memory was unmapped";
}

}  // namespace
}  // namespace th::cuda_ipc
