// The decisions of a fill that maps, against sources that say what the test wants.
#include "th/transfer/mapping_fill.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/pipeline_replicator/fill_session.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/task_thread.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);
// The limit in tests that wait for the end of a time which nothing has to happen within.
constexpr absl::Duration kShort = absl::Milliseconds(20);
// The time that a test has to bring another source, where it waits for the end of this time too.
constexpr absl::Duration kOtherSource = absl::Seconds(2);
constexpr uint64_t kBytes = 3 * kMinSegmentBytes;

// One opened pull: what it was asked, and the sink to answer with.
struct Opened {
  PullTarget target;
  PullSink* sink = nullptr;
  bool asked_mapping = false;
  bool asked_checksums = false;
  bool closed = false;
};

// Opens pulls that say nothing by themselves; closes them at once when they are told to.
class SilentTransport final : public Transport {
 public:
  absl::string_view name() const override { return "near"; }
  std::vector<Endpoint> endpoints() const override { return {}; }
  absl::Status Reach(const Endpoint& endpoint) const override {
    return endpoint.address == "far" ? absl::FailedPreconditionError("on another host")
                                     : absl::OkStatus();
  }
  bool maps() const override { return true; }
  absl::StatusOr<std::unique_ptr<AttachedMemory>> Attach(absl::Span<const MemoryRegion>) override {
    return std::make_unique<AttachedMemory>();
  }
  bool AddHolder(WorkerId, HolderDelegate*) override { return true; }
  void RemoveHolder(WorkerId) override {}
  void FinishTransfer(TransferId) override {}
  void CutTransfer(TransferId) override {}
  std::unique_ptr<Pull> Open(PullTarget target, PullSink* sink) override {
    absl::MutexLock lock(&mu_);
    opened_.push_back(std::make_unique<Opened>(Opened{std::move(target), sink}));
    return std::make_unique<SilentPull>(this, opened_.back().get());
  }
  Counters counters() const override { return {}; }

  // The pull that is opened as number `index`, once it is asked for a mapping (with `admitted`) or
  // merely there.
  Opened& Await(size_t index) {
    absl::MutexLock lock(&mu_);
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return opened_.size() > index; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&there), kPatience));
    return *opened_[index];
  }
  Opened& Admit(size_t index) {
    Opened& opened = Await(index);
    opened.sink->OnAdmitted(BufferGeneration(1), /*lists_sums=*/true);
    absl::MutexLock lock(&mu_);
    const auto asked = [&] { return opened.asked_mapping && opened.asked_checksums; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&asked), kPatience));
    return opened;
  }

 private:
  class SilentPull final : public Pull {
   public:
    SilentPull(SilentTransport* transport, Opened* opened)
        : transport_(transport), opened_(opened) {}
    void Ask(SegmentRange) override {}
    void AskChecksums() override { Set(&opened_->asked_checksums); }
    void AskMapping() override { Set(&opened_->asked_mapping); }
    void Finish() override {}
    void Close() override {
      if (!Set(&opened_->closed)) opened_->sink->OnClosed(SourceFailure::kClosed, "by the reader");
    }
    std::string peer() const override { return "near"; }

   private:
    bool Set(bool* flag) {
      absl::MutexLock lock(&transport_->mu_);
      return std::exchange(*flag, true);
    }
    SilentTransport* const transport_;
    Opened* const opened_;
  };

  absl::Mutex mu_;
  std::vector<std::unique_ptr<Opened>> opened_ ABSL_GUARDED_BY(mu_);
};

class Recorder final : public FillObserver {
 public:
  void OnFirstWrite() override { ADD_FAILURE() << "nothing is written"; }
  void OnProgress(FillProgressed) override {}
  void OnAllReceived() override {}
  void OnComplete(Digest) override { Note("complete"); }
  void OnFailed(absl::Status why) override { Note(absl::StrCat("failed: ", why.message())); }
  void OnSourceFailed(FillSourceFailed lost) override {
    const bool corrupt = lost.failure == SourceFailure::kCorrupt;
    const bool stalled = lost.failure == SourceFailure::kStalled;
    Note(absl::StrCat("lost ", lost.source.worker.value, corrupt ? " corrupt" : "",
                      stalled ? " stalled" : "", ": ", lost.detail));
  }
  void OnSourceSuspected(AssignmentId, BufferAddress, std::string) override {}
  void OnStopped() override { Note("stopped"); }

  // All that happened, once it is at least `count` things.
  std::vector<std::string> Await(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return notes_.size() >= count; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&there), kPatience));
    return notes_;
  }
  void AwaitStopped() {
    absl::MutexLock lock(&mu_);
    const auto stopped = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return !notes_.empty() && notes_.back() == "stopped";
    };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&stopped), kPatience));
  }

 private:
  void Note(std::string what) {
    absl::MutexLock lock(&mu_);
    notes_.push_back(std::move(what));
  }
  absl::Mutex mu_;
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mu_);
};

