// A group with room for one copy wants up to three at once: of what is retained and would go, of
// what it brings into its site, and of what it stages. Whatever the order, and though its stream
// breaks: no more is asked of its memory than it has, nothing retained is lost, and in the end it
// gets where it wants to.
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/protocol/copy_name.h"
#include "th/reference_registry/registry_harness.h"
#include "th/registry_state/state.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::th::testing::StatusIs;

constexpr char kStaged[] = "weights.staged";
constexpr uint64_t kPlenty = uint64_t{1} << 40;

// A group of one rank that does with copies what a session does.
class Member {
 public:
  Member(RegistryHarness& hub, const std::string& group, const std::string& site, uint64_t copies)
      : hub_(hub), rank_(hub, group, 0, 1), room_(copies) {
    rank_.location.site = site;
    EXPECT_TRUE(rank_.Join(Request())) << rank_.refused.status;
    EXPECT_OK(rank_.Register());
  }
  void Publish(const std::string& label) {
    Ask(rank_.PublishRequest(label));
    if (result_.has_value()) rank_.Seal(result_->version.sequence, label);
  }
  void Update(WhenSeeding when) {
    StartOperation request = rank_.UpdateRequest();
    request.keep_retained = true;
    request.when_seeding = when;
    Ask(request);
  }
  void Unpublish() {
    StartOperation request = rank_.UnpublishRequest();
    request.keep_retained = true;
    Ask(request);
  }
  void Stage() {
    if (!staged_.has_value()) {
      staged_ = Another(kStaged);
      AnnouncedBuffer announced = staged_->Announced();
      announced.role = BufferRole::kStaged;
      announced.staged_for = rank_.buffer_name;
      Register(*staged_, announced);
    }
    if (staging_) return;
    staging_ = true;
    staged_->Update();
    React();
  }
  // Its stream breaks, with what was said on it and not read, and it joins as the process it is.
  void ComeBack() {
    rank_.Disconnect();
    JoinRequest request = Request();
    request.resume = rank_.Claim();
    request.buffers = Announcements();
    ASSERT_TRUE(rank_.Join(request)) << rank_.refused.status;
    for (auto& [id, copy] : copies_) copy.rank.connection = rank_.connection;
    if (staged_.has_value()) staged_->connection = rank_.connection;
    AskForResultsAgain();
    React();
  }
  // The same, with memory for so many copies from now on.
  void ComeBackWithRoomFor(uint64_t copies) {
    room_ = copies;
    ComeBack();
  }
  void BeHeard() {
    rank_.Say(Heartbeat{});
    React();
  }
  // Copies are still read: they are not freed.
  void KeepCopies() { keeps_copies_ = true; }
  // Copies that fill slowly are done now.
  void FinishFills() {
    for (auto& [id, copy] : copies_) {
      if (!copy.slow) continue;
      copy.slow = false;
      copy.rank.FillWhole();
    }
    React();
  }
  void FillSlowly(bool slow) { slow_ = slow; }
  bool busy() const { return asked_.has_value(); }
  // The result of its last operation, once that is over.
  const std::optional<OperationFinished>& result() const { return result_; }

  // Answers everything that was heard, as long as there is anything.
  void React() {
    bool more = true;
    while (more) {
      more = false;
      for (const OffloadReleased& released : TakeAll<OffloadReleased>()) {
        more = true;
        if (!keeps_copies_ && copies_.erase(released.buffer) > 0)
          rank_.Say(UnregisterBuffer{released.buffer});
      }
      for (const OperationResolved& resolved : TakeAll<OperationResolved>()) {
        more = true;
        Do(resolved);
      }
      for (const OperationFinished& finished : TakeAll<OperationFinished>()) {
        more = true;
        Take(finished);
      }
    }
  }

 private:
  struct Copy {
    TestRank rank;
    bool slow = false;
    bool seed = false;
    VersionSequence version;
    std::optional<VersionInfo> held;
  };

