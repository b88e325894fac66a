#include "th/transfer/same_host/peer_memory.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/transfer/stream/socket.h"

namespace th::same_host {
namespace {

using stream::Socket;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

// The peer of both ends is this very process.
PeerMemory OwnMemory() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const Socket one(ends[0]), other(ends[1]);
  auto memory = PeerMemory::Of(one.fd());
  EXPECT_OK(memory.status());
  return *memory;
}

TEST(PeerMemoryTest, ThePeerIsWhoMadeTheSocket) { EXPECT_EQ(OwnMemory().pid(), getpid()); }

TEST(PeerMemoryTest, ASocketOfAnotherKindHasNoPeerWhoseMemoryIsHere) {
  const Socket tcp(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_THAT(PeerMemory::Of(tcp.fd()), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(PeerMemoryTest, TheOwnProbeIsReadable) { EXPECT_OK(OwnMemory().Probe(OwnProbe())); }

TEST(PeerMemoryTest, AnotherValueThanWasNamedIsRefused) {
  MemoryProbe probe = OwnProbe();
  ++probe.value;
  EXPECT_THAT(OwnMemory().Probe(probe),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not the source")));
}

// More pieces on either side than one call takes, cut at different places.
TEST(PeerMemoryTest, PiecesAreCopiedInOrderHoweverTheyAreCut) {
  std::string from(50'000, '\0'), into(50'000, '\0');
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 31 + i / 256);
  std::vector<iovec> remote, local;
  for (size_t at = 0; at < from.size(); at += 10) remote.push_back({&from[at], 10});
  remote.insert(remote.begin() + 7, iovec{&from[70], 0});
  for (size_t at = 0; at < into.size(); at += 16) {
    local.push_back({&into[at], std::min<size_t>(16, into.size() - at)});
  }
  EXPECT_OK(OwnMemory().Read(remote, local));
  EXPECT_EQ(into, from);
}

TEST(PeerMemoryTest, AnAddressThatIsNoneIsAnError) {
  std::string into(8, '\0');
  const iovec local{into.data(), into.size()};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address at which nothing is.
  const iovec nowhere{reinterpret_cast<void*>(16), 8};
  EXPECT_THAT(OwnMemory().Read({&nowhere, 1}, {&local, 1}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("cannot be read")));
}

// Memory that ends in the middle of a piece: what is there may be copied, but it is an error.
TEST(PeerMemoryTest, MemoryThatEndsWithinAPieceIsAnError) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* const two = static_cast<char*>(
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(two, MAP_FAILED);
  ASSERT_EQ(munmap(two + page, page), 0);
  std::vector<char> into(2 * page);
  const iovec local{into.data(), into.size()};
  const iovec remote{two, 2 * page};
  EXPECT_THAT(OwnMemory().Read({&remote, 1}, {&local, 1}), StatusIs(absl::StatusCode::kNotFound));
  munmap(two, page);
}

}  // namespace
}  // namespace th::same_host
