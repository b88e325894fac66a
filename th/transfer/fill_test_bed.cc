#include "th/transfer/fill_test_bed.h"

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "th/pipeline_replicator/request_queue.h"

namespace th::testing {

// ---- TestObserver

void TestObserver::Await(bool TestObserver::*flag, const char* what) {
  absl::MutexLock lock(&mu_);
  AwaitOrFail(mu_, absl::Condition(&(this->*flag)), what);
}

void TestObserver::Note(bool* flag) {
  absl::MutexLock lock(&mu_);
  after_stopped_ |= stopped_;
  if (flag != nullptr) *flag = true;
}

void TestObserver::AwaitFirstWrite() { Await(&TestObserver::first_write_, "the first write"); }
void TestObserver::AwaitAllReceived() {
  Await(&TestObserver::all_received_, "everything is received");
}
void TestObserver::AwaitStopped() { Await(&TestObserver::stopped_, "the fill has stopped"); }

Digest TestObserver::AwaitComplete() {
  Await(&TestObserver::complete_, "the fill is complete");
  absl::MutexLock lock(&mu_);
  return root_;
}

absl::Status TestObserver::AwaitFailed() {
  Await(&TestObserver::failed_, "the fill has failed");
  absl::MutexLock lock(&mu_);
  return why_;
}

void TestObserver::AwaitLosses(size_t count) {
  absl::MutexLock lock(&mu_);
  const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return losses_.size() >= count; };
  AwaitOrFail(mu_, absl::Condition(&enough), "a source is lost");
}

std::vector<TestObserver::Loss> TestObserver::losses() const {
  absl::MutexLock lock(&mu_);
  return losses_;
}

std::vector<BufferAddress> TestObserver::suspected() const {
  absl::MutexLock lock(&mu_);
  return suspected_;
}

bool TestObserver::complete() const {
  absl::MutexLock lock(&mu_);
  return complete_;
}

bool TestObserver::calls_after_stopped() const {
  absl::MutexLock lock(&mu_);
  return after_stopped_;
}

void TestObserver::OnFirstWrite() { Note(&first_write_); }
void TestObserver::OnProgress(FillProgressed) { Note(nullptr); }
void TestObserver::OnAllReceived() { Note(&all_received_); }
void TestObserver::OnStopped() { Note(&stopped_); }

void TestObserver::OnComplete(Digest root) {
  Note(nullptr);
  absl::MutexLock lock(&mu_);
  complete_ = true;
  root_ = root;
}

void TestObserver::OnFailed(absl::Status why) {
  Note(nullptr);
  absl::MutexLock lock(&mu_);
  failed_ = true;
  why_ = std::move(why);
}

void TestObserver::OnSourceFailed(FillSourceFailed lost) {
  Note(nullptr);
  const Loss loss{lost.assignment, lost.source, lost.failure, std::move(lost.detail)};
  {
    absl::MutexLock lock(&mu_);
    losses_.push_back(loss);
  }
  if (react_) react_(loss);
}

void TestObserver::OnSourceSuspected(AssignmentId, BufferAddress source, std::string) {
  Note(nullptr);
  {
    absl::MutexLock lock(&mu_);
    suspected_.push_back(source);
  }
  if (react_to_suspicion_) react_to_suspicion_(source);
}

// ---- TestNode

TestNode::TestNode(std::unique_ptr<Transport> transport, WorkerId worker,
                   const TestShard::Spec& spec)
    : worker(worker), shard(spec), holder(shard.store()), transport(std::move(transport)) {
  holder.set_worker(worker);
  this->transport->AddHolder(worker, &holder);
}

TestNode::~TestNode() {
  StopFill();
  transport->RemoveHolder(worker);
}

void TestNode::Publish(uint64_t seed) {
  shard.FillWith(seed);
  shard.store()->Publish(BufferGeneration(1));
}

void TestNode::PublishFirst(uint64_t count) {
  shard.FillWith(1);
  shard.store()->BeginFill(BufferGeneration(1), {});
  Hold(0, count);
}

