// A checkpoint folder held and offered as a version: what `tensorhub_worker publish` is.
//
//   TH_ASSIGN_OR_RETURN(auto publisher, Publisher::Load(options));  // memory and bytes
//   TH_RETURN_IF_ERROR(publisher->Join());                          // memberships
//   TH_ASSIGN_OR_RETURN(version, publisher->Publish("step-57", attributes, timeout));
//   TH_RETURN_IF_ERROR(publisher->AwaitSealed(timeout));
//   ... until it is to end ...
//   TH_RETURN_IF_ERROR(publisher->Drain(absl::Seconds(5)));  // readers in flight may finish
//
// It plays one rank of the group, or all of them. Not thread-safe, but for Abandon.
#ifndef TH_WORKER_PUBLISHER_H_
#define TH_WORKER_PUBLISHER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/client/client.h"
#include "th/worker/tensor_memory.h"

namespace th {

struct PublisherOptions {
  ClientOptions client;  // rank and ranks are filled in
  std::string folder;    // of safetensors
  uint32_t ranks = 1;    // of the group
  uint32_t shards = 0;   // distinct ones; 0: as many as ranks. Rank r holds shard r % shards
  std::optional<uint32_t> rank;  // play only this one
  std::string form = kDefaultForm;
};

class Publisher {
 public:
  // Reads the folder's tensors. Errors of CheckpointFolder::Open and SplitIntoShards.
  static absl::StatusOr<std::unique_ptr<Publisher>> Load(PublisherOptions options);
  // Errors of Client::Join and Client::Register.
  absl::Status Join();

  // Returns once the version is there for readers, which for another rank of the group that never
  // comes is an error after `timeout`.
  absl::StatusOr<VersionInfo> Publish(absl::string_view label, const Attributes& attributes,
                                      absl::Duration timeout);
  // Ends a Publish under way on another thread with CANCELLED: leaves, lets nobody finish.
  void Abandon();
  // Until the sums of what was published are known. DEADLINE_EXCEEDED: not yet. What the server
  // said: it is published no longer.
  absl::Status AwaitSealed(absl::Duration timeout);
  // Lets readers in flight finish, at most so long, and leaves. What is not sealed yet is sealed
  // first, within the same time, unless the server is away: without the sums nobody could finish.
  absl::Status Drain(absl::Duration timeout);

  // A notice for all ranks, which leave at `deadline`: see Client::Preempt. Returns when they have.
  absl::Status Preempt(absl::Time deadline);

  // OK while all memberships live and what was published stays published: its sums may turn out to
  // differ from those of the version, a roll-back may withdraw it, or a rank of the group in
  // another process may be replaced.
  absl::Status CheckHeld();
  // True when `lost`, of CheckHeld, AwaitSealed or Publish, is no verdict on the content: a rank of
  // the group was replaced, and Publish offers the version again once all ranks have called it.
  static bool MayPublishAgain(const absl::Status& lost);
  uint64_t bytes() const;
  uint64_t bytes_sent() const;
  // "trainer/0" each.
  std::vector<std::string> ranks() const;

 private:
  struct Member {
    uint32_t rank = 0;
    std::string name;
    TensorMemory memory;  // before what reads it: it goes last
    std::unique_ptr<Client> client;
    WeightBuffer weights;
    bool server_away = false;
  };
  explicit Publisher(PublisherOptions options) : options_(std::move(options)) {}
  // Until a member's sums are at the server, or that is away: they get nowhere then.
  static void AwaitChecksums(Member& member, absl::Time deadline);
  absl::Status UnpublishAll(absl::Duration drain_timeout);

  const PublisherOptions options_;
  std::vector<Member> members_;
};

}  // namespace th

#endif  // TH_WORKER_PUBLISHER_H_
