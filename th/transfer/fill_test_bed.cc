#include "th/transfer/fill_test_bed.h"

#include "gtest/gtest.h"

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

void TestObserver::OnSourceFailed(AssignmentId assignment, BufferAddress source,
                                  SourceFailure failure, std::string detail) {
  Note(nullptr);
  const Loss loss{assignment, source, failure, std::move(detail)};
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

Fill& TestNode::StartFill(ReplicatorLimits limits, SegmentSet resume, std::optional<Digest> root,
                          Before before) {
  SegmentStore::KnownSums known;
  if (before == Before::kPublished) known = shard.store()->known_sums();
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

}  // namespace th::testing
