#include "th/transfer/ibverbs/host_registrations.h"

#include <arpa/inet.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

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

constexpr uint64_t kPage = 4096;

TEST(MergeRangesTest, RangesThatTouchOrOverlapAreOne) {
  EXPECT_THAT(MergeRanges({{0x3000, 0x1000}, {0x1000, 0x2000}, {0x1800, 0x100}}, kPage),
              ElementsAre(MemoryRange{0x1000, 0x3000}));
}

TEST(MergeRangesTest, GapWithoutAWholePageIsBridged) {
  // The last byte of the first lies in page 1, the first byte of the second in page 2.
  EXPECT_THAT(MergeRanges({{0x1000, 0x10}, {0x2ff0, 0x10}}, kPage),
              ElementsAre(MemoryRange{0x1000, 0x2000}));
}

TEST(MergeRangesTest, GapWithAWholePageSeparates) {
  EXPECT_THAT(MergeRanges({{0x1000, 0x1000}, {0x3000, 0x10}}, kPage),
              ElementsAre(MemoryRange{0x1000, 0x1000}, MemoryRange{0x3000, 0x10}));
}

TEST(MergeRangesTest, EmptyRangesAreLeftOut) {
  EXPECT_THAT(MergeRanges({{0x1000, 0}, {0x9000, 0}}, kPage), IsEmpty());
}

