#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ListingTest, NamesWhoHoldsAndWhoFillsFromWhom) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  rollout.Fill();
  SegmentSet held;
  held.Add(SegmentIndex(0));
  rollout.Say(FillProgress{rollout.key(), hub.model().high_water, held});
  const Catalog catalog = hub.List();
  EXPECT_EQ(catalog.epoch, hub.epoch());
  const CatalogModel& model = catalog.models.at(0);
  EXPECT_EQ(model.key, TestModel());
  EXPECT_EQ(model.high_water, hub.model().high_water);
  const CatalogVersion& version = model.versions.at(0);
  EXPECT_TRUE(version.published);
  EXPECT_TRUE(version.sealed);
  EXPECT_FALSE(version.withdrawn);
  EXPECT_EQ(version.bytes, trainer.layout.bytes());
  EXPECT_EQ(version.shards.size(), 1u);
  ASSERT_EQ(version.replicas.size(), 2u);
  const CatalogReplica& filling = version.replicas[0];
  EXPECT_EQ(filling.group, "rollout");
  EXPECT_EQ(filling.state, "filling");
  EXPECT_FALSE(filling.publisher);
  EXPECT_EQ(filling.ranks.at(0).bytes_held, rollout.layout.bytes() / 4);
  EXPECT_THAT(filling.ranks.at(0).sources, ElementsAre(trainer.name));
  const CatalogReplica& published = version.replicas[1];
  EXPECT_EQ(published.state, "published");
  EXPECT_TRUE(published.publisher);
  EXPECT_EQ(published.ranks.at(0).readers, 1u);
  EXPECT_EQ(published.ranks.at(0).bytes_held, trainer.layout.bytes());
}

TEST(ListingTest, AReplicaGoesThroughItsStates) {
  RegistryHarness hub;
  std::vector<TestRank> trainer = JoinedGroup(hub, "trainer", 2);
  EXPECT_EQ(hub.List().models.at(0).idle.at(0).state, "idle");
  const auto state = [&] { return hub.List().models.at(0).versions.at(0).replicas.at(0).state; };
  trainer[0].Publish("step-1");
  EXPECT_EQ(state(), "publishing");
  trainer[1].Publish("step-1");
  EXPECT_EQ(state(), "published");
  trainer[0].Unpublish();
  EXPECT_EQ(state(), "draining");
}

TEST(ListingTest, AReceivedVersionIsComplete) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  TestRank rollout = Rollout(hub, "rollout");
  rollout.Update();
  rollout.FillWhole();
  EXPECT_EQ(hub.List().models.at(0).versions.at(0).replicas.at(0).state, "complete");
}

TEST(ListingTest, NewestFirstAndWithdrawnMarked) {
  RegistryHarness hub;
  TestRank first = Trainer(hub, "step-1");
  TestRank second(hub, "trainer-2", 0, 1);
  second.JoinAndRegister();
  second.Publish("step-2");
  second.Finished();
  RunCommand roll_back{.idempotency_key = "k"};
  roll_back.command = RollBack{.to = VersionSequence::Of(hub.epoch(), 1)};
  ASSERT_OK(hub.Command(roll_back).status);
  const std::vector<CatalogVersion> versions = hub.List().models.at(0).versions;
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_EQ(versions[0].info.label.text(), "step-2");
  EXPECT_TRUE(versions[0].withdrawn);
  EXPECT_FALSE(versions[1].withdrawn);
}

TEST(ListingTest, APinOutlivesTheVersionThatNobodyAnnouncesAfterARestart) {
  RegistryHarness hub;
  {
    TestRank trainer = Trainer(hub, "step-1");
    ASSERT_OK(hub.Command({"pin", PinVersion{*VersionLabel::Parse("step-1"), "eval"}}).status);
    TestRank second(hub, "trainer-2", 0, 1);
    second.JoinAndRegister();
    second.Publish("step-2");
  }
  hub.Restart();
  const auto listed = [&] { return hub.List().models.at(0).versions; };
  EXPECT_EQ(listed().size(), 1u) << "a holder may still come back";
  EXPECT_TRUE(hub.List().recovering);
  hub.Advance(RegistryLimits().lease);
  EXPECT_FALSE(hub.List().recovering);
  const std::vector<CatalogVersion> versions = listed();
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_EQ(versions[0].info.label.text(), "step-2");
  EXPECT_EQ(versions[1].info.sequence, VersionSequence::Of(Epoch(1), 1));
  EXPECT_THAT(versions[1].pins, ElementsAre(CatalogPin{"eval"}));
  EXPECT_THAT(versions[1].lost_forms, ElementsAre(""));
  EXPECT_EQ(hub.registry().Figures().at(0).retained_lost, 1u);
  EXPECT_THAT(versions[1].replicas, IsEmpty());
  EXPECT_FALSE(versions[1].published);
  ASSERT_OK(hub.Command({"go", ReleasePin{VersionSequence::Of(Epoch(1), 1), "eval"}}).status);
  EXPECT_EQ(listed().size(), 1u);
  EXPECT_EQ(hub.registry().Figures().at(0).retained_lost, 0u);
}

