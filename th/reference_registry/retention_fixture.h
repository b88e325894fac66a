// Ranks with room for copies, and the steps of an offload, for tests of what is retained.
//
//   TEST_F(RetentionTest, ...) {
//     KeepLatest(1);
//     TestRank trainer = Roomy("trainer");
//     const VersionInfo one = Publish(trainer, "one");
//     AskToUnpublish(trainer);  // answered with must_offload
//     const TestRank copy = Offloaded(trainer, one);
#ifndef TH_REFERENCE_REGISTRY_RETENTION_FIXTURE_H_
#define TH_REFERENCE_REGISTRY_RETENTION_FIXTURE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/protocol/copy_name.h"
#include "th/reference_registry/registry_harness.h"

namespace th {

// For copies, where room is not what a test is about.
inline constexpr uint64_t kRoom = uint64_t{1} << 40;

class RetentionTest : public ::testing::Test {
 protected:
  void KeepLatest(uint32_t versions, const std::string& form = "") {
    ASSERT_OK(
        hub_.Command({absl::StrCat("keep-", ++commands_), SetRetention{versions, form}}).status);
  }
  // A rank that has memory for offloads, joined and registered.
  TestRank Roomy(const std::string& group, uint64_t room = kRoom) {
    TestRank rank(hub_, group, 0, 1);
    JoinRequest request = rank.Request();
    request.offload_limit_bytes = room;
    EXPECT_TRUE(rank.Join(request)) << rank.refused.status;
    EXPECT_OK(rank.Register());
    return rank;
  }
  std::vector<TestRank> RoomyGroup() {
    std::vector<TestRank> group = MakeGroup(hub_, "trainer", 2);
    for (TestRank& rank : group) {
      JoinRequest request = rank.Request();
      request.offload_limit_bytes = kRoom;
      EXPECT_TRUE(rank.Join(request));
      EXPECT_OK(rank.Register());
    }
    return group;
  }
  VersionInfo Publish(TestRank& rank, const std::string& label) {
    rank.Publish(label);
    const VersionInfo version = rank.Finished().version;
    rank.Seal(version.sequence, label);
    return version;
  }
  static void AskToUnpublish(TestRank& rank) {
    StartOperation request = rank.UnpublishRequest();
    request.keep_retained = true;
    rank.Start(request);
  }
  // The operation before again, by a rank that has drained meanwhile without a server.
  static void DrainAlone(TestRank& rank) {
    StartOperation request = rank.UnpublishRequest();
    request.key.number = rank.number;
    rank.Say(request);
  }
  static void AskToUpdate(TestRank& rank) {
    StartOperation request = rank.UpdateRequest();
    request.keep_retained = true;
    rank.Start(request);
  }
  // The offload buffer of `rank` for its operation `number`, as a rank of its own on the same
  // stream.
  TestRank RegisteredCopy(const TestRank& rank, const VersionInfo& version,
                          OperationNumber number) {
    TestRank copy = rank;
    copy.buffer = BufferId(rank.buffer.value + 100);
    copy.buffer_name =
        CopyName(rank.buffer_name, CopyFor::kRetention, version.sequence, rank.generation, number);
    copy.number = OperationNumber();
    AnnouncedBuffer announced = copy.Announced();
    announced.role = BufferRole::kOffload;
    copy.Say(RegisterBuffer{announced});
    EXPECT_OK(copy.Heard<BufferRegistered>().status);
    return copy;
  }
  // Holding `version`, after the operation that was answered so.
  TestRank Offloaded(const TestRank& rank, const VersionInfo& version) {
    TestRank copy = RegisteredCopy(rank, version, rank.number);
    copy.Update(version.sequence);
    copy.FillWhole();
    EXPECT_EQ(copy.Finished().outcome, UpdateOutcome::kMoved);
    return copy;
  }
  bool IsReleased(const TestRank& copy) {
    for (const OffloadReleased& released : hub_.TakeAll<OffloadReleased>(copy.connection)) {
      if (released.buffer == copy.buffer) return true;
    }
    return false;
  }
  // Drains and ends it.
  static absl::Status FinishUnpublish(TestRank& rank) {
    rank.Heard<OperationResolved>();
    rank.Done();
    return rank.Finished().status;
  }

  RegistryHarness hub_;
  int commands_ = 0;
};

}  // namespace th

#endif  // TH_REFERENCE_REGISTRY_RETENTION_FIXTURE_H_
