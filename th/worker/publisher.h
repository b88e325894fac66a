// A checkpoint folder held and offered as a version: what `tensorhub_worker publish` is.
//
//   TH_ASSIGN_OR_RETURN(auto publisher, Publisher::Load(options));    // memory, bytes, memberships
//   TH_RETURN_IF_ERROR(publisher->Publish("step-57", attributes));    // all its ranks; sealed
//   ... until it is to end ...
//   TH_RETURN_IF_ERROR(publisher->Drain(absl::Seconds(5)));           // readers in flight may
//   finish
//
// It plays one rank of the group, or all of them. Not thread-safe.
#ifndef TH_WORKER_PUBLISHER_H_
#define TH_WORKER_PUBLISHER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
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
  // Reads the folder's tensors and joins. Errors of CheckpointFolder::Open, SplitIntoShards,
  // Client.
  static absl::StatusOr<std::unique_ptr<Publisher>> Load(const PublisherOptions& options);

  // Returns once the version is there for readers and its sums are sealed, which for another rank
  // of the group that never comes is an error after `timeout`.
  absl::StatusOr<VersionInfo> Publish(absl::string_view label, const Attributes& attributes,
                                      absl::Duration timeout);
  // Lets readers in flight finish, at most so long, and leaves.
  absl::Status Drain(absl::Duration timeout);

  // OK while all memberships live and what was published stays published: its sums may turn out to
  // differ from those of the version, or a roll-back may withdraw it.
  absl::Status CheckHeld();
  uint64_t bytes() const;
  uint64_t bytes_sent() const;
  // "trainer/0" each.
  std::vector<std::string> ranks() const;

 private:
  struct Member {
    std::string name;
    TensorMemory memory;  // before what reads it: it goes last
    std::unique_ptr<Client> client;
    WeightBuffer weights;
  };
  absl::Status UnpublishAll(absl::Duration drain_timeout);

  std::vector<Member> members_;
};

}  // namespace th

#endif  // TH_WORKER_PUBLISHER_H_