TEST(MergeRangesTest, ManyTensorsOfOneAllocationAreOneRange) {
  std::vector<MemoryRange> tensors;
  uintptr_t at = 0x7f0000000000;
  for (int i = 0; i < 61'000; ++i) {
    tensors.push_back({at, 17'000});
    at += 17'000 + static_cast<uintptr_t>(i % 7);  // odd gaps
  }
  EXPECT_EQ(MergeRanges(tensors, kPage).size(), 1U);
}

class HostRegistrationsTest : public ::testing::Test {
 protected:
  HostRegistrationsTest() {
    GidEntry gid{.gid = {}, .index = 1, .type = GidType::kRoceV2};
    inet_pton(AF_INET6, "::ffff:10.0.0.1", gid.gid.data());
    fake_.devices = {{.name = "fake0", .gids = {gid}}, {.name = "fake1", .gids = {gid}}};
    auto devices = OpenRdmaDevices(fake_.library(), {});
    EXPECT_THAT(devices, IsOk());
    devices_ = std::move(devices->usable);
  }
  ~HostRegistrationsTest() override {
    EXPECT_THAT(fake_.registered, IsEmpty());
    devices_.clear();
  }
  static const void* At(uintptr_t address) {
    return reinterpret_cast<const void*>(address);  // NOLINT(performance-no-int-to-ptr)
  }

  FakeVerbs fake_;
  std::vector<std::shared_ptr<const RdmaDevice>> devices_;
};

TEST_F(HostRegistrationsTest, RegistersOnceWithEachDeviceAndFindsPieces) {
  HostRegistrations cache(devices_, {});
  const auto attachment =
      cache.Attach(std::vector<MemoryRange>{{0x10000, 0x100}, {0x10100, 0x4000}, {0x90000, 0x10}});
  ASSERT_THAT(attachment, IsOk());
  EXPECT_THAT(fake_.registered,
              ElementsAre(MemoryRange{0x10000, 0x4100}, MemoryRange{0x10000, 0x4100},
                          MemoryRange{0x90000, 0x10}, MemoryRange{0x90000, 0x10}));
  EXPECT_EQ(cache.counters().registrations, 2U);
  EXPECT_EQ(cache.counters().bytes, 0x4110U);
  const auto on_first = cache.Find(At(0x100f0), 0x20, 0);
  const auto on_second = cache.Find(At(0x100f0), 0x20, 1);
  ASSERT_TRUE(on_first.has_value() && on_second.has_value());
  EXPECT_NE(on_first->remote_key, on_second->remote_key);
  EXPECT_TRUE(cache.Find(At(0x10000), 0x4100, 0).has_value());
  EXPECT_FALSE(cache.Find(At(0x10000), 0x4101, 0).has_value());
  EXPECT_FALSE(cache.Find(At(0xffff), 2, 0).has_value());
  EXPECT_FALSE(cache.Find(At(0x90008), 0x10, 0).has_value());
  cache.Detach(*attachment);
  EXPECT_THAT(fake_.registered, IsEmpty());
  EXPECT_FALSE(cache.Find(At(0x100f0), 0x20, 0).has_value());
}

TEST_F(HostRegistrationsTest, SameRangesAreSharedUntilTheLastIsDetached) {
  HostRegistrations cache(devices_, {});
  const std::vector<MemoryRange> ranges = {{0x10000, 0x4000}};
  const auto first = cache.Attach(ranges);
  const auto second = cache.Attach(ranges);
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ(fake_.registrations, 2U);
  cache.Detach(*first);
  EXPECT_TRUE(cache.Find(At(0x10000), 1, 0).has_value());
  cache.Detach(*second);
  cache.Detach(*second);
  EXPECT_EQ(cache.counters().bytes, 0U);
}

TEST_F(HostRegistrationsTest, OverlappingAttachmentsHaveTheirOwn) {
  HostRegistrations cache(devices_, {});
  const auto large = cache.Attach(std::vector<MemoryRange>{{0x10000, 0x40000}});
  const auto small = cache.Attach(std::vector<MemoryRange>{{0x20000, 0x1000}});
  ASSERT_THAT(small, IsOk());
  // The small one begins later and does not hold this piece.
  EXPECT_TRUE(cache.Find(At(0x20800), 0x1000, 0).has_value());
  cache.Detach(*large);
  EXPECT_FALSE(cache.Find(At(0x20800), 0x1000, 0).has_value());
  EXPECT_TRUE(cache.Find(At(0x20800), 0x800, 0).has_value());
  cache.Detach(*small);
}

TEST_F(HostRegistrationsTest, AnOwnersKeyOutlivesTheOverlappingRegistrationOfAnother) {
  constexpr MemoryOwner kLarge(1), kSmall(2);
  HostRegistrations cache(devices_, {});
  const auto large = cache.Attach(std::vector<MemoryRange>{{0x10000, 0x40000}}, kLarge);
  const auto small = cache.Attach(std::vector<MemoryRange>{{0x20000, 0x1000}}, kSmall);
  ASSERT_THAT(small, IsOk());
  const auto find = [&cache](MemoryOwner owner) { return cache.Find(At(0x20800), 8, 0, owner); };
  ASSERT_TRUE(find(kLarge).has_value() && find(kSmall).has_value());
  const uint32_t key = find(kLarge)->remote_key;
  EXPECT_NE(find(kSmall)->remote_key, key);
  cache.Detach(*small);
  EXPECT_EQ(find(kLarge)->remote_key, key);
  EXPECT_FALSE(find(kSmall).has_value());
  cache.Detach(*large);
}

TEST_F(HostRegistrationsTest, MemoryMappedAnewIsRegisteredAnew) {
  HostRegistrations cache(devices_, {});
  const std::vector<MemoryRange> ranges = {{0x10000, 0x4000}};
  const auto before = cache.Attach(ranges);
  const uint32_t key = cache.Find(At(0x10000), 1, 0)->remote_key;
  cache.Detach(*before);
  const auto after = cache.Attach(ranges);
  EXPECT_NE(cache.Find(At(0x10000), 1, 0)->remote_key, key);
  cache.Detach(*after);
}

TEST_F(HostRegistrationsTest, BoundOnBytesIsNamed) {
  HostRegistrations cache(devices_, {.budget = std::make_shared<RegistrationBudget>(0x1000)});
  EXPECT_THAT(cache.Attach(std::vector<MemoryRange>{{0x10000, 0x800}, {0x20000, 0x801}}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("limit of 4KiB")));
  EXPECT_THAT(fake_.registered, IsEmpty());
  EXPECT_EQ(cache.counters().bytes, 0U);
}

TEST_F(HostRegistrationsTest, WhyMemoryWasRefusedIsKnownUntilItIsRegistered) {
  HostRegistrations cache(devices_, {.budget = std::make_shared<RegistrationBudget>(0x3000)});
  const std::vector<MemoryRange> buffer = {{0x10000, 0x2000}, {0x20000, 0x2000}};
  const auto limit = StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("limit of 12KiB"));
  EXPECT_THAT(cache.Attach(buffer), limit);
  EXPECT_THAT(cache.WhyRefused(At(0x20000), 0x2000), limit);
  EXPECT_THAT(cache.WhyRefused(At(0x30000), 0x2000), IsOk()) << "nobody has tried";
  ASSERT_OK_AND_ASSIGN(const uint64_t other, cache.Attach({{0x20000, 0x2000}}));
  EXPECT_THAT(cache.WhyRefused(At(0x20000), 0x2000), IsOk());
  EXPECT_THAT(cache.WhyRefused(At(0x10000), 0x2000), limit);
  EXPECT_THAT(cache.WhyRefused(At(0x20000), 0x2000, MemoryOwner(1)), limit) << "another has it";
  cache.Detach(other);
}

TEST_F(HostRegistrationsTest, OnlyTheLatestRefusalsAreRemembered) {
  HostRegistrations cache(devices_, {.budget = std::make_shared<RegistrationBudget>(0)});
  for (size_t i = 0; i <= HostRegistrations::kMaxRefusals; ++i) {
    EXPECT_THAT(cache.Attach({{0x10000 * (i + 1), 0x1000}}), Not(IsOk()));
  }
  EXPECT_THAT(cache.WhyRefused(At(0x10000), 0x1000), IsOk());
  EXPECT_THAT(cache.WhyRefused(At(0x20000), 0x1000), Not(IsOk()));
}

TEST_F(HostRegistrationsTest, BoundOnRegistrationsIsNamed) {
  HostRegistrations cache(devices_, {.max_registrations = 1});
  EXPECT_THAT(cache.Attach(std::vector<MemoryRange>{{0x10000, 1}, {0x20000, 1}}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("side by side")));
}

TEST_F(HostRegistrationsTest, LockedMemoryTooLowSaysHowMuchAndWhatToDo) {
  HostRegistrations cache(devices_, {});
  fake_.registration_error = ENOMEM;
  fake_.registrations_before_error = 3;  // the second range, with the second device
  EXPECT_THAT(cache.Attach(std::vector<MemoryRange>{{0x10000, 0x800}, {0x20000, 0x801}}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("fake1"), HasSubstr("2049 bytes"), HasSubstr("lock"))));
  EXPECT_THAT(fake_.registered, IsEmpty());
}

