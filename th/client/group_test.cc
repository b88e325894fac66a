// Groups of several ranks, several models and runs, roll-backs, servers that restart, controllers.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::kPatience;
using ::th::testing::Rank;
using ::th::testing::StatusIs;
using ::th::testing::TestServer;
using ::th::testing::TestShard;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

VersionSelector Label(absl::string_view text) { return VersionLabel::Parse(text).value(); }

// The ranks of one group; rank r holds a shard of its own size, so the shards are distinct.
class Group {
 public:
  Group(const TestServer& server, const std::string& name, uint32_t ranks,
        const std::string& model = "model", const std::string& run = "run") {
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      ClientOptions options = Rank(server, name, rank, ranks);
      options.model = model;
      options.run = run;
      Member member{TestShard(10'000 * (rank + 1)), nullptr, {}};
      auto client = Client::Join(options);
      EXPECT_OK(client.status());
      if (!client.ok()) return;
      member.client = *std::move(client);
      auto buffer = member.client->Register(member.shard.tensors);
      EXPECT_OK(buffer.status());
      if (buffer.ok()) member.buffer = *std::move(buffer);
      members_.push_back(std::move(member));
    }
  }

  absl::Status Publish(int64_t step, PublishOptions options = {}) {
    for (Member& member : members_) {
      member.shard.FillWith(step);
      TH_RETURN_IF_ERROR(member.buffer.Publish(step, options));
    }
    for (Member& member : members_) TH_RETURN_IF_ERROR(member.buffer.AwaitPublished().status());
    return absl::OkStatus();
  }
  absl::Status Unpublish() {
    std::vector<absl::Status> results(members_.size());
    OnEachRank([&](size_t rank) { results[rank] = buffer(rank).Unpublish(); });
    for (const absl::Status& result : results) TH_RETURN_IF_ERROR(result);
    return absl::OkStatus();
  }
  std::vector<absl::StatusOr<UpdateResult>> Update(VersionSelector version,
                                                   UpdateOptions options = {}) {
    std::vector<absl::StatusOr<UpdateResult>> results(members_.size(),
                                                      absl::UnknownError("not run"));
    OnEachRank([&](size_t rank) { results[rank] = buffer(rank).Update(version, options); });
    return results;
  }
  bool HaveContentOf(int64_t step) const {
    for (const Member& member : members_) {
      if (!member.shard.HasContentOf(step)) return false;
    }
    return true;
  }
  WeightBuffer& buffer(size_t rank) { return members_[rank].buffer; }
  Client& client(size_t rank) { return *members_[rank].client; }
  void Leave(size_t rank) { members_[rank].client.reset(); }

 private:
  struct Member {
    TestShard shard;
    std::unique_ptr<Client> client;
    WeightBuffer buffer;
  };
  template <typename Body>
  void OnEachRank(Body body) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < members_.size(); ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<Member> members_;
};

// ---- groups

TEST(GroupTest, AllRanksOfAGroupMoveToOneVersion) {
  TestServer server;
  Group trainer(server, "trainer", 2);
  Group rollout(server, "rollout", 2);
  ASSERT_OK(trainer.Publish(5));
  const auto results = rollout.Update(Latest());
  for (const auto& result : results) {
    ASSERT_OK(result.status());
    EXPECT_TRUE(result->moved());
    EXPECT_EQ(result->version(), results[0]->version());
  }
  EXPECT_TRUE(rollout.HaveContentOf(5));
}

TEST(GroupTest, ShardsAreMatchedByTheirLayoutNotByRank) {
  TestServer server;
  Group trainer(server, "trainer", 2);
  ASSERT_OK(trainer.Publish(5));
  TestShard second(20'000);  // what rank 1 of the trainer holds
  ASSERT_OK_AND_ASSIGN(auto client, Client::Join(Rank(server, "single")));
  ASSERT_OK_AND_ASSIGN(WeightBuffer buffer, client->Register(second.tensors));
  ASSERT_OK_AND_ASSIGN(const UpdateResult result, buffer.Update(Latest()));
  EXPECT_EQ(result.sources[0].name, "trainer/1");
  EXPECT_TRUE(second.HasContentOf(5));
}

TEST(GroupTest, AVersionResolvesOnceAllRanksHavePublishedIt) {
  TestServer server;
  Group trainer(server, "trainer", 2);
  Group rollout(server, "rollout", 2);
  ASSERT_OK(trainer.buffer(0).Publish(1));
  const auto early = rollout.Update(Latest());
  ASSERT_OK(early[0].status());
  EXPECT_TRUE(early[0]->not_available());
  ASSERT_OK(trainer.buffer(1).Publish(1));
  ASSERT_OK(trainer.buffer(0).AwaitPublished().status());
  const auto later = rollout.Update(Latest());
  ASSERT_OK(later[0].status());
  EXPECT_TRUE(later[0]->moved());
}

TEST(GroupTest, ARankThatIsMissingAtTheDeadlineIsNamed) {
  TestServer server;
  Group trainer(server, "trainer", 2);
  ASSERT_OK(trainer.Publish(1));
  Group rollout(server, "rollout", 2);
  const auto result = rollout.buffer(0).Update(Latest(), {.timeout = absl::Milliseconds(500)});
  EXPECT_THAT(result, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(Message(result.status()), HasSubstr("rollout/1"));
}

TEST(GroupTest, APublishWithoutAllRanksFailsAndTheBufferCanBeTakenBack) {
  TestServer server;
  Group trainer(server, "trainer", 2);
  ASSERT_OK(trainer.buffer(0).Publish(1, {.timeout = absl::Milliseconds(300)}));
  const auto published = trainer.buffer(0).AwaitPublished();
  EXPECT_FALSE(published.ok());
  EXPECT_THAT(Message(published.status()), HasSubstr("trainer/1"));
}

TEST(GroupTest, OneProcessHoldsSeveralModelsAndRuns) {
  TestServer server;
  Group policy(server, "trainer", 1, "policy");
  Group reward(server, "trainer", 1, "reward");
  Group other_run(server, "trainer", 1, "policy", "other");
  ASSERT_OK(policy.Publish(1));
  ASSERT_OK(reward.Publish(2));
  Group reader(server, "rollout", 1, "reward");
  Group stranger(server, "rollout", 1, "policy", "other");
  const auto got = reader.Update(Latest());
  ASSERT_OK(got[0].status());
  EXPECT_EQ(got[0]->version().label.text(), "2");
  const auto nothing = stranger.Update(Latest());
  ASSERT_OK(nothing[0].status());
  EXPECT_TRUE(nothing[0]->not_available());
}

TEST(GroupTest, FormsAreKeptApart) {
  TestServer server;
  ASSERT_OK_AND_ASSIGN(auto trainer, Client::Join(Rank(server, "trainer")));
  ASSERT_OK_AND_ASSIGN(auto rollout, Client::Join(Rank(server, "rollout")));
  TestShard source, target;
  ASSERT_OK_AND_ASSIGN(WeightBuffer hf, trainer->Register(source.tensors));
  ASSERT_OK_AND_ASSIGN(WeightBuffer fused,
                       rollout->Register(target.tensors, {.form = "vllm-fused"}));
  ASSERT_OK(hf.Publish(1));
  ASSERT_OK(hf.AwaitPublished().status());
  const auto result = fused.Update(Latest(), {.timeout = absl::Seconds(5)});
  ASSERT_OK(result.status());
  EXPECT_TRUE(result->not_available());
}

class DerivedFormTest : public ::testing::Test {
 protected:
  // A trainer's version 7 in form "hf", and a group that received it and holds a fused form too.
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(trainer_, Client::Join(Rank(server_, "trainer")));
    ASSERT_OK_AND_ASSIGN(published_, trainer_->Register(source_.tensors));
    ASSERT_OK_AND_ASSIGN(engine_, Client::Join(Rank(server_, "engine")));
    ASSERT_OK_AND_ASSIGN(received_, engine_->Register(target_.tensors));
    ASSERT_OK_AND_ASSIGN(
        fused_, engine_->Register(fused_shard_.tensors, {.name = "fused", .form = "vllm-fused"}));
    ASSERT_OK(published_.Publish(7));
    ASSERT_OK(published_.AwaitPublished().status());
    fused_shard_.FillWith(70);
  }

  absl::StatusOr<AwaitedForm> AwaitForm(Client& client, absl::Duration timeout = kPatience) {
    return client.AwaitForm(Latest(), "vllm-fused", timeout);
  }

  // A claim lasts half of kPatience, so that none ends by itself within this.
  static constexpr absl::Duration kBelowTheClaim = absl::Seconds(5);

  TestServer server_;
  TestShard source_, target_, fused_shard_{40'000};
  std::unique_ptr<Client> trainer_, engine_;
  WeightBuffer published_, received_, fused_;
};

TEST_F(DerivedFormTest, AHolderPublishesAnotherFormOfWhatItReceived) {
  ASSERT_OK_AND_ASSIGN(const UpdateResult received, received_.Update(Latest()));
  ASSERT_TRUE(received.moved());
  ASSERT_OK(fused_.Publish(7, {.derived_from = received.version().sequence}));
  ASSERT_OK_AND_ASSIGN(const PublishResult derived, fused_.AwaitPublished());
  EXPECT_EQ(derived.version.sequence, received.version().sequence);

  TestShard reader_shard{40'000};
  ASSERT_OK_AND_ASSIGN(auto reader, Client::Join(Rank(server_, "reader")));
  ASSERT_OK_AND_ASSIGN(WeightBuffer buffer,
                       reader->Register(reader_shard.tensors, {.form = "vllm-fused"}));
  ASSERT_OK_AND_ASSIGN(const UpdateResult moved, buffer.Update(Latest()));
  EXPECT_TRUE(moved.moved());
  EXPECT_EQ(moved.version().sequence, received.version().sequence);
  ASSERT_EQ(moved.sources.size(), 1u);
  EXPECT_EQ(moved.sources[0].name, "engine/0");
  EXPECT_TRUE(reader_shard.HasContentOf(70));
}

TEST_F(DerivedFormTest, AFormOfWhatTheGroupDoesNotHoldIsThatVersionsToo) {
  ASSERT_OK_AND_ASSIGN(const PublishResult published, published_.AwaitPublished());
  ASSERT_OK(fused_.Publish(7, {.derived_from = published.version.sequence}));
  ASSERT_OK_AND_ASSIGN(const PublishResult derived, fused_.AwaitPublished());
  EXPECT_EQ(derived.version.sequence, published.version.sequence);
}

TEST_F(DerivedFormTest, OneGroupMakesAFormAndTheOtherWaitsForIt) {
  ASSERT_OK_AND_ASSIGN(const AwaitedForm chosen, AwaitForm(*engine_));
  EXPECT_TRUE(chosen.make);
  EXPECT_EQ(chosen.version.label.text(), "7");
  ASSERT_OK_AND_ASSIGN(auto other, Client::Join(Rank(server_, "other")));
  EXPECT_THAT(AwaitForm(*other, absl::Milliseconds(100)).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("group engine makes it")));
  absl::StatusOr<AwaitedForm> waited;
  std::thread waiting([&] { waited = AwaitForm(*other); });
  EXPECT_OK(fused_.Publish(7, {.derived_from = chosen.version.sequence}));
  waiting.join();
  ASSERT_OK(waited.status());
  EXPECT_FALSE(waited->make);
  EXPECT_EQ(waited->version.sequence, chosen.version.sequence);
}

TEST_F(DerivedFormTest, AGroupThatGivesAFormBackLeavesItToTheNext) {
  ASSERT_OK_AND_ASSIGN(auto other, Client::Join(Rank(server_, "other")));
  ASSERT_OK_AND_ASSIGN(const AwaitedForm chosen, AwaitForm(*engine_));
  EXPECT_TRUE(chosen.make);
  ASSERT_OK(AwaitForm(*engine_, absl::ZeroDuration()).status());
  ASSERT_OK_AND_ASSIGN(const AwaitedForm next, AwaitForm(*other, kBelowTheClaim));
  EXPECT_TRUE(next.make);
}

TEST_F(DerivedFormTest, AGroupThatLeavesLeavesTheFormToTheNext) {
  ASSERT_OK_AND_ASSIGN(auto other, Client::Join(Rank(server_, "other")));
  ASSERT_OK_AND_ASSIGN(const AwaitedForm chosen, AwaitForm(*engine_));
  EXPECT_TRUE(chosen.make);
  ASSERT_OK(engine_->Leave());
  ASSERT_OK_AND_ASSIGN(const AwaitedForm next, AwaitForm(*other, kBelowTheClaim));
  EXPECT_TRUE(next.make);
  EXPECT_FALSE(AwaitForm(*engine_).ok());
}

TEST_F(DerivedFormTest, WhoWaitsForAFormWaitsThroughARestartOfTheServer) {
  ASSERT_OK_AND_ASSIGN(auto other, Client::Join(Rank(server_, "other")));
  ASSERT_OK_AND_ASSIGN(const AwaitedForm chosen, AwaitForm(*engine_));
  absl::StatusOr<AwaitedForm> waited;
  std::thread waiting([&] { waited = AwaitForm(*other); });
  server_.Stop();
  server_.Start();
  waiting.join();
  ASSERT_OK(waited.status());
  EXPECT_TRUE(waited->make) << "the server has forgotten whom it chose";
  EXPECT_EQ(waited->version.label, chosen.version.label);
}

TEST_F(DerivedFormTest, WhatIsNoFormIsRefused) {
  EXPECT_THAT(engine_->AwaitForm(Latest(), "", kPatience).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("form")));
}

// ---- several buffers of one membership

TEST(SeveralBuffersTest, TwoBuffersPublishAndUpdateAtOnce) {
  TestServer server;
  ASSERT_OK_AND_ASSIGN(auto trainer, Client::Join(Rank(server, "trainer")));
  ASSERT_OK_AND_ASSIGN(auto rollout, Client::Join(Rank(server, "rollout")));
  TestShard base(900'000), draft(500'000), got_base(900'000), got_draft(500'000);
  base.FillWith(1);
  draft.FillWith(2);
  const RegisterOptions as_draft{.name = "draft", .form = "draft"};
  ASSERT_OK_AND_ASSIGN(WeightBuffer base_out, trainer->Register(base.tensors));
  ASSERT_OK_AND_ASSIGN(WeightBuffer draft_out, trainer->Register(draft.tensors, as_draft));
  ASSERT_OK_AND_ASSIGN(WeightBuffer base_in, rollout->Register(got_base.tensors));
  ASSERT_OK_AND_ASSIGN(WeightBuffer draft_in, rollout->Register(got_draft.tensors, as_draft));
  ASSERT_OK(base_out.Publish(1));
  ASSERT_OK(draft_out.Publish("draft-1"));
  ASSERT_OK(base_out.AwaitPublished().status());
  ASSERT_OK(draft_out.AwaitPublished().status());

  absl::Notification done;
  absl::StatusOr<UpdateResult> of_base = absl::UnknownError("not yet");
  base_in.UpdateAsync(Label("1"), {}, [&](absl::StatusOr<UpdateResult> updated) {
    of_base = std::move(updated);
    done.Notify();
  });
  ASSERT_OK_AND_ASSIGN(const UpdateResult of_draft, draft_in.Update(Label("draft-1")));
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
  ASSERT_OK(of_base.status());
  EXPECT_TRUE(of_base->moved());
  EXPECT_TRUE(of_draft.moved());
  EXPECT_TRUE(got_base.HasContentOf(1));
  EXPECT_TRUE(got_draft.HasContentOf(2));
}

// ---- roll-back

TEST(GroupTest, AfterARollBackReadersMoveBackAndLabelsAreFree) {
  TestServer server;
  Group trainer(server, "trainer", 1);
  Group keeper(server, "keeper", 1);
  Group rollout(server, "rollout", 1);
  ASSERT_OK(trainer.Publish(1));
  ASSERT_OK(keeper.Update(Latest())[0].status());
  ASSERT_OK(trainer.Unpublish());
  ASSERT_OK(trainer.Publish(2));
  ASSERT_OK(rollout.Update(Latest())[0].status());
  ASSERT_OK(trainer.Unpublish());
  ASSERT_OK_AND_ASSIGN(const VersionInfo to, trainer.client(0).RollBack(Label("1")));
  EXPECT_EQ(to.label.text(), "1");
  const auto back = rollout.Update(Latest());
  ASSERT_OK(back[0].status());
  EXPECT_TRUE(back[0]->moved());
  EXPECT_EQ(back[0]->version().label.text(), "1");
  EXPECT_TRUE(rollout.HaveContentOf(1));
  EXPECT_OK(trainer.Publish(2));
}

TEST(GroupTest, ARollBackUnderOneKeyIsDoneOnce) {
  TestServer server;
  Group trainer(server, "trainer", 1);
  ASSERT_OK(trainer.Publish(1));
  ASSERT_OK_AND_ASSIGN(const VersionInfo first, trainer.client(0).RollBack(Label("1"), "key-1"));
  ASSERT_OK_AND_ASSIGN(const VersionInfo again, trainer.client(0).RollBack(Label("1"), "key-1"));
  EXPECT_EQ(first, again);
}

TEST(GroupTest, ARollBackToNothingIsRefused) {
  TestServer server;
  Group trainer(server, "trainer", 1);
  EXPECT_THAT(trainer.client(0).RollBack(Label("never")), StatusIs(absl::StatusCode::kNotFound));
}

// ---- a server that restarts

TEST(GroupTest, ATransferEndsUndisturbedWhileTheServerRestarts) {
  TestServer server;
  constexpr uint64_t kUplink = 8'000'000;
  ClientOptions publisher = Rank(server, "trainer");
  publisher.uplink_bytes_per_second = kUplink;
  publisher.transports = {"tcp"};  // which the cap holds back
  ClientOptions reader = Rank(server, "rollout");
  reader.uplink_bytes_per_second = kUplink;
  reader.transports = {"tcp"};  // which the cap holds back
  TestShard source(16'000'000), target(16'000'000);
  ASSERT_OK_AND_ASSIGN(auto trainer, Client::Join(publisher));
  ASSERT_OK_AND_ASSIGN(auto rollout, Client::Join(reader));
  ASSERT_OK_AND_ASSIGN(WeightBuffer published, trainer->Register(source.tensors));
  ASSERT_OK_AND_ASSIGN(WeightBuffer buffer, rollout->Register(target.tensors));
  source.FillWith(3);
  ASSERT_OK(published.Publish(1));
  ASSERT_OK(published.AwaitSealed(kPatience));

  absl::Notification under_way, done;
  absl::StatusOr<UpdateResult> result = absl::UnknownError("not yet");
  UpdateOptions options;
  options.on_progress = [&](const UpdateProgress& progress) {
    if (progress.bytes_received > 0 && !under_way.HasBeenNotified()) under_way.Notify();
  };
  buffer.UpdateAsync(Latest(), options, [&](absl::StatusOr<UpdateResult> updated) {
    result = std::move(updated);
    done.Notify();
  });
  ASSERT_TRUE(under_way.WaitForNotificationWithTimeout(kPatience));
  server.Stop();
  server.Start();
  const absl::Time restarted = MonotonicNow();
  reader.group = "late";  // a new operation, while the transfer goes on
  TestShard late_shard(1000);
  ASSERT_OK_AND_ASSIGN(auto late, Client::Join(reader));
  ASSERT_OK_AND_ASSIGN(WeightBuffer late_buffer,
                       late->Register(late_shard.tensors, {.name = "other"}));
  ASSERT_OK_AND_ASSIGN(const UpdateResult late_result, late_buffer.Update(Label("never")));
  EXPECT_TRUE(late_result.not_available());
  EXPECT_LT(MonotonicNow() - restarted, absl::Seconds(3));
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
  ASSERT_OK(result.status());
  EXPECT_TRUE(result->moved());
  EXPECT_EQ(result->reroutes, 0u);
  EXPECT_EQ(result->sources.size(), 1u);
  EXPECT_TRUE(target.HasContentOf(3));
  EXPECT_OK(trainer->membership());
  EXPECT_OK(rollout->membership());
}

TEST(GroupTest, AfterARestartTheServerKnowsAgainWhoHoldsWhat) {
  TestServer server;
  Group trainer(server, "trainer", 2);
  Group rollout(server, "rollout", 2);
  ASSERT_OK(trainer.Publish(4));
  server.Stop();
  server.Start();
  const absl::Time restarted = MonotonicNow();
  const auto results = rollout.Update(Latest());
  EXPECT_LT(MonotonicNow() - restarted, absl::Seconds(10));
  for (const auto& result : results) {
    ASSERT_OK(result.status());
    EXPECT_TRUE(result->moved()) << static_cast<int>(result->reason);
  }
  EXPECT_TRUE(rollout.HaveContentOf(4));
}

TEST(GroupTest, AVersionThatNobodyHoldsAfterARestartIsLost) {
  TestServer server;
  Group trainer(server, "trainer", 1);
  Group rollout(server, "rollout", 1);
  ASSERT_OK(trainer.Publish(4));
  server.Stop();
  trainer.Leave(0);
  server.Start();
  const auto results = rollout.Update(Latest());
  ASSERT_OK(results[0].status());
  EXPECT_TRUE(results[0]->not_available());
  EXPECT_EQ(results[0]->reason, NotAvailableReason::kLost);
}

// ---- controllers

class ControllerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Controller> Connect() {
    auto controller = Controller::Connect({server_.address(), "run", "model"});
    EXPECT_OK(controller.status());
    return controller.ok() ? *std::move(controller) : nullptr;
  }
  TestServer server_;
};

TEST_F(ControllerTest, ListsVersionsAndWhoHoldsThem) {
  Group trainer(server_, "trainer", 2);
  ASSERT_OK(trainer.Publish(1));
  ASSERT_OK_AND_ASSIGN(const Catalog catalog, Connect()->List());
  ASSERT_EQ(catalog.models.size(), 1u);
  EXPECT_EQ(catalog.models[0].key, (ModelKey{"run", "model"}));
  ASSERT_EQ(catalog.models[0].versions.size(), 1u);
  const CatalogVersion& version = catalog.models[0].versions[0];
  EXPECT_EQ(version.info.label.text(), "1");
  EXPECT_TRUE(version.published);
  ASSERT_EQ(version.replicas.size(), 1u);
  EXPECT_EQ(version.replicas[0].ranks.size(), 2u);
}

TEST_F(ControllerTest, ResolvesWhatIsThere) {
  const auto controller = Connect();
  EXPECT_THAT(controller->Resolve(Latest()), StatusIs(absl::StatusCode::kNotFound));
  Group trainer(server_, "trainer", 1);
  ASSERT_OK(trainer.Publish(8));
  ASSERT_OK_AND_ASSIGN(const VersionInfo version, controller->Resolve(Latest()));
  EXPECT_EQ(version.label.text(), "8");
}

TEST_F(ControllerTest, WaitsForAVersion) {
  const auto controller = Connect();
  EXPECT_THAT(controller->WaitFor(Label("3"), absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  absl::StatusOr<VersionInfo> waited = absl::UnknownError("not yet");
  std::thread waiting([&] { waited = controller->WaitFor(Label("3"), kPatience); });
  Group trainer(server_, "trainer", 1);
  EXPECT_OK(trainer.Publish(3));
  waiting.join();
  ASSERT_OK(waited.status());
  EXPECT_EQ(waited->label.text(), "3");
}

TEST_F(ControllerTest, PinsRetainsAndReleases) {
  Group trainer(server_, "trainer", 1);
  ASSERT_OK(trainer.Publish(1));
  const auto controller = Connect();
  EXPECT_OK(controller->Retain(3));
  ASSERT_OK_AND_ASSIGN(const VersionInfo pinned, controller->Pin(Latest(), "evaluation"));
  EXPECT_EQ(pinned.label.text(), "1");
  ASSERT_OK_AND_ASSIGN(const Catalog catalog, controller->List());
  EXPECT_EQ(catalog.models[0].keep_latest, 3u);
  EXPECT_EQ(catalog.models[0].versions[0].pins, std::vector<CatalogPin>{{"evaluation"}});
  EXPECT_OK(controller->Release(Latest(), "evaluation"));
}

TEST_F(ControllerTest, RollsBack) {
  Group trainer(server_, "trainer", 1);
  Group keeper(server_, "keeper", 1);
  ASSERT_OK(trainer.Publish(1));
  ASSERT_OK(keeper.Update(Latest())[0].status());
  ASSERT_OK(trainer.Unpublish());
  ASSERT_OK(trainer.Publish(2));
  const auto controller = Connect();
  ASSERT_OK_AND_ASSIGN(const VersionInfo to, controller->RollBack(Label("1")));
  EXPECT_EQ(to.label.text(), "1");
  ASSERT_OK_AND_ASSIGN(const VersionInfo latest, controller->Resolve(Latest()));
  EXPECT_EQ(latest.label.text(), "1");
}

TEST_F(ControllerTest, HandsOutLayouts) {
  Group trainer(server_, "trainer", 1);
  const auto controller = Connect();
  const Digest digest = trainer.buffer(0).layout_digest();
  ASSERT_OK_AND_ASSIGN(const ShardLayout layout, controller->GetLayout(digest));
  EXPECT_EQ(layout.digest(), digest);
  EXPECT_THAT(controller->GetLayout(Sha256("nothing")), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ControllerTest, OutlivesARestartOfTheServer) {
  const auto controller = Connect();
  server_.Stop();
  server_.Start();
  EXPECT_OK(controller->List().status());
}

TEST(ControllerWithoutServerTest, EndsInTimeAndNamesTheAddress) {
  TestServer server;
  const std::string address = server.address();
  server.Stop();
  const absl::Time begin = MonotonicNow();
  const auto controller = Controller::Connect({address, "run", "model", absl::Milliseconds(300)});
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(5));
  EXPECT_THAT(controller, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Message(controller.status()), HasSubstr(address));
}

}  // namespace
}  // namespace th
