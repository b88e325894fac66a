#include "th/transfer/segment_store.h"

#include <atomic>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/transfer/test_peers.h"

namespace th::testing {
namespace {

using Readiness = SegmentStore::Readiness;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SegmentStoreTest : public ::testing::Test {
 protected:
  SegmentStoreTest() { shard_.FillWith(3); }
  SegmentStore& store() { return *shard_.store(); }
  SegmentIndex last() const { return SegmentIndex(shard_.segment_count() - 1); }

  static SegmentRange Only(uint64_t segment) {
    return {SegmentIndex(segment), SegmentIndex(segment + 1)};
  }
  static RequestQueue Asked(const std::vector<SegmentRange>& ranges) {
    RequestQueue asked;
    for (const SegmentRange& range : ranges) asked.Push(range);
    return asked;
  }

  TestShard shard_{TestShard::Spec{}};
  std::atomic<bool> never_{false};
};

TEST_F(SegmentStoreTest, NothingIsServedBeforeItIsPublished) {
  EXPECT_EQ(store().ReadinessOf(SegmentIndex(0)), Readiness::kClosed);
  EXPECT_EQ(store().NotifyWhenReady(Asked({Only(0)}), [] { ADD_FAILURE(); }), 0);
}

TEST_F(SegmentStoreTest, PublishedStoreServesEverythingBeforeItIsSealed) {
  store().Publish(BufferGeneration(4));
  EXPECT_EQ(store().generation(), BufferGeneration(4));
  EXPECT_EQ(store().ReadinessOf(last()), Readiness::kReady);
  EXPECT_EQ(store().ChecksumOf(last()), shard_.ChecksumOf(last()));
  EXPECT_EQ(store().held(), SegmentSet::AllOf(shard_.segment_count()));
}

TEST_F(SegmentStoreTest, SealReturnsTheRootOfTheSums) {
  store().Publish(BufferGeneration(1));
  EXPECT_THAT(store().Seal(never_), IsOkAndHolds(shard_.Root()));
  EXPECT_EQ(store().checksums()[last().value], shard_.ChecksumOf(last()));
}

TEST_F(SegmentStoreTest, SumsOfAnEarlierPublicationAreForgotten) {
  store().Publish(BufferGeneration(1));
  ASSERT_OK(store().Seal(never_).status());
  store().Close(BufferGeneration(99));
  shard_.FillWith(4);
  store().Publish(BufferGeneration(2));
  EXPECT_THAT(store().Seal(never_), IsOkAndHolds(shard_.Root()));
}

TEST_F(SegmentStoreTest, SumsStandWhenTheSameContentIsServedUnderAnotherGeneration) {
  store().Publish(BufferGeneration(1));
  ASSERT_OK(store().Seal(never_).status());
  const std::vector<SegmentChecksum> published = store().checksums();
  shard_.Corrupt(SegmentIndex(0));  // memory that has gone bad must not get a sum of its own
  store().Republish(BufferGeneration(2));
  EXPECT_EQ(store().generation(), BufferGeneration(2));
  EXPECT_EQ(store().checksums(), published);
  EXPECT_EQ(store().ChecksumOf(SegmentIndex(0)), published[0]);
  EXPECT_EQ(store().held(), SegmentSet::AllOf(shard_.segment_count()));
}

TEST_F(SegmentStoreTest, SumsStandAfterAFillOfOtherContentThatWroteNothing) {
  store().Publish(BufferGeneration(1));
  ASSERT_OK(store().Seal(never_).status());
  const std::vector<SegmentChecksum> published = store().checksums();
  shard_.Corrupt(SegmentIndex(0));
  store().BeginFill(BufferGeneration(2), {});
  EXPECT_EQ(store().checksums()[0], 0) << "nothing of it is held now";
  store().Republish(BufferGeneration(3));
  EXPECT_EQ(store().checksums(), published);
}

// The checked segments of an unfinished version survive a fruitless fill of another one.
TEST_F(SegmentStoreTest, SumsOfCheckedSegmentsStandAfterAFillOfOtherContentThatWroteNothing) {
  store().BeginFill(BufferGeneration(1), {});
  store().MarkHeld(SegmentIndex(2), 77);
  const SegmentSet checked = store().held();
  store().BeginFill(BufferGeneration(2), {});
  store().BeginFill(BufferGeneration(3), checked);
  EXPECT_EQ(store().checksums()[2], 77);
  EXPECT_EQ(store().held(), checked);
}

// The word is seen to rise while Close still waits for what is being summed or for its waiters.
TEST_F(SegmentStoreTest, GenerationWordRisesBeforeAnybodyHearsOfTheClose) {
  store().BeginFill(BufferGeneration(1), {});
  BufferGeneration seen;
  store().NotifyWhenReady(Asked({Only(1)}), [&] { seen = store().generation(); });
  store().Close(BufferGeneration(2));
  EXPECT_EQ(seen, BufferGeneration(2));
  EXPECT_EQ(store().generation(), BufferGeneration(2));
}

TEST_F(SegmentStoreTest, GenerationWordRisesWhenAFillBegins) {
  store().Publish(BufferGeneration(1));
  store().BeginFill(BufferGeneration(2), SegmentSet::AllOf(shard_.segment_count()));
  EXPECT_EQ(store().generation(), BufferGeneration(2));
}

// A store of many segments takes milliseconds to clear, so that a reader on another thread looks
// in between.
TEST(SegmentStoreGenerationTest, WhoSeesTheGenerationOfAFillSeesNothingOfTheContentBefore) {
  TensorSpec tensor;
  tensor.name = "w";
  tensor.dtype = DType::kU8;
  tensor.shape = {int64_t{1} << 32};
  ShardLayout::Spec spec;
  spec.tensors = {tensor};
  spec.segment_bytes = kMinSegmentBytes;
  ASSERT_OK_AND_ASSIGN(ShardLayout layout, ShardLayout::Build(std::move(spec)));
  // No byte of it is touched.
  SegmentStore store(std::make_shared<const ShardLayout>(std::move(layout)), std::vector<void*>());
  const SegmentIndex last(store.layout().segment_count() - 1);
  for (uint64_t round = 1; round <= 20; ++round) {
    const BufferGeneration published(2 * round), filled(2 * round + 1);
    store.Publish(published);
    Readiness seen = Readiness::kReady;
    std::thread reader([&] {
      while (store.generation() != filled) std::this_thread::yield();
      seen = store.ReadinessOf(last);
    });
    store.BeginFill(filled, {});
    reader.join();
    EXPECT_NE(seen, Readiness::kReady) << "round " << round;
  }
}

TEST_F(SegmentStoreTest, SealOfAStoreWithoutChecksumsHasAnEmptyRoot) {
  TestShard shard(TestShard::Spec{.checksum = ChecksumAlgorithm::kNone});
  shard.store()->Publish(BufferGeneration(1));
  EXPECT_THAT(shard.store()->Seal(never_), IsOkAndHolds(Digest{}));
  EXPECT_EQ(shard.store()->ChecksumOf(SegmentIndex(0)), 0);
}

TEST_F(SegmentStoreTest, SealStopsWhenTold) {
  store().Publish(BufferGeneration(1));
  std::atomic<bool> stop{true};
  EXPECT_THAT(store().Seal(stop).status(), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(SegmentStoreTest, SealOfAClosedStoreIsCancelled) {
  store().Publish(BufferGeneration(1));
  store().Close(BufferGeneration(99));
  EXPECT_THAT(store().Seal(never_).status(), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(SegmentStoreTest, SealOfAnUnfinishedFillNamesTheMissingSegment) {
  store().BeginFill(BufferGeneration(1), {});
  store().MarkHeld(SegmentIndex(0), 1);
  EXPECT_THAT(store().Seal(never_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("segment 1")));
}

// Once Close has returned the owner may write: what was sealed all the same is what was there
// before. (The sanitizers watch this test too.)
TEST_F(SegmentStoreTest, NothingIsSummedAfterTheClose) {
  for (uint64_t publication = 1; publication <= 100; ++publication) {
    store().Publish(BufferGeneration(2 * publication));
    const Digest published = shard_.Root();
    absl::StatusOr<Digest> sealed;
    std::thread sealer([&] { sealed = store().Seal(never_); });
    store().Close(BufferGeneration(2 * publication + 1));
    shard_.FillWith(publication);
    sealer.join();
    if (sealed.ok()) {
      EXPECT_EQ(*sealed, published);
    } else {
      EXPECT_THAT(sealed.status(), StatusIs(absl::StatusCode::kCancelled));
    }
  }
}

TEST_F(SegmentStoreTest, FillServesOnlyWhatHasArrived) {
  store().BeginFill(BufferGeneration(1), {});
  EXPECT_EQ(store().ReadinessOf(SegmentIndex(2)), Readiness::kNotYet);
  store().MarkHeld(SegmentIndex(2), 77);
  EXPECT_EQ(store().ReadinessOf(SegmentIndex(2)), Readiness::kReady);
  EXPECT_EQ(store().ChecksumOf(SegmentIndex(2)), 77);  // as it came, not taken again
  EXPECT_EQ(store().ReadinessOf(SegmentIndex(3)), Readiness::kNotYet);
}

TEST_F(SegmentStoreTest, ResumedFillKeepsTheSumsOfWhatItHolds) {
  store().BeginFill(BufferGeneration(1), {});
  store().MarkHeld(SegmentIndex(2), 77);
  store().MarkHeld(SegmentIndex(3), 78);
  SegmentSet held;
  held.Add(SegmentIndex(2));
  store().BeginFill(BufferGeneration(2), held);
  EXPECT_EQ(store().checksums()[2], 77);
  EXPECT_EQ(store().checksums()[3], 0);
  EXPECT_EQ(store().held(), held);
}

TEST_F(SegmentStoreTest, WaiterIsToldOnceWhenItsSegmentArrives) {
  store().BeginFill(BufferGeneration(1), {});
  int woken = 0;
  EXPECT_NE(store().NotifyWhenReady(Asked({Only(1)}), [&] { ++woken; }), 0);
  store().MarkHeld(SegmentIndex(0), 1);
  EXPECT_EQ(woken, 0);
  store().MarkHeld(SegmentIndex(1), 1);
  store().Close(BufferGeneration(99));
  EXPECT_EQ(woken, 1);
}

TEST_F(SegmentStoreTest, AnyOfTheSegmentsWakesWhoWaitsForThem) {
  store().BeginFill(BufferGeneration(1), SegmentSet::FromRanges({Only(5)}));
  const RequestQueue some =
      Asked({{SegmentIndex(0), SegmentIndex(2)}, {SegmentIndex(3), SegmentIndex(5)}});
  int woken = 0;
  EXPECT_NE(store().NotifyWhenReady(some, [&] { ++woken; }), 0);
  store().MarkHeld(SegmentIndex(2), 1);
  EXPECT_EQ(woken, 0);
  store().MarkHeld(SegmentIndex(4), 1);
  store().MarkHeld(SegmentIndex(0), 1);
  EXPECT_EQ(woken, 1);
  EXPECT_EQ(store().NotifyWhenReady(some, [] { ADD_FAILURE(); }), 0) << "some are there";
}

TEST_F(SegmentStoreTest, OfWhatIsReadyTheLowestIsOfferedWheneverItWasAsked) {
  const RequestQueue asked = Asked({Only(4), {SegmentIndex(0), SegmentIndex(3)}});
  EXPECT_EQ(store().FirstReady(asked), std::nullopt) << "it is closed";
  store().BeginFill(BufferGeneration(1), {});
  store().MarkHeld(SegmentIndex(3), 1);
  EXPECT_EQ(store().FirstReady(asked), std::nullopt);
  store().MarkHeld(SegmentIndex(1), 1);
  EXPECT_EQ(store().FirstReady(asked), SegmentIndex(1));
  store().MarkHeld(SegmentIndex(4), 1);
  EXPECT_EQ(store().FirstReady(asked), SegmentIndex(1));
}

enum class Waker { kClose, kPublish };
class WakerTest : public SegmentStoreTest, public ::testing::WithParamInterface<Waker> {};
TEST_P(WakerTest, WakesWhoWaits) {
  store().BeginFill(BufferGeneration(1), {});
  int woken = 0;
  store().NotifyWhenReady(Asked({Only(1)}), [&] { ++woken; });
  store().NotifyWhenReady(Asked({Only(2)}), [&] { ++woken; });
  if (GetParam() == Waker::kClose) store().Close(BufferGeneration(99));
  if (GetParam() == Waker::kPublish) store().Publish(BufferGeneration(2));
  EXPECT_EQ(woken, 2);
}
INSTANTIATE_TEST_SUITE_P(All, WakerTest, ::testing::Values(Waker::kClose, Waker::kPublish));

TEST_F(SegmentStoreTest, KnownSumsAreThoseOfWhatIsHeld) {
  store().Publish(BufferGeneration(1));
  store().ChecksumOf(SegmentIndex(1));
  const SegmentStore::KnownChecksums known = store().known_checksums();
  EXPECT_EQ(known.of, SegmentSet::FromRanges({Only(1)}));
  EXPECT_EQ(known.checksums[1], shard_.ChecksumOf(SegmentIndex(1)));
  store().BeginFill(BufferGeneration(2), {});
  EXPECT_TRUE(store().known_checksums().of.empty());
}

TEST_F(SegmentStoreTest, SegmentsThatWereHereAreServedWithTheirSums) {
  store().BeginFill(BufferGeneration(1), {});
  int woken = 0;
  store().NotifyWhenReady(Asked({Only(1)}), [&] { ++woken; });
  store().MarkHeld(SegmentSet::FromRanges({{SegmentIndex(1), SegmentIndex(3)}}),
                   std::vector<SegmentChecksum>{5, 6, 7});
  EXPECT_EQ(woken, 1);
  EXPECT_EQ(store().held().ToString(), "[1,3)");
  EXPECT_EQ(store().ChecksumOf(SegmentIndex(2)), 7);
}

TEST_F(SegmentStoreTest, SumsAreToldInOrderAsFarAsTheyAreKnown) {
  store().BeginFill(BufferGeneration(1), {});
  EXPECT_THAT(store().ChecksumsOf(shard_.all(), 100, true), IsEmpty());
  store().SetListed(SegmentIndex(0), std::vector<SegmentChecksum>{1, 2});
  store().MarkHeld(SegmentIndex(2), 3);
  store().MarkHeld(SegmentIndex(4), 5);
  EXPECT_THAT(store().ChecksumsOf(shard_.all(), 100, true), ElementsAre(1, 2, 3));
  EXPECT_THAT(store().ChecksumsOf(shard_.all(), 2, true), ElementsAre(1, 2));
  EXPECT_THAT(store().ChecksumsOf({SegmentIndex(1), SegmentIndex(3)}, 100, true),
              ElementsAre(2, 3));
  store().ForgetAll();
  EXPECT_THAT(store().ChecksumsOf(shard_.all(), 100, true), IsEmpty()) << "the list may be wrong";
}

TEST_F(SegmentStoreTest, SumsThatNobodyHasTakenAreTakenOnDemand) {
  store().Publish(BufferGeneration(1));
  EXPECT_THAT(store().ChecksumsOf(shard_.all(), 100, /*compute=*/false), IsEmpty());
  const std::vector<SegmentChecksum> checksums =
      store().ChecksumsOf(shard_.all(), 100, /*compute=*/true);
  ASSERT_EQ(checksums.size(), shard_.segment_count());
  EXPECT_EQ(RootOfChecksums(checksums), shard_.Root());
}

TEST_F(SegmentStoreTest, WhoWaitsForASumIsToldWhenItIsKnown) {
  store().BeginFill(BufferGeneration(1), {});
  int woken = 0;
  EXPECT_NE(store().NotifyWhenReady(
                {}, [&] { ++woken; }, SegmentIndex(1)),
            0);
  store().SetListed(SegmentIndex(0), std::vector<SegmentChecksum>{1});
  EXPECT_EQ(woken, 0);
  store().SetListed(SegmentIndex(1), std::vector<SegmentChecksum>{2});
  EXPECT_EQ(woken, 1);
  EXPECT_NE(store().NotifyWhenReady(
                {}, [&] { ++woken; }, SegmentIndex(3)),
            0);
  store().MarkHeld(SegmentIndex(3), 4);
  EXPECT_EQ(woken, 2);
  EXPECT_EQ(store().NotifyWhenReady(
                {}, [] { ADD_FAILURE(); }, SegmentIndex(3)),
            0);
}

TEST_F(SegmentStoreTest, CancelledWaiterIsNotTold) {
  store().BeginFill(BufferGeneration(1), {});
  const auto wait = store().NotifyWhenReady(Asked({Only(1)}), [] { ADD_FAILURE(); });
  store().CancelNotify(wait);
  store().CancelNotify(wait + 1);  // unknown: nothing
  store().MarkHeld(SegmentIndex(1), 1);
}

TEST_F(SegmentStoreTest, ForgetAllTakesEverythingBackAndGoesOnWaiting) {
  store().BeginFill(BufferGeneration(1), {});
  store().MarkHeld(SegmentIndex(1), 1);
  store().ForgetAll();
  EXPECT_EQ(store().ReadinessOf(SegmentIndex(1)), Readiness::kNotYet);
  EXPECT_TRUE(store().held().empty());
}

// All segments of a fill may be here before its list of sums is known to be the version's.
TEST_F(SegmentStoreTest, WhatAFillHasReceivedIsCompleteOnceTheFillSaysSo) {
  EXPECT_FALSE(store().complete());
  store().Publish(BufferGeneration(1));
  EXPECT_TRUE(store().complete());
  store().BeginFill(BufferGeneration(2), SegmentSet::AllOf(store().layout().segment_count()));
  EXPECT_FALSE(store().complete());
  store().MarkComplete();
  EXPECT_TRUE(store().complete());
  store().ForgetAll();
  EXPECT_FALSE(store().complete());
  store().MarkComplete();
  store().Close(BufferGeneration(3));
  EXPECT_FALSE(store().complete());
}

TEST_F(SegmentStoreTest, RebindIsRefusedWhileAnythingIsServed) {
  store().Publish(BufferGeneration(1));
  std::vector<void*> storages(shard_.layout().storages().size());
  EXPECT_THAT(store().Rebind(storages), StatusIs(absl::StatusCode::kFailedPrecondition));
  store().Close(BufferGeneration(99));
  EXPECT_OK(store().Rebind(storages));
}

TEST_F(SegmentStoreTest, RebindToAnotherNumberOfStoragesIsRefused) {
  EXPECT_THAT(store().Rebind({nullptr}), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(SegmentStoreTest, SegmentBeyondTheShardIsHarmless) {
  store().BeginFill(BufferGeneration(1), {});
  const SegmentIndex beyond(shard_.segment_count());
  store().MarkHeld(beyond, 1);
  EXPECT_EQ(store().ReadinessOf(beyond), Readiness::kNotYet);
  EXPECT_EQ(store().ChecksumOf(beyond), 0);
}

}  // namespace
}  // namespace th::testing