  template <typename Message>
  std::vector<Message> TakeAll() {
    return hub_.TakeAll<Message>(rank_.connection);
  }
  JoinRequest Request() const {
    JoinRequest request = rank_.Request();
    request.offload_limit_bytes = room_ >= kPlenty ? kPlenty : room_ * rank_.layout.bytes();
    return request;
  }
  static AnnouncedBuffer Announcement(const TestRank& rank, const std::optional<VersionInfo>& held,
                                      bool publisher) {
    if (!held.has_value()) return rank.Announced();
    return rank.Holding(*held, publisher, held->label.text());
  }
  std::vector<AnnouncedBuffer> Announcements() const {
    std::vector<AnnouncedBuffer> announced = {Announcement(rank_, held_, publisher_)};
    announced.back().last_finished = last_finished_;
    for (const auto& [id, copy] : copies_) {
      announced.push_back(Announcement(copy.rank, copy.held, false));
      announced.back().role = copy.seed ? BufferRole::kSiteCopy : BufferRole::kOffload;
    }
    if (!staged_.has_value()) return announced;
    announced.push_back(Announcement(*staged_, staged_held_, false));
    announced.back().role = BufferRole::kStaged;
    announced.back().staged_for = rank_.buffer_name;
    return announced;
  }
  void AskForResultsAgain() {
    if (asked_.has_value() && !offload_.has_value()) {
      StartOperation again = *asked_;
      again.key = rank_.key();
      rank_.Start(again);
    }
    for (auto& [id, copy] : copies_) {
      if (copy.held.has_value()) continue;
      StartOperation again = copy.rank.UpdateRequest(copy.version);
      again.key = copy.rank.key();
      copy.rank.Start(again);
    }
    if (!staging_) return;
    StartOperation again = staged_->UpdateRequest();
    again.key = staged_->key();
    staged_->Start(again);
  }
  void Ask(StartOperation request) {
    ASSERT_FALSE(busy());
    asked_ = request;
    result_.reset();
    rank_.Start(std::move(request));
    React();
  }
  TestRank Another(const std::string& name) {
    TestRank another = rank_;
    another.buffer = BufferId(++last_buffer_);
    another.buffer_name = name;
    another.number = OperationNumber();
    return another;
  }
  void Register(TestRank& copy, const AnnouncedBuffer& announced) {
    rank_.Say(RegisterBuffer{announced});
    EXPECT_OK(copy.Heard<BufferRegistered>().status);
  }
  void MakeCopy(const VersionInfo& version, bool seed) {
    TestRank copy = Another(absl::StrCat("weights.copy-", last_buffer_));
    AnnouncedBuffer announced = copy.Announced();
    announced.role = seed ? BufferRole::kSiteCopy : BufferRole::kOffload;
    Register(copy, announced);
    auto& made = copies_.emplace(copy.buffer, Copy{copy, seed && slow_, seed}).first->second;
    made.version = version.sequence;
    EXPECT_LE(copies_.size(), room_) << hub_.Log();
    made.rank.Update(version.sequence);
  }
  void Do(const OperationResolved& resolved) {
    if (resolved.key.buffer == rank_.buffer) {
      if (asked_.has_value() && asked_->kind == OperationKind::kUnpublish) return rank_.Done();
      return rank_.FillWhole();
    }
    if (staged_.has_value() && resolved.key.buffer == staged_->buffer) return staged_->FillWhole();
    const auto copy = copies_.find(resolved.key.buffer);
    if (copy != copies_.end() && !copy->second.slow) copy->second.rank.FillWhole();
  }
  void Take(const OperationFinished& finished) {
    if (finished.key.buffer == rank_.buffer) return TakeOwn(finished);
    if (staged_.has_value() && finished.key.buffer == staged_->buffer) {
      staging_ = false;
      if (finished.outcome == UpdateOutcome::kMoved) staged_held_ = finished.version;
      return;
    }
    const auto copy = copies_.find(finished.key.buffer);
    const bool held = finished.status.ok() && finished.outcome != UpdateOutcome::kNotAvailable;
    if (copy != copies_.end() && held) copy->second.held = finished.version;
    if (offload_ == finished.key.buffer) {
      offload_.reset();
      EXPECT_OK(finished.status);
      AskAgain();
      return;
    }
    // A copy that came to nothing is unregistered.
    const bool failed = !finished.status.ok() && !keeps_copies_;
    if (failed && copies_.erase(finished.key.buffer) > 0) {
      rank_.Say(UnregisterBuffer{finished.key.buffer});
    }
  }
  void NoteHeld(const OperationFinished& finished) {
    last_finished_ = FinishedOperation{.number = finished.key.number,
                                       .kind = finished.kind,
                                       .status = finished.status,
                                       .outcome = finished.outcome,
                                       .not_available = finished.not_available,
                                       .version = finished.version,
                                       .must_offload = finished.must_offload,
                                       .site_copy = finished.site_copy};
    if (!finished.status.ok() || finished.must_offload) return;
    if (finished.outcome == UpdateOutcome::kNotAvailable) return;
    publisher_ = finished.kind == OperationKind::kPublish ||
                 (publisher_ && finished.outcome == UpdateOutcome::kAlreadyThere);
    held_ = finished.version;
    if (finished.kind == OperationKind::kUnpublish) held_.reset();
  }
  void TakeOwn(const OperationFinished& finished) {
    if (offload_.has_value()) return;  // told again, to who asked again
    NoteHeld(finished);
    if (finished.must_offload && finished.status.ok()) {
      MakeCopy(finished.version, /*seed=*/false);
      offload_ = BufferId(last_buffer_);
      return;
    }
    if (finished.site_copy) MakeCopy(finished.version, /*seed=*/true);
    if (finished.outcome == UpdateOutcome::kMoved && staged_.has_value() && !staging_) {
      rank_.Say(BufferReset{staged_->buffer});
      staged_held_.reset();
    }
    asked_.reset();
    result_ = finished;
  }
  void AskAgain() {
    StartOperation request = *asked_;
    rank_.number = rank_.number.Next();
    request.key = rank_.key();
    rank_.Start(request);
  }

