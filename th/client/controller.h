// A client without a rank: what is there, who holds it, and how long it stays.
//
//   TH_ASSIGN_OR_RETURN(auto hub, th::Controller::Connect({.server = "10.0.0.1:7077", .run = "r1",
//                                                          .model = "qwen3-8b"}));
//   TH_ASSIGN_OR_RETURN(th::VersionInfo best, hub->Pin(th::Latest(), "eval", absl::Hours(2)));
#ifndef TH_CLIENT_CONTROLLER_H_
#define TH_CLIENT_CONTROLLER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/client/results.h"
#include "th/client/verb_options.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/catalog.h"
#include "th/protocol/event.h"
#include "th/weights/digest.h"
#include "th/weights/shard_layout.h"
#include "th/weights/version.h"

namespace th {

// A client without a rank: it looks, waits and pins. Thread-safe; its calls block, for 30 s at most
// where they take no timeout, and are made again while the server restarts.
//
// Errors of all: DEADLINE_EXCEEDED; UNAVAILABLE while the server recovers from a restart;
// FAILED_PRECONDITION in a TensorHub callback and in a forked child. Of those that name a version:
// NOT_FOUND (no such model or version, nothing published), FAILED_PRECONDITION when it was
// withdrawn.
class Controller {
 public:
  struct Options {
    std::string server;
    std::string run;  // "" for List over all runs
    std::string model;
    absl::Duration connect_timeout = absl::Seconds(10);
  };
  // INVALID_ARGUMENT for an address without a port; UNAVAILABLE without a server in time.
  static absl::StatusOr<std::unique_ptr<Controller>> Connect(Options options);
  ~Controller();

  // Models, versions and who holds them: of the options' run and model, all where they are empty.
  absl::StatusOr<Catalog> List(absl::Duration timeout = absl::Seconds(10));
  // The recent events in the run and model of the options, and the server's own, which have an
  // empty key; oldest first. `id` empty: all operations. Ask on with `after` = the answer's `last`;
  // another epoch counts from 1 again.
  absl::StatusOr<RecentEvents> Events(uint64_t after = 0, EventId id = {},
                                      absl::Duration timeout = absl::Seconds(10));
  // Which version the name stands for now.
  absl::StatusOr<VersionInfo> Resolve(VersionSelector version,
                                      absl::Duration timeout = absl::Seconds(10));
  // Until `version` is published, at most so long. DEADLINE_EXCEEDED saying why it is not there.
  absl::StatusOr<VersionInfo> WaitFor(VersionSelector version, absl::Duration timeout);
  // Until every one of `groups` holds `version` whole, on all its ranks: OK then, and also when
  // `timeout` has passed, with who lacks it. DEADLINE_EXCEEDED where it is not published by then. A
  // name like `latest` stands for what it stands for once that is published; it ends up to 2 s
  // late. The server is asked for its list 20 times a second at most, ever less often down to once
  // a second.
  absl::StatusOr<AppliedResult> WaitApplied(VersionSelector version,
                                            std::vector<std::string> groups,
                                            absl::Duration timeout);
  // As Client::RollBack.
  absl::StatusOr<VersionInfo> RollBack(VersionSelector to, std::string idempotency_key = "");
  // The `keep_latest` newest versions of the model stay fetchable; 0: no policy. The last caller
  // wins. In these three an empty form is every form (of Retain: every one without a policy of
  // its own), and RESOURCE_EXHAUSTED names the limit of policies or pins.
  absl::Status Retain(uint32_t keep_latest, std::string form = "");
  // Keeps one version fetchable until Release or for so long; each owner's pin counts by itself.
  // Again: with the new expiry. INVALID_ARGUMENT: an expiry that is not positive.
  absl::StatusOr<VersionInfo> Pin(VersionSelector version, std::string owner,
                                  absl::Duration expires_after = absl::InfiniteDuration(),
                                  std::string form = "");
  // NOT_FOUND when the owner has no pin on it.
  absl::Status Release(VersionSelector version, std::string owner, std::string form = "");
  // The server's record of the model goes: its versions, pins, policies and roll-backs; sequences
  // of versions are not used again. FAILED_PRECONDITION naming the groups that the model has;
  // NOT_FOUND where there is none, which is said too where an earlier call's answer was lost.
  absl::Status Forget();
  // Which shard a streaming reader means (its key is that of the options): what Client::Receive
  // asks for, at a cost that does not grow with the model's ranks. NOT_FOUND: the rank has no such
  // buffer; INVALID_ARGUMENT: the version has several shards and no group is named.
  absl::StatusOr<FoundShard> FindShard(ShardQuery query,
                                       absl::Duration timeout = absl::Seconds(10));
  // The tensors of a shard, by the digest that List, FindShard and WeightBuffer tell. NOT_FOUND;
  // DATA_LOSS when what came is another one.
  absl::StatusOr<ShardLayout> GetLayout(Digest digest, absl::Duration timeout = absl::Seconds(10));

 private:
  friend class Client;
  friend struct ControllerOfTest;
  // Client::AwaitForm for `group`, which has a rank.
  absl::StatusOr<AwaitedForm> AwaitForm(VersionSelector version, const std::string& form,
                                        const std::string& group, absl::Duration timeout);
  struct Impl;
  explicit Controller(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace th

#endif  // TH_CLIENT_CONTROLLER_H_
