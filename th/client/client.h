// TensorHub for training stacks: publish the weights you hold, or move your buffers to a version
// that others hold. No byte is copied at registration and none is kept by the server.
//
// A trainer rank:
//
//   TH_ASSIGN_OR_RETURN(auto hub, th::Client::Join({.server = "10.0.0.1:7077", .run = "r1",
//                                                   .model = "qwen3-8b", .group = "trainer",
//                                                   .rank = rank, .ranks = 8}));
//   TH_ASSIGN_OR_RETURN(th::WeightBuffer weights, hub->Register(tensors));
//   for (int64_t step = 1;; ++step) {
//     TH_RETURN_IF_ERROR(weights.Publish(step));  // returns at once; the buffers are frozen now
//     Generate();                                 // rollouts read meanwhile
//     TH_RETURN_IF_ERROR(weights.Unpublish());    // bounded drain; then the optimizer may write
//     optimizer.Step();
//   }
//
// A rollout rank:
//
//   TH_ASSIGN_OR_RETURN(th::WeightBuffer weights, hub->Register(tensors));
//   while (serving) {
//     TH_ASSIGN_OR_RETURN(th::UpdateResult result, weights.Update(th::Latest()));
//     if (result.moved()) OnNewWeights(result.version());  // else: not available yet, keep serving
//     ServeForAWhile();
//   }
//
// Publish, Unpublish and Update are group transactions: every rank of the group calls them in the
// same order, and all ranks get one result. Every call has a deadline.
//
// Thread-safety: Client and WeightBuffer may be used from any thread; verbs on one buffer are taken
// in the order in which they are called. Ownership: a WeightBuffer keeps its membership alive; the
// tensors' memory stays the caller's and must outlive the WeightBuffer, and must not be written
// while it is published.
//
// A guest in its host's process: one bounded set of named threads a process (th-*), all signals
// blocked in them; no global initialisation; nothing aborts on what a peer, a server or a caller
// sent. After a fork the child's every call returns FAILED_PRECONDITION.
#ifndef TH_CLIENT_CLIENT_H_
#define TH_CLIENT_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/client/tensor.h"
#include "th/protocol/catalog.h"
#include "th/topology/location.h"
#include "th/weights/digest.h"
#include "th/weights/shard_layout.h"
#include "th/weights/status_macros.h"
#include "th/weights/version.h"