  RegistryHarness& hub_;
  TestRank rank_;
  uint64_t room_;
  std::map<BufferId, Copy> copies_;
  std::optional<TestRank> staged_;
  bool staging_ = false;
  // Whole: of its own buffer, and of what it has staged.
  std::optional<VersionInfo> held_, staged_held_;
  bool publisher_ = false;
  std::optional<FinishedOperation> last_finished_;
  bool slow_ = false;
  bool keeps_copies_ = false;
  std::optional<BufferId> offload_;  // that the operation below waits for
  std::optional<StartOperation> asked_;
  std::optional<OperationFinished> result_;
  uint32_t last_buffer_ = 100;
};

class CopyRoomTest : public ::testing::Test {
 protected:
  CopyRoomTest() : trainer_(hub_, "trainer", "east", kPlenty), reader_(hub_, "reader", "west", 1) {}

  void NextStep() {
    if (steps_ > 0) trainer_.Unpublish();
    trainer_.Publish(absl::StrCat("step-", ++steps_));
  }
  void Pin(const std::string& label) {
    if (!IsHeld(label)) return;  // a pin brings nothing back
    const std::string key = absl::StrCat("pin-", label);
    pinned_ = hub_.Command({key, PinVersion{Label(label), "test"}}).status.ok() ? label : pinned_;
  }
  bool IsHeld(const std::string& label) {
    const Catalog catalog = hub_.List();
    for (const CatalogVersion& version : catalog.models.at(0).versions) {
      if (version.info.label.text() != label) continue;
      for (const CatalogReplica& replica : version.replicas) {
        if (replica.buffer_name == kStaged) continue;  // keeps nothing that is retained
        if (replica.state == "published" || replica.state == "complete") return true;
      }
    }
    return false;
  }
  static VersionLabel Label(const std::string& text) { return *VersionLabel::Parse(text); }
  void Act(uint32_t act) {
    switch (act) {
      case 0:
        return Pin("step-1");
      case 1:
        return NextStep();
      case 2:
        return reader_.busy() ? reader_.FinishFills() : reader_.Update(WhenSeeding::kCopy);
      case 3:
        return reader_.busy() ? reader_.FinishFills() : reader_.Update(WhenSeeding::kWait);
      case 4:
        return reader_.busy() ? reader_.FinishFills() : reader_.Unpublish();
      case 5:
        return reader_.Stage();
      case 6:
        return reader_.FinishFills();
      case 7:
        return reader_.ComeBack();
      case 8:  // what the trainer's step makes the server say is lost
        NextStep();
        return reader_.ComeBack();
      default:
        return reader_.FillSlowly(act % 2 == 0);
    }
  }
  void ExpectNothingRefused() {
    const auto& result = reader_.result();
    if (!result.has_value() || result->kind == OperationKind::kUnpublish) return;
    EXPECT_OK(result->status) << hub_.Log();
  }

  RegistryHarness hub_;
  Member trainer_, reader_;
  int steps_ = 0;
  std::string pinned_;
};

class CopyOrdersTest : public CopyRoomTest, public ::testing::WithParamInterface<uint32_t> {};

