#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::th::testing::StatusIs;

RunCommand Pin(const std::string& key, const std::string& owner,
               absl::Duration expires_after = absl::InfiniteDuration(),
               const VersionSelector& version = LatestVersion{}) {
  RunCommand command{.idempotency_key = key};
  command.command = PinVersion{.version = version, .owner = owner, .expires_after = expires_after};
  return command;
}

RunCommand Release(const std::string& key, const std::string& owner) {
  RunCommand command{.idempotency_key = key};
  command.command = ReleasePin{.version = LatestVersion{}, .owner = owner};
  return command;
}

RunCommand Keep(const std::string& key, uint32_t keep_latest) {
  RunCommand command{.idempotency_key = key};
  command.command = SetRetention{keep_latest};
  return command;
}

void PublishAndLeave(RegistryHarness& hub) {
  TestRank trainer = Trainer(hub, "step-1");
  trainer.Say(Leave{});
}

// The pins of the newest version of the only model.
std::vector<CatalogPin> ListedPins(RegistryHarness& hub) {
  return hub.List().models.at(0).versions.at(0).pins;
}

TEST(CommandsTest, RetentionIsDurableListedAndTheLastWriterWins) {
  RegistryHarness hub;
  ASSERT_OK(hub.Command(Keep("a", 3)).status);
  ASSERT_OK(hub.Command(Keep("b", 5)).status);
  EXPECT_EQ(hub.model().keep_latest, 5u);
  hub.Restart();
  EXPECT_EQ(hub.List().models.at(0).keep_latest, 5u);
}

TEST(CommandsTest, EventsSayWhoChangedWhatIsKept) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  ASSERT_OK(hub.Command(Keep("keep", 3)).status);
  ASSERT_OK(hub.Command({"keep of form", SetRetention{0, "fp8"}}).status);
  ASSERT_OK(hub.Command(Pin("pin", "eval", absl::Seconds(3))).status);
  trainer.Say(Pin("pin as a rank", "ckpt"));
  trainer.Say(Release("release", "ckpt"));
  trainer.Say(RunCommand{"back", RollBack{LatestVersion{}}});
  PassAlive(hub, {&trainer}, absl::Seconds(6));
  EXPECT_THAT(hub.Log(),
              AllOf(HasSubstr("controller: retention set: the latest 3 are kept"),
                    HasSubstr("retention set: the policy of form=fp8 is removed"),
                    HasSubstr("controller: pinned: step-1"), HasSubstr("trainer: pinned: step-1"),
                    HasSubstr("trainer: pin released: step-1"),
                    HasSubstr("trainer: rolled back: to step-1"),
                    HasSubstr(" for eval: its time has passed")));
}

TEST(CommandsTest, RenewingAPinIsNoEvent) {
  RegistryHarness hub;
  const TestRank trainer = Trainer(hub, "step-1");
  ASSERT_OK(hub.Command(Pin("pin", "eval", absl::Seconds(3))).status);
  ASSERT_OK(hub.Command(Pin("pin longer", "eval", absl::Seconds(5))).status);
  const std::vector<std::string> parts = absl::StrSplit(hub.Log(), " pinned: ");
  EXPECT_EQ(parts.size(), 2u) << hub.Log();
}

TEST(CommandsTest, RetentionCountsPerForm) {
  RegistryHarness hub;
  ASSERT_OK(hub.Command(Keep("a", 3)).status);
  ASSERT_OK(hub.Command({"b", SetRetention{1, "fp8"}}).status);
  ASSERT_OK(hub.Command({"c", SetRetention{9, "int4"}}).status);
  ASSERT_OK(hub.Command({"d", SetRetention{0, "int4"}}).status);
  hub.Restart();
  const CatalogModel listed = hub.List().models.at(0);
  EXPECT_EQ(listed.keep_latest, 3u);
  EXPECT_THAT(listed.keep_latest_of_form, ElementsAre(Pair("fp8", 1u)));
}