AssignedSource Source(uint64_t worker, std::string address = "here") {
  AssignedSource source;
  source.buffer = {WorkerId(worker), BufferId(1)};
  source.name = {.group = absl::StrCat("g", worker), .rank = Rank(0)};
  source.endpoints = {{.address = std::move(address), .transport = "near", .site = ""}};
  source.generation = BufferGeneration(1);
  return source;
}

class MappingFillTest : public ::testing::Test {
 protected:
  MappingFillTest() {
    TensorSpec tensor;
    tensor.name = "t";
    tensor.dtype = DType::kU8;
    tensor.shape = {static_cast<int64_t>(kBytes)};
    layout_ = std::make_shared<const ShardLayout>(
        *ShardLayout::Build({.tensors = {tensor}, .segment_bytes = kMinSegmentBytes}));
    root_ = RootOfChecksums(checksums_);
  }
  ~MappingFillTest() override {
    fill_->Stop();
    recorder_.AwaitStopped();  // after it no call comes into this test's objects
  }
  void Start(std::optional<Digest> root, std::vector<AssignedSource> sources) {
    fill_ = MappingFill::Start({.layout = layout_,
                                .root = root,
                                .target = target_,
                                .other_source_wait = other_source_wait_,
                                .silence = silence_},
                               {&transport_}, &recorder_);
    fill_->SetSources(AssignmentId(1), std::move(sources));
  }
  std::shared_ptr<const MappedShard> Shard(uint64_t bytes = kBytes) {
    return std::make_shared<const MappedShard>(
        std::vector<MappedShard::Run>{{.stream_offset = 0, .bytes = bytes, .data = memory_}},
        nullptr);
  }

  std::byte memory_[kBytes] = {};
  const std::vector<SegmentChecksum> checksums_ = {11, 22, 33};
  std::shared_ptr<const ShardLayout> layout_;
  Digest root_;
  absl::Duration other_source_wait_ = kPatience, silence_ = kPatience;
  const std::shared_ptr<MappingTarget> target_ = std::make_shared<MappingTarget>();
  SilentTransport transport_;
  Recorder recorder_;
  std::shared_ptr<MappingFill> fill_;
};

TEST_F(MappingFillTest, CompletesWithTheShardAndItsSums) {
  Start(root_, {Source(1)});
  Opened& source = transport_.Admit(0);
  EXPECT_TRUE(source.target.to_map);
  const auto shard = Shard();
  source.sink->OnMapped(shard);
  source.sink->OnChecksums(SegmentIndex(0), {checksums_.data(), 1});
  source.sink->OnChecksums(SegmentIndex(1), {checksums_.data() + 1, 2});
  EXPECT_THAT(recorder_.Await(2), ElementsAre("complete", "stopped"));
  EXPECT_TRUE(fill_->completed());
  const MappedContent content = target_->Take();
  EXPECT_EQ(content.shard, shard);
  EXPECT_EQ(content.checksums, checksums_);
  EXPECT_EQ(content.source.ToString(), "g1/0");
}

TEST_F(MappingFillTest, WaitsForTheRootOfAVersionThatIsNotSealedYet) {
  Start(std::nullopt, {Source(1)});
  Opened& source = transport_.Admit(0);
  source.sink->OnMapped(Shard());
  source.sink->OnChecksums(SegmentIndex(0), checksums_);
  absl::Notification judged;  // by th-fill, after all that it was given
  SharedFillThread()->Post([&] { judged.Notify(); });
  judged.WaitForNotification();
  EXPECT_FALSE(fill_->completed());
  fill_->SetRoot(root_);
  EXPECT_THAT(recorder_.Await(2), ElementsAre("complete", "stopped"));
}

TEST_F(MappingFillTest, ASourceWithAnotherListOfSumsIsLeft) {
  Start(root_, {Source(1), Source(2)});
  Opened& liar = transport_.Admit(0);
  liar.sink->OnMapped(Shard());
  liar.sink->OnChecksums(SegmentIndex(0), std::vector<SegmentChecksum>{11, 22, 34});
  Opened& honest = transport_.Admit(1);
  honest.sink->OnMapped(Shard());
  honest.sink->OnChecksums(SegmentIndex(0), checksums_);
  EXPECT_THAT(recorder_.Await(3),
              ElementsAre(HasSubstr("lost 1 corrupt: its list of sums"), "complete", "stopped"));
}

TEST_F(MappingFillTest, ASourceThatMapsAPartOnlyIsLeft) {
  Start(root_, {Source(1)});
  transport_.Admit(0).sink->OnMapped(Shard(kBytes - 1));
  EXPECT_THAT(recorder_.Await(1)[0], HasSubstr("lost 1 corrupt"));
}

