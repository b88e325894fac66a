#include "th/memory/peer_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "gtest/gtest.h"
#include "testing/open_descriptors.h"

namespace th {
namespace {

class PeerFileTest : public ::testing::Test {
 protected:
  PeerFileTest() : fd_(memfd_create("of-a-peer", MFD_CLOEXEC)) {
    struct stat made {};
    EXPECT_EQ(fstat(fd_, &made), 0);
    file_ = {.file_descriptor = fd_, .inode = made.st_ino};
  }
  ~PeerFileTest() override { close(fd_); }

  const int fd_;
  PeerFile file_;
};

TEST_F(PeerFileTest, IsOpenedAsItIsAskedFor) {
  const OpenedPeerFile write = OpenPeerFile(getpid(), file_, PeerFileAccess::kReadWrite);
  ASSERT_GE(write.fd, 0);
  EXPECT_EQ(pwrite(write.fd, "abc", 3, 0), 3);
  const OpenedPeerFile read = OpenPeerFile(getpid(), file_, PeerFileAccess::kRead);
  ASSERT_GE(read.fd, 0);
  std::array<char, 3> bytes{};
  EXPECT_EQ(pread(read.fd, bytes.data(), 3, 0), 3);
  EXPECT_EQ(bytes[2], 'c');
  EXPECT_LT(pwrite(read.fd, "x", 1, 0), 0);
  close(write.fd);
  close(read.fd);
}

TEST_F(PeerFileTest, AnotherFileOrNoneIsToldApartAndNothingStaysOpen) {
  const size_t before = testing::OpenDescriptors();
  const OpenedPeerFile other = OpenPeerFile(
      getpid(), {.file_descriptor = fd_, .inode = file_.inode + 1}, PeerFileAccess::kRead);
  EXPECT_EQ(other.fd, -1);
  EXPECT_EQ(other.error, 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  struct stat made {};
  ASSERT_EQ(fstat(ends[0], &made), 0);
  const OpenedPeerFile device = OpenPeerFile(
      getpid(), {.file_descriptor = ends[0], .inode = made.st_ino}, PeerFileAccess::kRead);
  EXPECT_EQ(device.fd, -1);
  EXPECT_EQ(device.error, 0);
  close(ends[0]);
  close(ends[1]);
  const OpenedPeerFile none =
      OpenPeerFile(getpid(), {.file_descriptor = ends[0], .inode = 1}, PeerFileAccess::kRead);
  EXPECT_EQ(none.error, ENOENT);
  EXPECT_STREQ(none.call, "stat");
  EXPECT_EQ(testing::OpenDescriptors(), before);
}

}  // namespace
}  // namespace th
