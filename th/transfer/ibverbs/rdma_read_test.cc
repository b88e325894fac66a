// RDMA READs between the first two devices of this machine (Soft-RoCE will do), in one process and
// between two.
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/transfer/ibverbs/host_registrations.h"
#include "th/transfer/ibverbs/queue_pair.h"
#include "th/transfer/ibverbs/rdma_device.h"
#include "th/transfer/ibverbs/verbs_library.h"
#include "th/transfer/monotonic_clock.h"

namespace th::ibverbs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::IsOk;
using ::th::testing::StatusIs;

// The time that a software device may take for a test's bytes, on a busy machine.
constexpr absl::Duration kPatience = absl::Seconds(60);
// A peer that is gone is noticed by the device within this: 7 times 268 ms, and what the emulation
// adds.
constexpr absl::Duration kNoticed = absl::Seconds(5);

using Bytes = std::vector<uint8_t>;

void FillWithPattern(uint8_t* at, size_t bytes) {
  uint64_t x = 88172645463325252;
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    std::memcpy(at + i, &x, 8);
  }
}

MemoryRange RangeOf(const Bytes& bytes) {
  return {reinterpret_cast<uintptr_t>(bytes.data()), bytes.size()};
}

std::vector<std::shared_ptr<const RdmaDevice>> TwoDevices() {
  const auto verbs = VerbsLibrary::Load();
  EXPECT_THAT(verbs, IsOk());
  if (!verbs.ok()) return {};
  const auto devices = OpenRdmaDevices(*verbs, {});
  EXPECT_THAT(devices, IsOk());
  if (!devices.ok()) return {};
  EXPECT_GE(devices->usable.size(), 2U) << "two RDMA devices are needed";
  return devices->usable;
}

// "pd 2 cq 0 qp 1 ..." of all devices: what the kernel counts.
std::string KernelResources() {
  FILE* const shown = popen("rdma resource show", "r");
  std::string text;
  std::array<char, 512> buffer;
  while (fgets(buffer.data(), buffer.size(), shown) != nullptr) text += buffer.data();
  pclose(shown);
  return text;
}

// Waits until something has completed, and takes it.
absl::Status PollOnce(QueuePair* pair, std::vector<uint64_t>* tags, absl::Duration patience) {
  pollfd watched{.fd = pair->completion_fd(), .events = POLLIN, .revents = 0};
  const int ready = poll(&watched, 1, static_cast<int>(absl::ToInt64Milliseconds(patience)));
  if (ready == 0) return absl::DeadlineExceededError("nothing has completed");
  return pair->Poll(MonotonicNow(), tags);
}

absl::Status WaitForTag(QueuePair* pair, uint64_t tag) {
  std::vector<uint64_t> tags;
  while (tags.empty() || tags.back() != tag) {
    const absl::Status polled = PollOnce(pair, &tags, kPatience);
    if (!polled.ok()) return polled;
  }
  return absl::OkStatus();
}

class RdmaReadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    devices_ = TwoDevices();
    ASSERT_GE(devices_.size(), 2U);
    source_memory_ = std::make_unique<HostRegistrations>(
        std::vector<std::shared_ptr<const RdmaDevice>>{devices_[0]}, HostRegistrations::Options());
    reader_memory_ = std::make_unique<HostRegistrations>(
        std::vector<std::shared_ptr<const RdmaDevice>>{devices_[1]}, HostRegistrations::Options());
  }

  void Connect(QueuePair::Options reader = {}) {
    auto source_end = QueuePair::Create(devices_[0], {.role = QueuePair::Role::kSource});
    ASSERT_THAT(source_end, IsOk());
    auto reader_end = QueuePair::Create(devices_[1], reader);
    ASSERT_THAT(reader_end, IsOk());
    ASSERT_THAT((*source_end)->Connect((*reader_end)->address()), IsOk());
    ASSERT_THAT((*reader_end)->Connect((*source_end)->address()), IsOk());
    source_ = *std::move(source_end);
    reader_ = *std::move(reader_end);
  }
  void Attach(const Bytes& from, const Bytes& into) {
    const auto source = source_memory_->Attach({{RangeOf(from)}});
    const auto reader = reader_memory_->Attach({{RangeOf(into)}});
    ASSERT_THAT(source, IsOk());
    ASSERT_THAT(reader, IsOk());
    source_attachment_ = *source;
    reader_attachment_ = *reader;
  }
  KeyedRange From(const Bytes& bytes, uint64_t offset, uint64_t count) const {
    const auto keys = source_memory_->Find(bytes.data() + offset, count, 0);
    EXPECT_TRUE(keys.has_value());
    return {RangeOf(bytes).begin + offset, count, keys->remote_key};
  }
  KeyedRange Into(const Bytes& bytes, uint64_t offset, uint64_t count) const {
    const auto keys = reader_memory_->Find(bytes.data() + offset, count, 0);
    EXPECT_TRUE(keys.has_value());
    return {RangeOf(bytes).begin + offset, count, keys->local_key};
  }

  std::vector<std::shared_ptr<const RdmaDevice>> devices_;
  std::unique_ptr<HostRegistrations> source_memory_, reader_memory_;
  uint64_t source_attachment_ = 0, reader_attachment_ = 0;
  std::unique_ptr<QueuePair> source_, reader_;
};

TEST_F(RdmaReadTest, ReadsOddPiecesToTheirPlaces) {
  constexpr size_t kBytes = size_t{64} << 20;
  constexpr uint32_t kDepth = 32;
  Bytes from(kBytes), into(kBytes);
  FillWithPattern(from.data(), kBytes);
  Attach(from, into);
  Connect({.depth = kDepth, .max_read_bytes = 64 << 10});
  std::vector<KeyedRange> sources, pieces;
  size_t step = 1;
  for (size_t at = 0; at < kBytes; at += sources.back().bytes) {
    step = step * 7919 % 200'003;
    sources.push_back(From(from, at, std::min(step + 1, kBytes - at)));
  }
  for (size_t at = 0; at < kBytes; at += pieces.back().bytes) {
    step = step * 6007 % 100'003;
    pieces.push_back(Into(into, at, std::min(step + 1, kBytes - at)));
  }
  ASSERT_THAT(reader_->Post(1, sources, pieces, MonotonicNow()), IsOk());
  ASSERT_THAT(WaitForTag(reader_.get(), 1), IsOk());
  EXPECT_EQ(std::memcmp(from.data(), into.data(), kBytes), 0);
  const QueuePair::Counters& counters = reader_->counters();
  EXPECT_GE(counters.reads_posted, kBytes / (64 << 10));
  EXPECT_EQ(counters.most_outstanding, kDepth);
  EXPECT_LE(counters.reads_signalled, counters.reads_posted / (kDepth / 4) + 1);
  EXPECT_FALSE(reader_->waiting_since().has_value());
}

// Tensors that an allocator has placed one after another, in another order than the reader's; the
// gaps are less than 1 % of the bytes.
TEST_F(RdmaReadTest, ShortGapsAreReadAlongAndLandNowhere) {
  constexpr size_t kTensors = 2000, kTensorBytes = 2000, kStride = kTensorBytes + 16;
  Bytes from(kTensors * kStride), into(kTensors * kStride, 0xAB);
  FillWithPattern(from.data(), from.size());
  Attach(from, into);
  Connect();
  std::vector<KeyedRange> sources, pieces;
  for (size_t i = 0; i < kTensors; ++i) {
    sources.push_back(From(from, (i ^ 1) * kStride, kTensorBytes));
    pieces.push_back(Into(into, i * kStride, kTensorBytes));
  }
  ASSERT_THAT(reader_->Post(1, sources, pieces, MonotonicNow()), IsOk());
  ASSERT_THAT(WaitForTag(reader_.get(), 1), IsOk());
  for (size_t i = 0; i < kTensors; ++i) {
    ASSERT_EQ(std::memcmp(&into[i * kStride], &from[(i ^ 1) * kStride], kTensorBytes), 0) << i;
    for (size_t at = kTensorBytes; at < kStride; ++at) ASSERT_EQ(into[i * kStride + at], 0xAB) << i;
  }
  EXPECT_LT(reader_->counters().reads_posted, kTensors / 4);
}