TEST(CommandsTest, FormsWithAPolicyAreLimitedAndNamedLikeNames) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  for (int i = 0; i < 64; ++i) {
    const std::string name = absl::StrCat("form-", i);
    ASSERT_OK(hub.Command({name, SetRetention{1, name}}).status);
  }
  EXPECT_THAT(hub.Command({"more", SetRetention{1, "one-more"}}).status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("64 forms")));
  EXPECT_OK(hub.Command({"again", SetRetention{2, "form-7"}}).status);
  EXPECT_THAT(hub.Command({"bad", SetRetention{1, "a\nb"}}).status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("form")));
}

TEST(CommandsTest, AnOwnerHasOnePinOnEachForm) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  ASSERT_OK(hub.Command(Pin("a", "eval")).status);
  RunCommand of_form = Pin("b", "eval");
  std::get<PinVersion>(of_form.command).form = "fp8";
  ASSERT_OK(hub.Command(of_form).status);
  EXPECT_THAT(ListedPins(hub), ElementsAre(CatalogPin{"eval"}, CatalogPin{"eval", "fp8"}));
  ASSERT_OK(hub.Command(Release("c", "eval")).status);
  EXPECT_THAT(ListedPins(hub), ElementsAre(CatalogPin{"eval", "fp8"}));
  EXPECT_THAT(hub.Command(Release("d", "eval")).status, StatusIs(absl::StatusCode::kNotFound));
}

TEST(CommandsTest, APinOnALostVersionIsReleasedByItsNumber) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  const CommandFinished pinned = hub.Command(Pin("a", "eval"));
  ASSERT_OK(pinned.status);
  trainer.Unpublish();
  trainer.Done();
  trainer.Finished();
  trainer.Publish("step-2");  // the mark: step-1 is in nothing but the pin
  ASSERT_OK(trainer.Finished().status);
  hub.Restart();
  hub.Advance(absl::Seconds(10));
  RunCommand release{.idempotency_key = "b"};
  release.command = ReleasePin{pinned.version.sequence, "eval"};
  const CommandFinished released = hub.Command(release);
  EXPECT_OK(released.status);
  EXPECT_EQ(released.version.sequence, pinned.version.sequence);
  EXPECT_THAT(hub.model().pins, IsEmpty());
}

TEST(CommandsTest, TheModelThatWasUsedLeastRecentlyMakesRoom) {
  RegistryLimits limits;
  limits.max_models = 2;
  RegistryHarness hub(limits);
  const auto join = [&](const std::string& run) {
    TestRank rank(hub, "trainer", 0, 1);
    JoinRequest request = rank.Request();
    request.key.run = run;
    EXPECT_TRUE(rank.Join(request));
    return rank;
  };
  // The first has more versions, and so a higher number of its own.
  for (const char* label : {"step-1", "step-2", "step-3"}) Trainer(hub, label).Say(Leave{});
  hub.Advance(absl::Seconds(10));
  TestRank recent = join("recent");
  ASSERT_OK(recent.Register());
  recent.Publish("step-1");
  recent.Say(Leave{});
  hub.Advance(absl::Seconds(10));
  join("next");
  EXPECT_FALSE(hub.durable().models.contains(TestModel()));
  EXPECT_TRUE(hub.durable().models.contains({.run = "recent", .model = "qwen3"}));
}

