// A registry with a clock and a mailbox a stream, for tests. Every event is followed by a check of
// the state's own rules, and of what may be said: nothing names a version before it is durable.
//
//   RegistryHarness hub;
//   TestRank trainer(hub, "trainer", 0, 1);
//   trainer.JoinAndRegister();
//   trainer.Publish("step-1");
//   EXPECT_OK(trainer.Finished().status);
#ifndef TH_REFERENCE_REGISTRY_REGISTRY_HARNESS_H_
#define TH_REFERENCE_REGISTRY_REGISTRY_HARNESS_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "th/protocol/messages.h"
#include "th/reference_registry/registry.h"
#include "th/weights/shard_layout.h"

namespace th {

// The layout of one tensor of `segments` segments, by name: other names are other layouts.
ShardLayout LayoutNamed(const std::string& tensor, uint64_t segments = 4,
                        ChecksumAlgorithm checksum = ChecksumAlgorithm::kXxh3Leaves);
Digest RootNamed(const std::string& content);
ModelKey TestModel();

class RegistryHarness {
 public:
  explicit RegistryHarness(RegistryLimits limits = {}, DurableState durable = {});

  ConnectionId Open();
  void Deliver(ConnectionId connection, const WorkerMessage& message);
  void Disconnect(ConnectionId connection);
  // Ticks at every deadline on the way.
  void Advance(absl::Duration duration);
  // The server is stopped for so long and hears nobody, then goes on where it was.
  void Pause(absl::Duration duration);
  CommandFinished Command(const RunCommand& command, const ModelKey& key = TestModel());
  // The server dies and starts again with what it made durable; every stream breaks.
  void Restart();
  // The same, but nobody was there before: no recovery window.
  void RestartWithoutRecovery();

  // The content of a copy of the server's state directory.
  struct SavedState {
    Epoch epoch;
    StateIdentity identity;
    DurableState durable;
  };
  SavedState Save() const { return {epoch_, identity_, durable_}; }
  // The server dies and starts again with an older state, or another.
  void RestartWith(const SavedState& saved);
  // The same, but with none: the first epoch of the new one is the one after `epoch`.
  void RestartEmpty(Epoch epoch = Epoch(0));

  // For fleets so large that checking the whole state after every event would be the test.
  void CheckStateRarely() { check_state_ = false; }

  Registry& registry() { return *registry_; }
  const DurableState& durable() const { return durable_; }
  const DurableModel& model() { return durable_.models[TestModel()]; }
  absl::Time now() const { return now_; }
  Epoch epoch() const { return epoch_; }
  const StateIdentity& identity() const { return identity_; }
  bool IsClosed(ConnectionId connection) const { return closed_.contains(connection); }
  Catalog List() { return registry_->List("", "", now_); }

  // All messages of a type that the stream has heard and nobody has taken yet; takes them.
  template <typename Message>
  std::vector<Message> TakeAll(ConnectionId connection) {
    std::vector<Message> taken;
    std::deque<ServerMessage> rest;
    for (ServerMessage& message : mailboxes_[connection]) {
      if (auto* found = std::get_if<Message>(&message)) {
        taken.push_back(std::move(*found));
      } else {
        rest.push_back(std::move(message));
      }
    }
    mailboxes_[connection] = std::move(rest);
    return taken;
  }
  // The registry's own words of late, oldest first: what led to a failure.
  std::string Log() const;
  std::deque<ServerMessage>& mailbox(ConnectionId connection) { return mailboxes_[connection]; }

 private:
  void Start(bool recovering, Epoch above);
  void Route(RegistryEffects effects);
  void CheckSaid(const ServerMessage& message);

  bool check_state_ = true;
  std::deque<std::string> log_;
  RegistryLimits limits_;
  DurableState durable_;
  Epoch epoch_;
  StateIdentity identity_;
  uint64_t drawn_ = 0;  // in place of random numbers
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  ConnectionId last_connection_;
  std::map<ConnectionId, std::deque<ServerMessage>> mailboxes_;
  std::map<ConnectionId, bool> closed_;
  std::unique_ptr<Registry> registry_;
};

// One rank as a well-behaved session drives it, step by step.
class TestRank {
 public:
  TestRank(RegistryHarness& hub, std::string group, uint32_t rank, uint32_t ranks,
           ShardLayout layout = LayoutNamed("w"));