namespace th {

struct ClientOptions {
  std::string server;  // "host:port" of the reference server
  std::string run;
  std::string model;
  std::string group;
  uint32_t rank = 0;
  uint32_t ranks = 1;  // of the group
  Location location;   // what is left empty is found out (host) or stays unknown
  bool spot = false;   // may vanish at short notice
  // Host memory for copies of retained versions whose last replica would go with this rank's
  // buffers. 0: none, and such an unpublish or update fails unless it says kDrop. Twice the shard
  // is enough for a trainer that keeps one version: the copy before may still be let go.
  uint64_t offload_limit_bytes = 0;
  std::string credentials;  // reserved: passed on, not checked yet
  absl::Duration join_timeout = absl::Seconds(10);
  // The data plane, one a process and server. The first client decides; a later one that differs is
  // refused with FAILED_PRECONDITION naming the option.
  std::string data_address = "";  // listen on; empty: the address that reaches the server
  uint32_t data_threads = 2;
  uint32_t connections_per_source = 2;
  uint64_t uplink_bytes_per_second = 0;  // 0: no cap
};

struct RegisterOptions {
  std::string name = "weights";  // all ranks of the group give a buffer the same name
  std::string form = kDefaultForm;
  uint64_t segment_bytes = 0;  // 0: chosen from the shard's size
  bool checksums = true;
};

// After which the caller's own work on the memory is done. Only "now" exists yet; a CUDA event
// will.
struct AfterNothing {};

struct PublishOptions {
  Attributes attributes;                       // handed to readers; at most kMaxAttributesBytes
  absl::Duration timeout = absl::Seconds(60);  // for all ranks to have published
  std::variant<AfterNothing> after;
  // Set when this buffer holds another form (fused, quantised) of a version that the group holds in
  // a second buffer: the label is that version's, and readers of this buffer's form find it under
  // the same version. NOT_FOUND, FAILED_PRECONDITION when the group does not hold it.
  std::optional<VersionSequence> derived_from;
  // Reserved: parts of a version (base, lora/x, draft). Anything but empty is UNIMPLEMENTED.
  std::string component;
};
struct UnpublishOptions {
  // Readers in flight are cut after this long; the call ends soon after.
  absl::Duration drain_timeout = absl::Seconds(5);
  absl::Duration timeout = absl::Seconds(60);
  // FAILED_PRECONDITION naming the rank without room, the buffer still published: with kOffload.
  OnRetention on_retention = OnRetention::kOffload;
  absl::Duration offload_timeout = kDefaultOffloadTimeout;  // of a copy, beside `timeout`
};
struct UpdateProgress {
  VersionInfo version;
  uint64_t bytes_received = 0;
  uint64_t bytes_total = 0;
  std::string source;     // "rollout-1/1", or several with commas
  std::string transport;  // "tcp"
};
struct UpdateOptions {
  std::string form;       // empty: the buffer's own; another one is UNIMPLEMENTED
  VersionSequence floor;  // nothing older than this
  absl::Duration timeout = absl::Minutes(10);
  absl::Duration drain_timeout = absl::Seconds(5);
  OnRetention on_retention = OnRetention::kOffload;  // as for Unpublish: what was held before
  absl::Duration offload_timeout = kDefaultOffloadTimeout;
  // While nobody in the group's site holds the version whole, and somebody brings it there: kWait
  // receives it as it comes; kSkip and kCopy end at once as not available (kSeeding), the buffer
  // serving what it has: ask again later. With nobody to bring it kSkip does so itself; kCopy does
  // in host memory (within offload_limit_bytes, for `timeout`; without room as kSkip) and ends as
  // not available too. All ranks ask alike. Without a site, or over several, a group waits.
  WhenSeeding when_seeding = WhenSeeding::kWait;
  std::variant<AfterNothing> after;
  // Up to twenty times a second, on a TensorHub thread; must not block or call into this buffer.
  std::function<void(const UpdateProgress&)> on_progress;
};

// What Publish came to.
struct PublishResult {
  VersionInfo version;
};

// One source's part of an update.
struct SourceShare {
  std::string name;  // "rollout-1/1"
  std::string peer;  // "tcp 10.0.0.7:4711"
  std::string transport;
  uint64_t bytes = 0;
  absl::Duration active;
  std::string failure;  // why it was left; empty: it was not
};

class UpdateResult {
 public:
  bool moved() const { return outcome == UpdateOutcome::kMoved; }
  bool already_there() const { return outcome == UpdateOutcome::kAlreadyThere; }
  bool not_available() const { return outcome == UpdateOutcome::kNotAvailable; }
  const VersionInfo& version() const { return info; }

  UpdateOutcome outcome = UpdateOutcome::kNone;
  NotAvailableReason reason = NotAvailableReason::kNone;
  VersionInfo info;  // with the publisher's attributes
  // Where the seconds of this rank went. Their sum is the stall.
  absl::Duration resolve, queue, transfer, verify, apply;
  absl::Duration stall() const { return resolve + queue + transfer + verify + apply; }
  uint64_t bytes_received = 0;
  uint32_t reroutes = 0;
  uint64_t rerouted_bytes = 0;  // received after the first re-route
  // Received and thrown away, so received again: mostly the part of a segment that had come when
  // its source was lost.
  uint64_t reread_bytes = 0;
  uint64_t corrupt_segments = 0;
  // The most memory beyond the caller's buffer that the transfer held at one time: requests,
  // control frames, bytes on their way. The kernel's socket buffers are not counted.
  uint64_t peak_extra_bytes = 0;
  std::vector<SourceShare> sources;
};

// `back`: so many published versions before it.
inline VersionSelector Latest(uint32_t back = 0) { return LatestVersion{.back = back}; }

template <typename T>
using ResultCallback = std::function<void(absl::StatusOr<T>)>;

class Client;

// A registered set of tensors: one shard of this rank. A movable handle; copies are not made. The
// destructor withdraws it: readers are cut, the server is told.
class WeightBuffer {
 public:
  WeightBuffer();
  ~WeightBuffer();
  WeightBuffer(WeightBuffer&&) noexcept;
  WeightBuffer& operator=(WeightBuffer&&) noexcept;

  // Freezes the buffer and offers it as version `label`; returns within a millisecond. The group's
  // result is in AwaitPublished; an error of it also comes out of the next verb.
  // FAILED_PRECONDITION when the buffer is published, being filled or undefined.
  absl::Status Publish(int64_t step, PublishOptions options = {});
  absl::Status Publish(absl::string_view label, PublishOptions options = {});
  // The result of the last Publish: all ranks have published, the version is there for readers.
  absl::StatusOr<PublishResult> AwaitPublished();
  // The sums of the last Publish are done and their root is sent to the server. DEADLINE_EXCEEDED,
  // FAILED_PRECONDITION when the buffer is not published any more.
  absl::Status AwaitSealed(absl::Duration timeout);