void TestNode::Hold(uint64_t begin, uint64_t end) {
  for (uint64_t i = begin; i < end; ++i) {
    shard.store()->MarkHeld(SegmentIndex(i), shard.ChecksumOf(SegmentIndex(i)));
  }
}

Fill& TestNode::StartFill(ReplicatorLimits limits, SegmentSet resume, std::optional<Digest> root,
                          Before before) {
  SegmentStore::KnownChecksums known;
  if (before == Before::kPublished) known = shard.store()->known_checksums();
  shard.store()->BeginFill(BufferGeneration(1), resume);
  fill = Fill::Start({.store = shard.store(),
                      .resume = resume,
                      .before = std::move(known),
                      .root = root,
                      .limits = limits},
                     {transport.get()}, &observer);
  return *fill;
}

void TestNode::StopFill() {
  if (fill == nullptr) return;
  fill->Stop();
  observer.AwaitStopped();
  fill.reset();
}

AssignedSource TestNode::AsSource() const {
  AssignedSource source;
  source.buffer = {worker, kBuffer};
  source.name = {.group = "group", .rank = Rank(static_cast<uint32_t>(worker.value))};
  source.endpoints = transport->endpoints();
  source.generation = BufferGeneration(1);
  source.capability = holder.Mint();
  return source;
}

void AwaitHeld(SegmentStore& store, uint64_t count) {
  for (SegmentSet held = store.held(); held.count() < count; held = store.held()) {
    RequestQueue missing;
    const SegmentSet lacking = held.Complement(store.layout().segment_count());
    for (const SegmentRange& range : lacking.ranges()) missing.Push(range);
    // Shared with the store, which may call it after this has given up.
    const auto another = std::make_shared<absl::Notification>();
    const bool ready = store.NotifyWhenReady(missing, [another] { another->Notify(); }) == 0;
    if (!store.closed() && (ready || another->WaitForNotificationWithTimeout(kPatience))) continue;
    ADD_FAILURE() << "held: " << held.count() << " segments, not " << count;
    return;
  }
}

TransportLimits PatientFillLimits() {
  TransportLimits limits = PatientLimits();
  limits.keep_alive = absl::Milliseconds(20);
  return limits;
}

ReplicatorLimits PatientReplicatorLimits() {
  ReplicatorLimits limits;
  limits.silence = kPatience;
  return limits;
}

void ExpectEachByteArrives(TestNode& source, TestNode& reader, const ReplicatorLimits& limits) {
  source.Publish(1);
  const bool checksummed = source.shard.layout().checksum() != ChecksumAlgorithm::kNone;
  Fill& fill = reader.StartFill(limits, {}, checksummed ? source.shard.Root() : Digest{});
  fill.SetSources(AssignmentId(1), {source.AsSource()});
  reader.observer.AwaitComplete();
  EXPECT_TRUE(reader.shard.Equals(source.shard));
  EXPECT_EQ(fill.status().reread_bytes, 0);
  reader.StopFill();
  source.holder.AwaitReleased(1);
}

void ExpectRelayHandsOnWhatHasNotAllArrived(TestNode& source, TestNode& relay, TestNode& reader,
                                            const ReplicatorLimits& limits) {
  constexpr uint64_t kFirst = 10;
  source.PublishFirst(kFirst);
  const Digest root = source.shard.Root();
  relay.StartFill(limits, {}, root).SetSources(AssignmentId(1), {source.AsSource()});
  reader.StartFill(limits, {}, root).SetSources(AssignmentId(1), {relay.AsSource()});
  // They came through the relay, which has not got the others either.
  AwaitHeld(*reader.shard.store(), kFirst);
  EXPECT_EQ(relay.shard.store()->held().count(), kFirst);
  source.Hold(kFirst, source.shard.segment_count());
  relay.observer.AwaitComplete();
  reader.observer.AwaitComplete();
  EXPECT_TRUE(relay.shard.Equals(source.shard));
  EXPECT_TRUE(reader.shard.Equals(source.shard));
}

}  // namespace th::testing