TEST_P(CopyOrdersTest, WhatIsRetainedStaysAndTheGroupGetsToTheLatest) {
  std::mt19937 random(GetParam());
  NextStep();
  reader_.Update(WhenSeeding::kWait);
  for (int i = 0; i < 24; ++i) {
    Act(static_cast<uint32_t>(random() % 11));
    trainer_.React();
    reader_.React();
    ExpectNothingRefused();
    EXPECT_TRUE(pinned_.empty() || IsHeld(pinned_)) << i << "\n" << hub_.Log();
    if (HasFailure()) return;
  }
  reader_.FillSlowly(false);
  reader_.FinishFills();
  const std::string latest = absl::StrCat("step-", steps_);
  for (int tries = 0; tries < 6; ++tries) {
    ASSERT_FALSE(reader_.busy()) << hub_.Log();
    reader_.Update(WhenSeeding::kCopy);
    ExpectNothingRefused();
  }
  ASSERT_TRUE(reader_.result().has_value());
  EXPECT_NE(reader_.result()->outcome, UpdateOutcome::kNotAvailable) << hub_.Log();
  EXPECT_EQ(reader_.result()->version.label.text(), latest);
  EXPECT_TRUE(pinned_.empty() || IsHeld(pinned_)) << hub_.Log();
}