TEST_F(RdmaReadTest, BatchesCompleteInTheirOrder) {
  Bytes from(1 << 20), into(1 << 20);
  Attach(from, into);
  Connect();
  for (uint64_t tag = 1; tag <= 100; ++tag) {
    ASSERT_THAT(reader_->Post(tag, {From(from, tag * 100, tag)}, {Into(into, tag * 100, tag)},
                              MonotonicNow()),
                IsOk());
  }
  std::vector<uint64_t> tags;
  while (tags.size() < 100) {
    ASSERT_THAT(PollOnce(reader_.get(), &tags, kPatience), IsOk());
  }
  EXPECT_TRUE(std::is_sorted(tags.begin(), tags.end()));
}

TEST_F(RdmaReadTest, ReadOnlyMemoryCanBeRead) {
  constexpr size_t kBytes = 1 << 16;
  void* const mapped =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  FillWithPattern(static_cast<uint8_t*>(mapped), kBytes);
  ASSERT_EQ(mprotect(mapped, kBytes, PROT_READ), 0);
  Bytes into(kBytes), unused(1);
  Attach(unused, into);
  const auto attachment =
      source_memory_->Attach({{MemoryRange{reinterpret_cast<uintptr_t>(mapped), kBytes}}});
  ASSERT_THAT(attachment, IsOk());
  const auto keys = source_memory_->Find(mapped, kBytes, 0);
  EXPECT_FALSE(keys->writable);
  Connect();
  ASSERT_THAT(reader_->Post(1, {{reinterpret_cast<uintptr_t>(mapped), kBytes, keys->remote_key}},
                            {Into(into, 0, kBytes)}, MonotonicNow()),
              IsOk());
  ASSERT_THAT(WaitForTag(reader_.get(), 1), IsOk());
  EXPECT_EQ(std::memcmp(mapped, into.data(), kBytes), 0);
  source_memory_->Detach(*attachment);
  munmap(mapped, kBytes);
}

TEST_F(RdmaReadTest, WrongKeyIsNamed) {
  Bytes from(4096), into(4096);
  Attach(from, into);
  Connect();
  KeyedRange wrong = From(from, 0, 4096);
  wrong.key ^= 0x5500;
  ASSERT_THAT(reader_->Post(1, {wrong}, {Into(into, 0, 4096)}, MonotonicNow()), IsOk());
  char key[16];
  std::snprintf(key, sizeof(key), "0x%x", wrong.key);
  EXPECT_THAT(
      WaitForTag(reader_.get(), 1),
      StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr(key), HasSubstr("not registered"))));
}