TEST(CommandsTest, AModelThatNobodyUsesMakesRoomAndOneThatIsRetainedDoesNot) {
  RegistryLimits limits;
  limits.max_models = 2;
  RegistryHarness hub(limits);
  const ModelKey kept{.run = "kept", .model = "m"};
  ASSERT_OK(hub.Command(Keep("a", 1), kept).status);
  PublishAndLeave(hub);
  ASSERT_TRUE(hub.durable().models.contains(TestModel()));
  TestRank next(hub, "trainer", 0, 1);
  JoinRequest request = next.Request();
  request.key.run = "next";
  ASSERT_TRUE(next.Join(request));
  EXPECT_FALSE(hub.durable().models.contains(TestModel())) << "its run has ended";
  EXPECT_TRUE(hub.durable().models.contains(kept));
  EXPECT_THAT(hub.Command(Keep("b", 1)).status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_models is 2")));
}

RunCommand ForgetModel(const std::string& key) {
  return {.idempotency_key = key, .command = Forget{}};
}

RegistryLimits ForgetAfterAnHour() {
  RegistryLimits limits;
  limits.forget_after = absl::Hours(1);
  return limits;
}

TEST(CommandsTest, AModelIsForgottenWithItsPinsOnceItHasNoGroups) {
  RegistryHarness hub;
  EXPECT_THAT(hub.Command(ForgetModel("a")).status, StatusIs(absl::StatusCode::kNotFound));
  VersionSequence first;
  {
    TestRank trainer = Trainer(hub, "step-1");
    first = hub.List().models.at(0).versions.at(0).info.sequence;
    ASSERT_OK(hub.Command(Pin("b", "eval", absl::Hours(1))).status);
    ASSERT_OK(hub.Command(Keep("c", 3)).status);
    EXPECT_THAT(hub.Command(ForgetModel("d")).status,
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("in use by trainer")));
    trainer.Say(Leave{});
  }
  ASSERT_OK(hub.Command(ForgetModel("e")).status);
  EXPECT_THAT(hub.List().models, IsEmpty());
  EXPECT_THAT(hub.durable().models, IsEmpty());
  EXPECT_THAT(hub.Command(ForgetModel("e")).status, StatusIs(absl::StatusCode::kNotFound));
  TestRank trainer = Trainer(hub, "step-1");
  const CatalogVersion again = hub.List().models.at(0).versions.at(0);
  EXPECT_GT(again.info.sequence, first) << "no sequence is used twice";
  EXPECT_THAT(again.pins, IsEmpty());
}

TEST(CommandsTest, NothingIsForgottenWhileRanksMayComeBack) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  hub.Restart();
  EXPECT_THAT(hub.Command(ForgetModel("a")).status, StatusIs(absl::StatusCode::kUnavailable));
  hub.Advance(RegistryLimits().lease + absl::Seconds(1));
  EXPECT_OK(hub.Command(ForgetModel("a")).status);
}

TEST(CommandsTest, AModelThatNobodyHasUsedForLongIsForgotten) {
  RegistryHarness hub(ForgetAfterAnHour());
  const ModelKey kept{.run = "kept", .model = "m"};
  ASSERT_OK(hub.Command(Keep("a", 1), kept).status);
  hub.Advance(absl::Minutes(50));
  PublishAndLeave(hub);
  hub.Advance(absl::Minutes(59));
  EXPECT_EQ(hub.List().models.size(), 2u);
  hub.Advance(absl::Minutes(1));
  ASSERT_EQ(hub.List().models.size(), 1u);
  EXPECT_EQ(hub.List().models.at(0).key, kept) << "it has a retention policy";
  EXPECT_FALSE(hub.durable().models.contains(TestModel()));
  EXPECT_THAT(hub.Log(), HasSubstr("unused for 1h"));
  ASSERT_OK(hub.Command(Keep("b", 0), kept).status);
  hub.Advance(absl::Hours(1));
  EXPECT_THAT(hub.List().models, IsEmpty());
}

TEST(CommandsTest, APinKeepsItsModelFromBeingForgottenUntilItExpires) {
  RegistryHarness hub(ForgetAfterAnHour());
  {
    TestRank trainer = Trainer(hub, "step-1");
    ASSERT_OK(hub.Command(Pin("a", "eval", absl::Hours(3))).status);
    trainer.Say(Leave{});
  }
  hub.Advance(absl::Hours(3) + absl::Minutes(59));
  EXPECT_EQ(hub.List().models.size(), 1u);
  hub.Advance(absl::Minutes(1));
  EXPECT_THAT(hub.List().models, IsEmpty());
}

TEST(CommandsTest, ARestartHasTheTimeOfWhatIsUnusedBeginAgain) {
  RegistryHarness hub(ForgetAfterAnHour());
  PublishAndLeave(hub);
  hub.Advance(absl::Minutes(50));
  hub.Restart();
  hub.Advance(absl::Minutes(59));
  EXPECT_TRUE(hub.durable().models.contains(TestModel()));
  hub.Advance(absl::Minutes(1));
  EXPECT_FALSE(hub.durable().models.contains(TestModel()));
}

