// Several holders, one reader and one fill: what the tests of fills share, whatever the transport.
#ifndef TH_TRANSFER_FILL_TEST_BED_H_
#define TH_TRANSFER_FILL_TEST_BED_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "th/transfer/fill.h"
#include "th/transfer/test_peers.h"
#include "th/transfer/transport.h"

namespace th::testing {

// Remembers what a fill told.
class TestObserver : public FillObserver {
 public:
  struct Loss {
    AssignmentId assignment;
    BufferAddress source;
    SourceFailure failure;
    std::string detail;
  };

  void AwaitFirstWrite();
  void AwaitAllReceived();
  Digest AwaitComplete();
  absl::Status AwaitFailed();
  void AwaitLosses(size_t count);
  void AwaitStopped();
  std::vector<Loss> losses() const;
  bool complete() const;
  bool calls_after_stopped() const;
  // Suspected sources, each once.
  std::vector<BufferAddress> suspected() const;
  // Called for each suspicion, on the fill's thread, after it is remembered.
  void OnSuspicion(std::function<void(BufferAddress)> react) { react_to_suspicion_ = react; }
  // Called for each loss, on the fill's thread, after it is remembered.
  void OnLoss(std::function<void(const Loss&)> react) { react_ = std::move(react); }

  void OnFirstWrite() override;
  void OnProgress(FillProgressed progress) override;
  void OnAllReceived() override;
  void OnComplete(Digest root) override;
  void OnFailed(absl::Status why) override;
  void OnSourceFailed(FillSourceFailed lost) override;
  void OnSourceSuspected(AssignmentId assignment, BufferAddress source,
                         std::string detail) override;
  void OnStopped() override;

 private:
  void Await(bool TestObserver::*flag, const char* what);
  void Note(bool* flag);

  std::function<void(const Loss&)> react_;
  std::function<void(BufferAddress)> react_to_suspicion_;
  mutable absl::Mutex mu_;
  bool first_write_ ABSL_GUARDED_BY(mu_) = false;
  bool all_received_ ABSL_GUARDED_BY(mu_) = false;
  bool complete_ ABSL_GUARDED_BY(mu_) = false;
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool after_stopped_ ABSL_GUARDED_BY(mu_) = false;
  Digest root_ ABSL_GUARDED_BY(mu_);
  absl::Status why_ ABSL_GUARDED_BY(mu_);
  std::vector<Loss> losses_ ABSL_GUARDED_BY(mu_);
  std::vector<BufferAddress> suspected_ ABSL_GUARDED_BY(mu_);
};

// The content from before that a fill may compare with the list of sums.
enum class Before : uint8_t { kNothing, kPublished };

// One process that holds (or fills) a shard.
struct TestNode {
  // `worker` names it; its shard is empty until FillWith or a fill.
  TestNode(std::unique_ptr<Transport> transport, WorkerId worker, const TestShard::Spec& spec);
  ~TestNode();

  void Publish(uint64_t seed);
  // Holds the bytes of seed 1 in its first `count` segments, as a relay that waits for the others.
  void PublishFirst(uint64_t count);
  // Holds its segments from `begin` up to `end` too, which are in memory since PublishFirst.
  void Hold(uint64_t begin, uint64_t end);
  // A fill of this node's buffer, which it serves as it arrives.
  Fill& StartFill(ReplicatorLimits limits = {}, SegmentSet resume = {},
                  std::optional<Digest> root = std::nullopt, Before before = Before::kNothing);
  void StopFill();
  // The source that others are assigned to pull from here.
  AssignedSource AsSource() const;
  std::string address() const { return transport->endpoints()[0].address; }

  const WorkerId worker;
  TestShard shard;
  TestHolder holder;
  TestObserver observer;
  std::unique_ptr<Transport> transport;
  std::shared_ptr<Fill> fill;
};

// Waits until the store holds at least `count` segments.
void AwaitHeld(SegmentStore& store, uint64_t count);

// PatientLimits for the sources of fills: signs of life come often.
TransportLimits PatientFillLimits();
// A fill with these loses no source by its silence on a loaded machine.
ReplicatorLimits PatientReplicatorLimits();

// Publishes at `source`, and expects that a fill of `reader` brings each byte, none of them twice.
void ExpectEachByteArrives(TestNode& source, TestNode& reader, const ReplicatorLimits& limits);

// Publishes some segments at `source` and the others once the first have come to `reader`, whose
// only source is `relay`; expects that each byte arrives at both.
void ExpectRelayHandsOnWhatHasNotAllArrived(TestNode& source, TestNode& relay, TestNode& reader,
                                            const ReplicatorLimits& limits);

}  // namespace th::testing

#endif  // TH_TRANSFER_FILL_TEST_BED_H_