  JoinRequest Request() const;
  // True when Joined came back; else `refused` says why.
  bool Join(JoinRequest request);
  bool Join() { return Join(Request()); }
  // As the process that it was, on a new stream.
  bool Resume(std::vector<AnnouncedBuffer> buffers, GroupGeneration claimed);
  // The claim that it makes from what it has heard of its membership.
  ResumeClaim Claim() const;
  bool Resume(std::vector<AnnouncedBuffer> buffers) {
    return Resume(std::move(buffers), generation);
  }
  absl::Status Register();
  void JoinAndRegister();

  StartOperation PublishRequest(const std::string& label);
  StartOperation UpdateRequest(const VersionSelector& selector = LatestVersion{});
  StartOperation UnpublishRequest();
  void Start(StartOperation request);
  void Publish(const std::string& label) { Start(PublishRequest(label)); }
  void Update(const VersionSelector& selector = LatestVersion{}) { Start(UpdateRequest(selector)); }
  void Unpublish() { Start(UnpublishRequest()); }
  void Seal(VersionSequence version, const std::string& content);
  void Ready();
  void Done();
  void Fail(absl::Status status, bool undefined = false);
  void Report(const AssignedSource& source, SourceFailure failure, const std::string& detail = "");
  void Say(const WorkerMessage& message) { hub_->Deliver(connection, message); }
  void Disconnect() { hub_->Disconnect(connection); }

  // The newest of its kind that was heard; fails the test when there is none.
  template <typename Message>
  Message Heard() {
    std::vector<Message> all = hub_->TakeAll<Message>(connection);
    EXPECT_FALSE(all.empty()) << "nothing of this kind was heard by " << name.ToString();
    return all.empty() ? Message{} : all.back();
  }
  template <typename Message>
  bool HearsNone() {
    return hub_->TakeAll<Message>(connection).empty();
  }
  OperationFinished Finished() { return Heard<OperationFinished>(); }
  // Ready, assigned to exactly one source: that one.
  AssignedSource Fill();
  // Ready and done, whatever it is assigned.
  void FillWhole();

  OperationKey key() const { return {buffer, number}; }
  BufferAddress address() const { return {worker, buffer}; }
  AnnouncedBuffer Announced() const;
  AnnouncedBuffer Holding(const VersionInfo& version, bool publisher,
                          const std::string& root) const;
  AnnouncedBuffer Filling(const VersionInfo& version, std::vector<BufferAddress> sources) const;

  RankName name;
  uint32_t ranks;
  ShardLayout layout;
  std::string form = kDefaultForm;
  std::string buffer_name = "weights";
  BufferRole role = BufferRole::kPrimary;
  Location location;
  BufferId buffer{1};
  BufferGeneration buffer_generation{1};
  ConnectionId connection;
  WorkerId worker;
  GroupGeneration generation;
  Lineage lineage;
  CapabilityKey capability_key;
  OperationNumber number;  // of the last operation that was started
  AssignmentId assignment;
  Epoch joined_epoch;
  ClusterId cluster;
  EpochId epoch_id;
  MembershipSecret secret;
  Refused refused;

 private:
  RegistryHarness* hub_;  // outlives the rank
};

// A group of ranks whose layouts are named "w0", "w1", ... unless told otherwise.
std::vector<TestRank> MakeGroup(RegistryHarness& hub, const std::string& group, uint32_t ranks);
void JoinAndRegister(std::vector<TestRank>& group);
// Such a group, joined and registered.
std::vector<TestRank> JoinedGroup(RegistryHarness& hub, const std::string& group, uint32_t ranks);
// All ranks publish and seal; the version.
VersionInfo PublishWhole(std::vector<TestRank>& group, const std::string& label);
// All ranks update to latest, fill and finish.
void UpdateWhole(std::vector<TestRank>& group);
// Lets time pass in which these ranks are heard.
void PassAlive(RegistryHarness& hub, const std::vector<TestRank*>& ranks, absl::Duration duration);
// One more single-rank group "trainer" that has published and sealed `label` with content `label`.
TestRank Trainer(RegistryHarness& hub, const std::string& label);
TestRank Rollout(RegistryHarness& hub, const std::string& group);

}  // namespace th

#endif  // TH_REFERENCE_REGISTRY_REGISTRY_HARNESS_H_