TEST_F(CopyRoomTest, WhatWaitedForRoomInVainStaysPublished) {
  NextStep();
  reader_.Update(WhenSeeding::kWait);
  NextStep();
  reader_.FillSlowly(true);
  reader_.KeepCopies();
  reader_.Update(WhenSeeding::kCopy);
  ASSERT_FALSE(reader_.busy());
  Pin("step-1");
  reader_.Unpublish();
  ASSERT_TRUE(reader_.busy()) << hub_.Log();  // the seed has the room
  for (int second = 0; second < 120 && reader_.busy(); ++second) {
    hub_.Advance(absl::Seconds(1));
    reader_.BeHeard();
  }
  ASSERT_FALSE(reader_.busy());
  EXPECT_EQ(reader_.result()->status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(reader_.result()->must_offload);
  EXPECT_TRUE(IsHeld("step-1")) << hub_.Log();
}

// The reader holds the last of the pinned step-1, which it would unpublish, and waits for the room
// that its copy of step-2 has: somebody else in the site fills from that.
class WaitingForRoomTest : public CopyRoomTest {
 protected:
  WaitingForRoomTest() : neighbour_(hub_, "neighbour", 0, 1) { neighbour_.location.site = "west"; }

  void SetUp() override {
    NextStep();
    reader_.Update(WhenSeeding::kWait);
    NextStep();
    reader_.Update(WhenSeeding::kCopy);
    neighbour_.JoinAndRegister();
    neighbour_.Update();
    source_ = neighbour_.Fill();
    Pin("step-1");
    reader_.Unpublish();
    ASSERT_TRUE(reader_.busy()) << hub_.Log();
  }

  TestRank neighbour_;
  AssignedSource source_;  // of the neighbour
};

TEST_F(WaitingForRoomTest, ThePinEnds) {
  ASSERT_OK(hub_.Command({"release", ReleasePin{Label("step-1"), "test"}}).status);
  reader_.React();
  ASSERT_FALSE(reader_.busy()) << hub_.Log();
  EXPECT_OK(reader_.result()->status);
  EXPECT_FALSE(IsHeld("step-1"));
}

TEST_F(WaitingForRoomTest, AnotherGroupGetsTheVersion) {
  TestRank taker = Rollout(hub_, "taker");
  taker.Update(Label("step-1"));
  taker.FillWhole();
  reader_.React();
  ASSERT_FALSE(reader_.busy()) << hub_.Log();
  EXPECT_OK(reader_.result()->status);
  EXPECT_TRUE(IsHeld("step-1"));
}

TEST_F(WaitingForRoomTest, WhatHasTheRoomBecomesALastCopyItself) {
  ASSERT_OK(hub_.Command({"pin-2", PinVersion{Label("step-2"), "test"}}).status);
  EXPECT_TRUE(reader_.busy());
  NextStep();  // the trainer's goes
  reader_.React();
  ASSERT_FALSE(reader_.busy()) << hub_.Log();
  EXPECT_THAT(reader_.result()->status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has no room to offload")));
  EXPECT_TRUE(reader_.result()->must_offload);
  EXPECT_TRUE(IsHeld("step-1"));
  EXPECT_TRUE(IsHeld("step-2"));
}

TEST_F(WaitingForRoomTest, WhoFillsFromTheCopyGoesElsewhere) {
  neighbour_.Report(source_, SourceFailure::kClosed);
  const AssignSources assigned = neighbour_.Heard<AssignSources>();
  ASSERT_THAT(assigned.sources, SizeIs(1));
  ASSERT_NE(assigned.sources[0].buffer, source_.buffer);
  reader_.React();
  ASSERT_FALSE(reader_.busy()) << hub_.Log();
  EXPECT_OK(reader_.result()->status);
  EXPECT_TRUE(IsHeld("step-1"));
}

TEST_F(WaitingForRoomTest, TheRankComesBackWithMoreRoom) {
  reader_.ComeBackWithRoomFor(2);
  reader_.React();
  ASSERT_FALSE(reader_.busy()) << hub_.Log();
  EXPECT_OK(reader_.result()->status);
  EXPECT_TRUE(IsHeld("step-1"));
}

INSTANTIATE_TEST_SUITE_P(Orders, CopyOrdersTest, ::testing::Range(1u, 401u));

// The group is told to copy what it holds before it moves, and asks for another version beside it
// while it has room for one copy.
class CopyThatWasAskedForTest : public ::testing::Test {
 protected:
  CopyThatWasAskedForTest() : trainer_(hub_, "trainer", 0, 1), reader_(hub_, "reader", 0, 1) {
    trainer_.location.site = "east";
    reader_.location.site = "west";
    trainer_.JoinAndRegister();
    trainer_.Publish("step-1");
    trainer_.Seal(trainer_.Finished().version.sequence, "step-1");
    JoinRequest join = reader_.Request();
    join.offload_limit_bytes = reader_.layout.bytes();
    EXPECT_TRUE(reader_.Join(join));
    EXPECT_OK(reader_.Register());
    reader_.Update();
    reader_.FillWhole();
    held_ = reader_.Finished().version;
    EXPECT_OK(hub_.Command({"pin", PinVersion{*VersionLabel::Parse("step-1"), "test"}}).status);
    trainer_.Unpublish();
    trainer_.Done();
    trainer_.Publish("step-2");
  }
  void AskToMove() {
    StartOperation moves = reader_.UpdateRequest();
    moves.keep_retained = true;
    reader_.Start(moves);
    ASSERT_TRUE(reader_.Finished().must_offload);
  }
  // The copy that it is told to make; its update has begun.
  TestRank Copy() {
    TestRank copy = reader_;
    copy.buffer = BufferId(3);
    copy.buffer_name = CopyName(reader_.buffer_name, CopyFor::kRetention, held_.sequence,
                                reader_.generation, reader_.number);
    copy.number = OperationNumber();
    AnnouncedBuffer announced = copy.Announced();
    announced.role = BufferRole::kOffload;
    copy.Say(RegisterBuffer{announced});
    copy.Update(held_.sequence);
    return copy;
  }
  // Another of its buffers asks for the newest version.
  OperationFinished Stage() {
    TestRank staged = reader_;
    staged.buffer = BufferId(2);
    staged.buffer_name = kStaged;
    staged.number = OperationNumber();
    AnnouncedBuffer announced = staged.Announced();
    announced.role = BufferRole::kStaged;
    announced.staged_for = reader_.buffer_name;
    reader_.Say(RegisterBuffer{announced});
    StartOperation stages = staged.UpdateRequest();
    stages.when_seeding = WhenSeeding::kCopy;
    staged.Start(stages);
    return staged.Finished();
  }

  RegistryHarness hub_;
  TestRank trainer_, reader_;
  VersionInfo held_;
};

TEST_F(CopyThatWasAskedForTest, HasItsRoomBeforeItIsRegistered) {
  AskToMove();
  const OperationFinished reported = Stage();
  EXPECT_EQ(reported.not_available, NotAvailableReason::kSeeding);
  EXPECT_FALSE(reported.site_copy);
}

TEST_F(CopyThatWasAskedForTest, HasNoneOnceItHasFailed) {
  AskToMove();
  TestRank copy = Copy();
  copy.Fail(absl::ResourceExhaustedError("no memory"));
  copy.Say(UnregisterBuffer{copy.buffer});
  EXPECT_TRUE(Stage().site_copy);
}

TEST_F(CopyThatWasAskedForTest, HasNoneWhenNobodyHasRegisteredItInTime) {
  AskToMove();
  PassAlive(hub_, {&trainer_, &reader_}, registry::kCopyAwaitedFor);
  EXPECT_TRUE(Stage().site_copy);
}

}  // namespace
}  // namespace th