TEST(ListingTest, MarksWhatARetentionPolicyWasToKeepAndNobodyHas) {
  RegistryHarness hub;
  ASSERT_OK(hub.Command({"keep", SetRetention{.keep_latest = 1}}).status);
  TestRank trainer = Trainer(hub, "step-1");
  const auto lost = [&] { return hub.List().models.at(0).versions.at(0).lost_forms; };
  const auto count = [&] { return hub.registry().Figures().at(0).retained_lost; };
  EXPECT_THAT(lost(), IsEmpty());
  EXPECT_EQ(count(), 0u);
  trainer.Unpublish();
  trainer.Done();
  EXPECT_THAT(lost(), ElementsAre(kDefaultForm));
  EXPECT_EQ(count(), 1u);
  TestRank again(hub, "trainer-2", 0, 1);
  again.JoinAndRegister();
  again.Publish("step-2");
  again.Finished();
  const std::vector<CatalogVersion> versions = hub.List().models.at(0).versions;
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_THAT(versions[0].lost_forms, IsEmpty());
  EXPECT_THAT(versions[1].lost_forms, IsEmpty()) << "a newer one is kept in its place";
  EXPECT_EQ(count(), 0u);
}

TEST(ListingTest, MarksTheFormThatIsLost) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  ASSERT_OK(hub.Command({"pin", PinVersion{LatestVersion{}, "eval"}}).status);
  TestRank derived = trainer;  // another buffer of the same rank
  derived.buffer = BufferId(2);
  derived.buffer_name = derived.form = "fp8";
  derived.layout = LayoutNamed("q");
  derived.number = OperationNumber();
  ASSERT_OK(derived.Register());
  StartOperation publish = derived.PublishRequest("step-1");
  publish.derived_from = hub.model().high_water;
  derived.Start(publish);
  ASSERT_OK(derived.Finished().status);
  derived.Unpublish();
  derived.Done();
  EXPECT_THAT(hub.List().models.at(0).versions.at(0).lost_forms, ElementsAre("fp8"));
}

TEST(ListingTest, NothingIsLostWhileItsHolderMayComeBackAfterARestart) {
  RegistryHarness hub;
  ASSERT_OK(hub.Command({"keep", SetRetention{.keep_latest = 1}}).status);
  { TestRank trainer = Trainer(hub, "step-1"); }
  hub.Restart();
  const auto lost = [&] { return hub.List().models.at(0).versions.at(0).lost_forms; };
  hub.Advance(RegistryLimits().recovery_window);
  EXPECT_THAT(lost(), IsEmpty());
  hub.Advance(RegistryLimits().lease);
  EXPECT_THAT(lost(), ElementsAre("")) << "its number and label are all that is known";
}

TEST(ListingTest, TellsWhenAPinExpires) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  ASSERT_OK(hub.Command({"pin", PinVersion{LatestVersion{}, "eval", absl::Seconds(60)}}).status);
  hub.Advance(absl::Seconds(1));
  EXPECT_THAT(hub.List().models.at(0).versions.at(0).pins,
              ElementsAre(CatalogPin{"eval", "", absl::Seconds(59)}));
}

TEST(ListingTest, FiltersByRunAndModel) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  EXPECT_THAT(hub.registry().List("other", "", hub.now()).models, IsEmpty());
  EXPECT_THAT(hub.registry().List("", "other", hub.now()).models, IsEmpty());
  EXPECT_EQ(hub.registry().List("r1", "qwen3", hub.now()).models.size(), 1u);
}

TEST(ListingTest, SaysHowLongARankHasBeenSilentAndWhetherItsStreamIsUp) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  trainer.Disconnect();
  hub.Advance(absl::Seconds(2));
  const CatalogRank rank = hub.List().models.at(0).versions.at(0).replicas.at(0).ranks.at(0);
  EXPECT_FALSE(rank.connected);
  EXPECT_EQ(rank.since_heard, absl::Seconds(2));
}

}  // namespace
}  // namespace th