TEST(CommandsTest, PinsAreDurableListedAndReleased) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  const CommandFinished pinned = hub.Command(Pin("a", "eval"));
  ASSERT_OK(pinned.status);
  EXPECT_EQ(pinned.version.label.text(), "step-1");
  EXPECT_THAT(ListedPins(hub), ElementsAre(CatalogPin{"eval"}));
  EXPECT_EQ(hub.model().pins.size(), 1u);
  hub.Restart();
  hub.Advance(absl::Seconds(2));
  EXPECT_THAT(ListedPins(hub), ElementsAre(CatalogPin{"eval"}));
  ASSERT_OK(hub.Command(Release("b", "eval")).status);
  EXPECT_THAT(hub.model().pins, IsEmpty());
}

TEST(CommandsTest, APinExpires) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  ASSERT_OK(hub.Command(Pin("a", "eval", absl::Seconds(2))).status);
  ASSERT_OK(hub.Command(Pin("b", "archive", absl::Seconds(2))).status);
  hub.Advance(absl::Seconds(1));
  EXPECT_EQ(hub.model().pins.size(), 2u);
  hub.Advance(absl::Seconds(1));
  EXPECT_THAT(hub.model().pins, IsEmpty());
}

TEST(CommandsTest, APinThatIsReleasedLeavesNoDeadline) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  const auto years = absl::Hours(24) * 365;
  for (int i = 1; i <= 3; ++i) {
    ASSERT_OK(hub.Command(Pin(absl::StrCat("p", i), "eval", years + absl::Hours(i))).status);
    ASSERT_OK(hub.Command(Pin(absl::StrCat("q", i), "archive", years)).status);
    ASSERT_OK(hub.Command(Release(absl::StrCat("r", i), "eval")).status);
    ASSERT_OK(hub.Command(Release(absl::StrCat("s", i), "archive")).status);
    EXPECT_THAT(hub.model().pins, IsEmpty());  // the registry's invariants look at the deadlines
  }
}

TEST(CommandsTest, APinThatIsSetAgainLivesLonger) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  ASSERT_OK(hub.Command(Pin("a", "eval", absl::Seconds(1))).status);
  ASSERT_OK(hub.Command(Pin("b", "eval", absl::Seconds(4))).status);
  hub.Advance(absl::Seconds(3));
  EXPECT_EQ(hub.model().pins.size(), 1u);
  hub.Advance(absl::Seconds(1));
  EXPECT_THAT(hub.model().pins, IsEmpty());
}

TEST(CommandsTest, ARepeatedKeyHasTheFirstOnesResult) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  ASSERT_OK(hub.Command(Keep("same", 3)).status);
  EXPECT_OK(hub.Command(Keep("same", 9)).status);
  EXPECT_EQ(hub.model().keep_latest, 3u);
}

TEST(CommandsTest, AFailureIsRememberedToo) {
  RegistryHarness hub;
  TestRank trainer(hub, "trainer", 0, 1);
  trainer.JoinAndRegister();
  EXPECT_THAT(hub.Command(Pin("a", "eval")).status, StatusIs(absl::StatusCode::kNotFound));
  trainer.Publish("step-1");
  trainer.Finished();
  EXPECT_THAT(hub.Command(Pin("a", "eval")).status, StatusIs(absl::StatusCode::kNotFound));
  EXPECT_OK(hub.Command(Pin("b", "eval")).status);
}

TEST(CommandsTest, KeysAreForgottenOldestFirst) {
  RegistryLimits limits;
  limits.max_commands_remembered = 2;
  RegistryHarness hub(limits);
  for (uint32_t keep : {1u, 2u, 3u}) {
    ASSERT_OK(hub.Command(Keep(absl::StrCat("k", keep), keep)).status);
  }
  ASSERT_OK(hub.Command(Keep("k3", 9)).status);
  EXPECT_EQ(hub.model().keep_latest, 3u);
  ASSERT_OK(hub.Command(Keep("k1", 7)).status);
  EXPECT_EQ(hub.model().keep_latest, 7u) << "the oldest key is forgotten";
}