TEST_F(HostRegistrationsTest, ReadOnlyMemoryIsRegisteredForPeersAlone) {
  HostRegistrations cache(devices_, {});
  fake_.write_registration_error = EFAULT;
  const auto attachment = cache.Attach(std::vector<MemoryRange>{{0x10000, 0x800}});
  ASSERT_THAT(attachment, IsOk());
  EXPECT_FALSE(cache.Find(At(0x10000), 0x800, 0)->writable);
  cache.Detach(*attachment);
}

TEST_F(HostRegistrationsTest, ForkedChildLeavesTheParentsRegistrationsAlone) {
  auto cache = std::make_unique<HostRegistrations>(devices_, HostRegistrations::Options());
  ASSERT_THAT(cache->Attach(std::vector<MemoryRange>{{0x10000, 0x800}}), IsOk());
  const size_t registered = fake_.registered.size();
  const pid_t child = fork();
  if (child == 0) {
    cache.reset();
    devices_.clear();
    _exit(fake_.registered.size() == registered && fake_.open_contexts == 2 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(HostRegistrationsTest, MemoryThatIsNotThereIsRefused) {
  HostRegistrations cache(devices_, {});
  fake_.registration_error = EFAULT;
  EXPECT_THAT(cache.Attach(std::vector<MemoryRange>{{0x10000, 0x800}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("0x10000"), HasSubstr("not mapped"))));
}

}  // namespace
}  // namespace th::ibverbs