  // Takes the buffer back: OK means that it may be written. DEADLINE_EXCEEDED names a missing rank;
  // this rank's buffer is writable then too.
  absl::Status Unpublish(UnpublishOptions options = {});

  // Moves the buffer (on all ranks) to a version. An answer "not available" is no error. After an
  // error see undefined().
  absl::StatusOr<UpdateResult> Update(VersionSelector version, UpdateOptions options = {});
  // The same without blocking; `done` runs once, on a TensorHub thread.
  void UpdateAsync(VersionSelector version, UpdateOptions options,
                   ResultCallback<UpdateResult> done);
  void UnpublishAsync(UnpublishOptions options, std::function<void(absl::Status)> done);

  // Other addresses for the same tensors (the allocator moved them). Only while writable: an
  // undefined buffer is to be Reset first, with which the caller answers for what it holds.
  // INVALID_ARGUMENT naming the tensor that is another; FAILED_PRECONDITION.
  absl::Status Rebind(const std::vector<Tensor>& tensors);
  // An update failed after its first write: what the buffer holds is a mixture. Left by a good
  // Update, or by Reset, with which the caller answers for the content.
  bool undefined() const;
  absl::Status Reset();

  // The version held or published; an empty sequence: none.
  VersionInfo version() const;
  uint64_t bytes() const;  // of the distinct storages
  Digest layout_digest() const;
  // Bytes that this buffer has sent to readers since its registration.
  uint64_t bytes_sent() const;

 private:
  friend class Client;
  struct Impl;
  explicit WeightBuffer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// One rank's membership of a group of a model.
class Client {
 public:
  // Connects and joins. UNAVAILABLE after join_timeout without a server; ALREADY_EXISTS when
  // another live worker holds the rank (it is named); INVALID_ARGUMENT.
  static absl::StatusOr<std::unique_ptr<Client>> Join(ClientOptions options);
  // Leaves. Buffers that are still alive end: their calls return CANCELLED.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // INVALID_ARGUMENT naming the tensor: duplicate name, strides, overlapping storages, null data,
  // sizes that disagree. Tensors at the same address with the same size are taken as aliases.
  absl::StatusOr<WeightBuffer> Register(std::vector<Tensor> tensors, RegisterOptions options = {});

  // Every later version is withdrawn; readers move back at their next Update. Returns the version
  // gone back to. `idempotency_key` empty: one is made.
  absl::StatusOr<VersionInfo> RollBack(VersionSelector to, std::string idempotency_key = "");

  // Clean: tells the server, cuts readers. Idempotent; the destructor calls it.
  absl::Status Leave(absl::Duration timeout = absl::Seconds(2));

  // OK while the membership lives; else why it ended ("replaced by ...").
  absl::Status membership() const;
  // Control bytes of this membership, both ways, since the join (messages, without gRPC's framing).
  uint64_t control_bytes() const;
  // "host:port" of this process's data plane.
  std::string data_endpoint() const;

 private:
  struct Impl;
  explicit Client(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// A client without a rank: it looks, waits and pins. Thread-safe.
class Controller {
 public:
  struct Options {
    std::string server;
    std::string run;  // "" for List over all runs
    std::string model;
    absl::Duration connect_timeout = absl::Seconds(10);
  };
  static absl::StatusOr<std::unique_ptr<Controller>> Connect(Options options);
  ~Controller();

  absl::StatusOr<Catalog> List(absl::Duration timeout = absl::Seconds(10));
  absl::StatusOr<VersionInfo> Resolve(VersionSelector version,
                                      absl::Duration timeout = absl::Seconds(10));
  // Until `version` is published. DEADLINE_EXCEEDED.
  absl::StatusOr<VersionInfo> WaitFor(VersionSelector version, absl::Duration timeout);
  absl::StatusOr<VersionInfo> RollBack(VersionSelector to, std::string idempotency_key = "");
  // An empty form: every form (of Retain: every one without a policy of its own).
  absl::Status Retain(uint32_t keep_latest, std::string form = "");
  absl::StatusOr<VersionInfo> Pin(VersionSelector version, std::string owner,
                                  absl::Duration expires_after = absl::InfiniteDuration(),
                                  std::string form = "");
  absl::Status Release(VersionSelector version, std::string owner, std::string form = "");
  absl::StatusOr<ShardLayout> GetLayout(Digest digest, absl::Duration timeout = absl::Seconds(10));

 private:
  struct Impl;
  explicit Controller(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Threads that TensorHub itself runs in this process apart from the data plane's and gRPC's; 0 when
// no client and no controller lives.
int RuntimeThreadCount();

}  // namespace th

#endif  // TH_CLIENT_CLIENT_H_
