// Publisher reads a checkpoint folder, registers its tensors with one client per rank, offers them
// as a version and holds them until it is drained. `tensorhub_worker publish` is a loop around it.
//
//   TH_ASSIGN_OR_RETURN(auto publisher, Publisher::Load(options));  // memory and bytes
//   TH_RETURN_IF_ERROR(publisher->Join());                          // memberships
//   TH_ASSIGN_OR_RETURN(version, publisher->Publish("step-57", attributes, timeout));
//   TH_RETURN_IF_ERROR(publisher->AwaitSealed(timeout));
//   ... until it is to end ...
//   TH_RETURN_IF_ERROR(publisher->Drain(absl::Seconds(5)));  // readers in flight may finish
//
// It plays one rank of the group, or all of them in this process. Not thread-safe, except that
// Abandon may be called while another thread is in Publish.
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
  ClientOptions client;  // `rank` and `ranks` are ignored: Join sets them for each rank
  std::string folder;    // the checkpoint, of safetensors files
  uint32_t ranks = 1;    // the size of the group
  uint32_t shards = 0;   // distinct ones; 0: as many as ranks. Rank r holds shard r % shards
  std::optional<uint32_t> rank;  // set: this process plays only this rank
  std::string form = kDefaultForm;
};

class Publisher {
 public:
  // Reads the folder's tensors. Errors of CheckpointFolder::Open and SplitIntoShards.
  static absl::StatusOr<std::unique_ptr<Publisher>> Load(PublisherOptions options);
  // Errors of Client::Join and Client::Register.
  absl::Status Join();

  // Publishes on every rank of this process, and returns when readers can find the version.
  // DEADLINE_EXCEEDED when another rank of the group has not published within `timeout`.
  absl::StatusOr<VersionInfo> Publish(absl::string_view label, const Attributes& attributes,
                                      absl::Duration timeout);
  // Ends a Publish under way on another thread with CANCELLED: leaves, lets nobody finish.
  void Abandon();
  // Waits until the server has the checksums of what was published. DEADLINE_EXCEEDED: not within
  // `timeout`. Any other error says why it is published no longer.
  absl::Status AwaitSealed(absl::Duration timeout);
  // Waits until the server has the checksums, unless it is away, then lets readers in flight
  // finish, and leaves. Readers need the checksums to verify what they received. All of it takes at
  // most `timeout` and a second.
  absl::Status Drain(absl::Duration timeout);

  // Gives notice for all ranks (Client::Preempt; `deadline` is of absl::Now's clock), waits until
  // they have left, at most two seconds beyond `deadline`, and ends those that have not. The first
  // error of a rank.
  absl::Status Preempt(absl::Time deadline);

  // OK while all memberships live and what was published stays published: its sums may turn out to
  // differ from those of the version, a roll-back may withdraw it, or a rank of the group in
  // another process may be gone. Logs it when the server goes away and when it comes back.
  absl::Status CheckHeld();
  // True when `lost`, of CheckHeld, AwaitSealed or Publish, is no verdict on the content: a rank of
  // the group is gone or replaced, and Publish offers the version again once all ranks have called
  // it.
  static bool MayPublishAgain(const absl::Status& lost);
  // True when a Publish after a loss was refused, because a rank that left alone had called another
  // operation of this number: the next one is in step.
  static bool IsOutOfStep(const absl::Status& refused);
  uint64_t bytes() const;  // held by the ranks of this process
  uint64_t bytes_sent() const;
  // "trainer/0" each.
  std::vector<std::string> ranks() const;

 private:
  struct Member {
    uint32_t rank = 0;
    std::string name;
    TensorMemory memory;  // declared first, as it must outlive what reads it
    std::unique_ptr<Client> client;
    WeightBuffer weights;
    bool server_away = false;  // as CheckHeld has logged it last
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