TEST_F(RdmaReadTest, DetachedMemoryCannotBeRead) {
  Bytes from(4096, 1), into(4096);
  Attach(from, into);
  Connect();
  const KeyedRange was = From(from, 0, 4096);
  source_memory_->Detach(source_attachment_);
  ASSERT_THAT(reader_->Post(1, {was}, {Into(into, 0, 4096)}, MonotonicNow()), IsOk());
  EXPECT_THAT(WaitForTag(reader_.get(), 1), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(std::count(into.begin(), into.end(), 1), 0);
}

TEST_F(RdmaReadTest, NoByteLandsOnceTheReadersPairIsDestroyed) {
  constexpr size_t kBytes = size_t{16} << 20;
  Bytes from(kBytes, 0x11), into(kBytes);
  Attach(from, into);
  Connect({.max_read_bytes = 64 << 10});
  ASSERT_THAT(reader_->Post(1, {From(from, 0, kBytes)}, {Into(into, 0, kBytes)}, MonotonicNow()),
              IsOk());
  std::vector<uint64_t> tags;
  ASSERT_THAT(PollOnce(reader_.get(), &tags, kPatience), IsOk());  // some have landed
  ASSERT_TRUE(tags.empty());
  reader_->Destroy();
  std::fill(into.begin(), into.end(), 0xee);
  // While another pair reads as much, the devices have had time for whatever was left.
  const std::unique_ptr<QueuePair> ended = std::move(reader_);
  Bytes other(kBytes);
  Attach(from, other);
  Connect();
  ASSERT_THAT(reader_->Post(2, {From(from, 0, kBytes)}, {Into(other, 0, kBytes)}, MonotonicNow()),
              IsOk());
  ASSERT_THAT(WaitForTag(reader_.get(), 2), IsOk());
  EXPECT_EQ(other, from);
  EXPECT_EQ(static_cast<size_t>(std::count(into.begin(), into.end(), 0xee)), kBytes);
}

TEST_F(RdmaReadTest, NothingIsReadOnceTheSourcesPairIsDestroyed) {
  constexpr size_t kBytes = size_t{16} << 20;
  Bytes from(kBytes, 0x11), into(kBytes);
  Attach(from, into);
  Connect({.max_read_bytes = 64 << 10});
  ASSERT_THAT(reader_->Post(1, {From(from, 0, kBytes)}, {Into(into, 0, kBytes)}, MonotonicNow()),
              IsOk());
  std::vector<uint64_t> tags;
  ASSERT_THAT(PollOnce(reader_.get(), &tags, kPatience), IsOk());
  source_->Destroy();
  std::fill(from.begin(), from.end(), 0x22);
  const absl::Time since = MonotonicNow();
  EXPECT_THAT(WaitForTag(reader_.get(), 1),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("does not answer")));
  EXPECT_LT(MonotonicNow() - since, kNoticed);
  EXPECT_GT(std::count(into.begin(), into.end(), 0x11), 0);
  EXPECT_EQ(std::count(into.begin(), into.end(), 0x22), 0);
}

TEST_F(RdmaReadTest, PeerThatIsNoneIsRefused) {
  auto pair = QueuePair::Create(devices_[1], {});
  ASSERT_THAT(pair, IsOk());
  QueuePairAddress peer = (*pair)->address();
  peer.mtu = 9;
  EXPECT_THAT((*pair)->Connect(peer),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("MTU 9")));
  peer = (*pair)->address();
  peer.link = LinkLayer::kInfiniBand;
  EXPECT_THAT((*pair)->Connect(peer),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("InfiniBand")));
  peer = (*pair)->address();
  peer.gid[12] = 203, peer.gid[13] = 0, peer.gid[14] = 113, peer.gid[15] = 9;
  EXPECT_THAT((*pair)->Connect(peer),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no route from")));
}

TEST_F(RdmaReadTest, ThousandRoundsLeakNothing) {
  Bytes from(64 << 10, 3), into(64 << 10);
  const std::string before = KernelResources();
  ASSERT_THAT(before, HasSubstr("qp"));
  for (int round = 0; round < 1000; ++round) {
    Attach(from, into);
    Connect({.depth = 8});
    ASSERT_THAT(reader_->Post(1, {From(from, 1, 1000)}, {Into(into, 3, 1000)}, MonotonicNow()),
                IsOk());
    // Some end while they read.
    if (round % 2 == 0) {
      ASSERT_THAT(WaitForTag(reader_.get(), 1), IsOk());
    }
    reader_.reset();
    source_.reset();
    source_memory_->Detach(source_attachment_);
    reader_memory_->Detach(reader_attachment_);
  }
  EXPECT_EQ(KernelResources(), before);
}

// ---- between processes

// The words of a source in a process of its own to its reader.
struct Offer {
  QueuePairAddress address;
  KeyedRange range;
};

