#include "th/transfer/same_host/mapped_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/memory/shared_memory.h"

namespace th::same_host {
namespace {

constexpr uint64_t kBytes = uint64_t{2} << 20;

class MappedMemoryTest : public ::testing::Test {
 protected:
  ~MappedMemoryTest() override {
    for (std::byte* each : memory_) UnmapSharedMemory(each);
  }
  // A new range of this process, which owner and reader are here.
  OfferedRange Offer() {
    const auto data = MapSharedMemory(kBytes);
    EXPECT_OK(data.status());
    memory_.push_back(*data);
    const SharedMemoryRange range = *FindSharedMemory(*data, kBytes);
    return {.address = reinterpret_cast<uintptr_t>(range.address),
            .bytes = range.bytes,
            .id = range.id,
            .inode = range.inode,
            .file_descriptor = static_cast<uint64_t>(range.file_descriptor)};
  }
  std::vector<std::byte*> memory_;
  MappedMemory mapped_;
};

TEST_F(MappedMemoryTest, TheOwnersBytesAreSeen) {
  const OfferedRange offered = Offer();
  memory_[0][kBytes - 1] = std::byte{9};
  const auto range = mapped_.Map(getpid(), offered);
  ASSERT_NE(range, nullptr);
  EXPECT_NE(range->data(), memory_[0]);
  EXPECT_EQ(range->bytes(), kBytes);
  EXPECT_EQ(range->data()[kBytes - 1], std::byte{9});
}

TEST_F(MappedMemoryTest, AMappingIsKeptForTheNextTransfer) {
  const OfferedRange offered = Offer();
  const std::byte* const first = mapped_.Map(getpid(), offered)->data();
  EXPECT_EQ(mapped_.Map(getpid(), offered)->data(), first);
}

// The descriptor may be another file's by now.
TEST_F(MappedMemoryTest, AnotherFileThanTheOfferedOneIsNotMapped) {
  OfferedRange offered = Offer();
  ++offered.inode;
  EXPECT_EQ(mapped_.Map(getpid(), offered), nullptr);
  --offered.inode;
  offered.bytes *= 2;
  EXPECT_EQ(mapped_.Map(getpid(), offered), nullptr);
  offered.bytes = 0;
  EXPECT_EQ(mapped_.Map(getpid(), offered), nullptr);
}

TEST_F(MappedMemoryTest, ADescriptorThatIsNoneIsNotMapped) {
  OfferedRange offered = Offer();
  offered.file_descriptor = 1'000'000;
  EXPECT_EQ(mapped_.Map(getpid(), offered), nullptr);
}

// An owner that may still cut it would end its readers with SIGBUS.
TEST_F(MappedMemoryTest, AFileThatCanStillShrinkIsNotMapped) {
  const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(fd, kBytes), 0);
  struct stat file {};
  ASSERT_EQ(fstat(fd, &file), 0);
  EXPECT_EQ(mapped_.Map(getpid(), {.address = 4096,
                                   .bytes = kBytes,
                                   .id = 1,
                                   .inode = file.st_ino,
                                   .file_descriptor = static_cast<uint64_t>(fd)}),
            nullptr);
  close(fd);
}

TEST_F(MappedMemoryTest, TheLongestUnusedAreGivenUp) {
  const OfferedRange first = Offer();
  std::weak_ptr<const MappedRange> unused = mapped_.Map(getpid(), first);
  const auto in_use = mapped_.Map(getpid(), Offer());
  for (size_t i = 0; i < kMaxIdleMappings + 2; ++i) mapped_.Map(getpid(), Offer());
  mapped_.Trim();
  EXPECT_TRUE(unused.expired());
  EXPECT_EQ(mapped_.Map(getpid(), {.bytes = 0}), nullptr);
  EXPECT_EQ(in_use->data()[0], std::byte{0});
}

TEST_F(MappedMemoryTest, WhatBelongedToAProcessThatHasEndedIsGivenUp) {
  const OfferedRange offered = Offer();
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = fork();  // has the same descriptors
  if (child == 0) {
    char byte = 0;
    [[maybe_unused]] const ssize_t got = read(go[0], &byte, 1);
    _exit(0);
  }
  std::weak_ptr<const MappedRange> of_child = mapped_.Map(child, offered);
  EXPECT_FALSE(of_child.expired());
  ASSERT_EQ(write(go[1], "x", 1), 1);
  // It has ended and is not reaped: a container may never do that.
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  mapped_.Trim();
  EXPECT_TRUE(of_child.expired());
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(go[0]);
  close(go[1]);
}

}  // namespace
}  // namespace th::same_host