// Remembered results carry no attributes, of which there may be a megabyte each otherwise.
TEST(CommandsTest, ARepeatHasTheAttributesWhileTheVersionIsKnown) {
  RegistryLimits limits;
  limits.max_versions_per_model = 2;
  RegistryHarness hub(limits);
  TestRank trainer(hub, "trainer", 0, 1);
  trainer.JoinAndRegister();
  StartOperation publish = trainer.PublishRequest("step-1");
  publish.attributes = {{"step", "1"}};
  trainer.Start(publish);
  ASSERT_OK(trainer.Finished().status);
  const VersionInfo pinned = hub.Command(Pin("a", "eval", absl::Seconds(1))).version;
  EXPECT_EQ(pinned.attributes.at("step"), "1");
  EXPECT_EQ(hub.Command(Pin("a", "eval")).version, pinned);
  hub.Advance(absl::Seconds(1));
  for (const char* label : {"step-2", "step-3"}) {
    trainer.Unpublish();
    trainer.Done();
    trainer.Publish(label);
  }
  const CommandFinished again = hub.Command(Pin("a", "eval"));
  EXPECT_OK(again.status);
  EXPECT_EQ(again.version.sequence, pinned.sequence);
  EXPECT_THAT(again.version.attributes, IsEmpty()) << "nobody keeps those of a forgotten version";
}

TEST(CommandsTest, WhileTheServerRecoversTheCallerIsToTryAgain) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  hub.Restart();
  EXPECT_THAT(hub.Command(Pin("a", "eval")).status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("try again")));
  hub.Advance(RegistryLimits().recovery_window);
  EXPECT_OK(hub.Command(Pin("a", "eval")).status) << "what is worth a try is not remembered";
}

TEST(CommandsTest, WorkersRunCommandsToo) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  trainer.Say(Pin("a", "eval"));
  const CommandFinished finished = trainer.Heard<CommandFinished>();
  EXPECT_OK(finished.status);
  EXPECT_EQ(finished.idempotency_key, "a");
}

TEST(CommandsTest, WhatIsMalformedIsRefused) {
  RegistryHarness hub;
  TestRank trainer = Trainer(hub, "step-1");
  EXPECT_THAT(hub.Command(Keep("", 1)).status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 to 128 bytes")));
  EXPECT_THAT(hub.Command(Keep(std::string(129, 'k'), 1)).status,
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(hub.Command(Pin("a", "")).status, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(hub.Command(Pin("b", "eval", absl::ZeroDuration())).status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("would hold nothing")));
  EXPECT_THAT(
      hub.Command(Release("c", "nobody")).status,
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("nobody has no pin on step-1 (#1.1) of "
                                                      "run=r1 model=qwen3; nobody has one")));
  ASSERT_OK(hub.Command(Pin("p", "eval")).status);
  EXPECT_THAT(hub.Command(Release("q", "ops")).status,
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("pinned by eval")));
  EXPECT_THAT(
      hub.Command({"s", PinVersion{.version = *VersionLabel::Parse("step-9"), .owner = "eval"}})
          .status,
      StatusIs(absl::StatusCode::kNotFound,
               HasSubstr("step-9 is not published; the latest is step-1 (#1.1)")));
  EXPECT_THAT(hub.Command(Pin("d", "eval"), {.run = "r9", .model = "m"}).status,
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("run=r9")));
  EXPECT_THAT(hub.Command(Keep("e", 1), {.run = "", .model = "m"}).status,
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CommandsTest, LimitsAreNamed) {
  RegistryLimits limits;
  limits.max_pins_per_model = 1;
  limits.max_models = 1;
  RegistryHarness hub(limits);
  TestRank trainer = Trainer(hub, "step-1");
  ASSERT_OK(hub.Command(Pin("a", "eval")).status);
  EXPECT_OK(hub.Command(Pin("b", "eval")).status) << "its own again";
  EXPECT_THAT(hub.Command(Pin("c", "other")).status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_pins_per_model is 1")));
  EXPECT_THAT(hub.Command(Keep("d", 1), {.run = "r2", .model = "m"}).status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_models is 1")));
}

}  // namespace
}  // namespace th