TEST_F(MappingFillTest, ASilentSourceIsLeft) {
  silence_ = kShort;
  Start(root_, {Source(1)});
  transport_.Admit(0);
  EXPECT_THAT(recorder_.Await(1)[0], HasSubstr("lost 1 stalled"));
}

TEST_F(MappingFillTest, FailsWithTheReasonOfEachWhereNoneCanBeMapped) {
  other_source_wait_ = kShort;
  Start(root_, {Source(1, "far"), Source(2)});
  transport_.Admit(0).sink->OnMapped(absl::ResourceExhaustedError("its limit"));
  EXPECT_THAT(recorder_.Await(3), ElementsAre("lost 1: near: on another host", "lost 2: its limit",
                                              "failed: no holder of the version can be attached: "
                                              "g1/0: near: on another host; g2/0: its limit"));
}

TEST_F(MappingFillTest, ALaterAssignmentBringsAnotherSource) {
  Start(root_, {Source(1, "far")});
  EXPECT_THAT(recorder_.Await(1), ElementsAre(HasSubstr("lost 1")));
  fill_->SetSources(AssignmentId(2), {Source(2)});
  Opened& source = transport_.Admit(0);
  source.sink->OnMapped(Shard());
  source.sink->OnChecksums(SegmentIndex(0), checksums_);
  EXPECT_THAT(recorder_.Await(3), ElementsAre(HasSubstr("lost 1"), "complete", "stopped"));
}

// As when the machine stands still, or is told of the other source and of the end of the time at
// once.
TEST_F(MappingFillTest, TimeInWhichTheFillDidNotRunIsNotWaited) {
  other_source_wait_ = kOtherSource;
  const std::shared_ptr<TaskThread> fill_thread = SharedFillThread();
  Start(root_, {Source(1, "far")});
  recorder_.Await(1);
  const absl::Time end = MonotonicNow() + kOtherSource;
  absl::Notification go_on, gone_on;
  fill_thread->Post([&] { go_on.WaitForNotification(); });
  fill_thread->PostAt(end, [&] { gone_on.Notify(); });  // after the tick at the end of the time
  absl::SleepFor(end + 2 * kLateFillTick - MonotonicNow());
  go_on.Notify();
  gone_on.WaitForNotification();
  fill_->SetSources(AssignmentId(2), {Source(2)});
  Opened& source = transport_.Admit(0);
  source.sink->OnMapped(Shard());
  source.sink->OnChecksums(SegmentIndex(0), checksums_);
  EXPECT_THAT(recorder_.Await(3), ElementsAre(HasSubstr("lost 1"), "complete", "stopped"));
}

// It is not looked at only when the time for which another source was waited for ends.
TEST_F(MappingFillTest, ASilentSourceOfALaterAssignmentIsLeftAsSoon) {
  other_source_wait_ = absl::Hours(1);
  silence_ = kShort;
  Start(root_, {Source(1, "far")});
  EXPECT_THAT(recorder_.Await(1), ElementsAre(HasSubstr("lost 1")));
  fill_->SetSources(AssignmentId(2), {Source(2)});
  transport_.Admit(0);
  EXPECT_THAT(recorder_.Await(2)[1], HasSubstr("lost 2 stalled"));
}

// The time for which it waits for another source begins anew with each that was tried.
TEST_F(MappingFillTest, ASourceThatFailsLateLeavesTimeForAnother) {
  other_source_wait_ = kOtherSource;
  silence_ = kOtherSource + kShort;
  Start(root_, {Source(1, "far")});
  recorder_.Await(1);
  fill_->SetSources(AssignmentId(2), {Source(2)});
  transport_.Admit(0);
  EXPECT_THAT(recorder_.Await(2)[1], HasSubstr("lost 2 stalled"));  // silent for longer than that
  fill_->SetSources(AssignmentId(3), {Source(3)});
  Opened& source = transport_.Admit(1);
  source.sink->OnMapped(Shard());
  source.sink->OnChecksums(SegmentIndex(0), checksums_);
  EXPECT_THAT(recorder_.Await(4),
              ElementsAre(HasSubstr("lost 1"), HasSubstr("lost 2"), "complete", "stopped"));
}

TEST_F(MappingFillTest, StoppedInTheMiddleItLetsGoOfWhatIsMapped) {
  Start(root_, {Source(1)});
  auto shard = Shard();
  transport_.Admit(0).sink->OnMapped(shard);
  fill_->Stop();
  EXPECT_THAT(recorder_.Await(1), ElementsAre("stopped"));
  EXPECT_EQ(shard.use_count(), 1);
  EXPECT_EQ(target_->Take().shard, nullptr);
}

}  // namespace
}  // namespace th