// A child that offers `bytes` of memory and then does nothing more.
[[noreturn]] void ServeForever(int fd, size_t bytes) {
  const auto devices = TwoDevices();
  HostRegistrations memory({devices[0]}, {});
  Bytes from(bytes, 0x33);
  auto pair = QueuePair::Create(devices[0], {.role = QueuePair::Role::kSource});
  QueuePairAddress peer;
  if (!pair.ok() || !memory.Attach({{RangeOf(from)}}).ok()) _exit(2);
  const Offer offer{(*pair)->address(),
                    {RangeOf(from).begin, bytes, memory.Find(from.data(), bytes, 0)->remote_key}};
  if (write(fd, &offer, sizeof(offer)) != sizeof(offer)) _exit(3);
  if (recv(fd, &peer, sizeof(peer), MSG_WAITALL) != sizeof(peer)) _exit(4);
  if (!(*pair)->Connect(peer).ok()) _exit(5);
  if (write(fd, "c", 1) != 1) _exit(6);
  while (true) pause();
}

TEST(RdmaBetweenProcessesTest, KilledPeerIsNoticed) {
  constexpr size_t kBytes = size_t{32} << 20;
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const pid_t child = fork();
  if (child == 0) ServeForever(ends[1], kBytes);
  close(ends[1]);
  const auto devices = TwoDevices();
  HostRegistrations memory({devices[1]}, {});
  Bytes into(kBytes);
  const auto attachment = memory.Attach({{RangeOf(into)}});
  ASSERT_THAT(attachment, IsOk());
  auto pair = QueuePair::Create(devices[1], {.max_read_bytes = 64 << 10});
  ASSERT_THAT(pair, IsOk());
  Offer offer;
  ASSERT_EQ(recv(ends[0], &offer, sizeof(offer), MSG_WAITALL), ssize_t{sizeof(offer)});
  const QueuePairAddress own = (*pair)->address();
  ASSERT_EQ(write(ends[0], &own, sizeof(own)), ssize_t{sizeof(own)});
  ASSERT_THAT((*pair)->Connect(offer.address), IsOk());
  char connected;
  ASSERT_EQ(recv(ends[0], &connected, 1, 0), 1);

  const KeyedRange local = {RangeOf(into).begin, kBytes,
                            memory.Find(into.data(), kBytes, 0)->local_key};
  ASSERT_THAT((*pair)->Post(1, {offer.range}, {local}, MonotonicNow()), IsOk());
  std::vector<uint64_t> tags;
  ASSERT_THAT(PollOnce(pair->get(), &tags, kPatience), IsOk());
  ASSERT_TRUE(tags.empty());
  kill(child, SIGKILL);
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  const absl::Time since = MonotonicNow();
  // The kernel takes its registrations away before its queue pairs: either may be heard.
  EXPECT_THAT(WaitForTag(pair->get(), 1), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_LT(MonotonicNow() - since, kNoticed);
  RecordProperty("noticed_ms", absl::ToInt64Milliseconds(MonotonicNow() - since));
  (*pair)->Destroy();
  memory.Detach(*attachment);
  close(ends[0]);
}

// Registers 8 MiB as a user who may lock 1 MiB, and writes what it hears.
[[noreturn]] void RegisterBeyondTheLimit(int fd) {
  const auto devices = TwoDevices();
  const rlimit limit{1 << 20, 1 << 20};
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || setresuid(65534, 65534, 65534) != 0) _exit(2);
  HostRegistrations memory(devices, {});
  const Bytes bytes(8 << 20);
  const std::string heard = memory.Attach({{RangeOf(bytes)}}).status().ToString();
  _exit(write(fd, heard.data(), heard.size()) == static_cast<ssize_t>(heard.size()) ? 0 : 3);
}

TEST(RdmaBetweenProcessesTest, LockedMemoryTooLowSaysTheLimitAndWhatToDo) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const pid_t child = fork();
  if (child == 0) RegisterBeyondTheLimit(ends[1]);
  close(ends[1]);
  std::array<char, 1024> heard{};
  ASSERT_GT(recv(ends[0], heard.data(), heard.size() - 1, 0), 0);
  EXPECT_THAT(
      std::string(heard.data()),
      AllOf(HasSubstr("8388608 bytes"), HasSubstr("1048576 bytes in all"), HasSubstr("ulimit -l")));
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(ends[0]);
}

}  // namespace
}  // namespace th::ibverbs
