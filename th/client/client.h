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
// Publish, Unpublish, Update, Stage, Apply and Receive are group transactions: every rank of the
// group calls them in the same order, and all ranks get one result. Every call has a deadline. The
// text of an error begins with a stable code word and names rank, cause and the state of the buffer
// (UPDATE_STALLED ...: th/worker_session/error_text.h); FieldsOf has word, rank and event by
// themselves.
//
// Thread-safety: Client and WeightBuffer may be used from any thread. One verb at a time on a
// buffer: another one meanwhile is FAILED_PRECONDITION; but Unpublish may follow a Publish that is
// still under way, and DiscardStaged ends a Stage. Ownership: a WeightBuffer keeps its membership
// alive; the tensors' memory stays the caller's and must outlive the WeightBuffer, and must not be
// written while it is published.
//
// A call that waits is cancelled from another thread by a Cancellation (th/client/cancellation.h),
// which says what each leaves behind.
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
#include "th/client/attach.h"
#include "th/client/cancellation.h"
#include "th/client/receive.h"
#include "th/client/tensor.h"
#include "th/protocol/catalog.h"
#include "th/protocol/error_fields.h"
#include "th/protocol/event.h"
#include "th/topology/location.h"
#include "th/weights/digest.h"
#include "th/weights/shard_layout.h"
#include "th/weights/status_macros.h"
#include "th/weights/version.h"

namespace th {

// The end of one reader of this process's buffers. With `event`, the name of the reader's
// operation, the reader's, the server's and this source's logs are read side by side. A value.
struct ReaderReport {
  enum class What { kAdmitted, kRefused, kReleased };
  What what = What::kAdmitted;
  EventId event;
  WorkerId reader;
  VersionSequence version;
  uint64_t bytes_sent = 0;  // kReleased
  absl::Status refusal;     // kRefused
  // kReleased: why this process ended the transfer at once, as when the reader takes no bytes while
  // others wait; empty: it did not.
  std::string why_ended;
};

// The names that ClientOptions::transports may have, the best first.
const std::vector<std::string>& TransportNames();

struct ClientOptions {
  // "host:port" of the reference server, or several of one cluster with commas: tried in turn.
  std::string server;
  std::string run;
  std::string model;
  std::string group;
  uint32_t rank = 0;
  uint32_t ranks = 1;  // of the group
  Location location;   // what is left empty is found out (host) or stays unknown
  bool spot = false;   // may vanish at short notice
  // Host memory for copies of retained versions whose last replica would go with this rank's
  // buffers. 0: none, and such an unpublish or update fails unless it says kDrop (an unpublish
  // without a server drains). Twice the shard is enough for a trainer that keeps one version: the
  // copy before may still be let go.
  uint64_t offload_limit_bytes = 0;
  // Host memory for versions that are received beside what the buffers hold (Stage), until they are
  // applied. 0: none, and Stage fails where it would need it. Where it is set Update stages too.
  // All ranks of a group declare it, or none.
  uint64_t staging_limit_bytes = 0;
  // Host memory for snapshots of published buffers (PublishOptions::snapshot), kept for the next.
  uint64_t snapshot_limit_bytes = 0;
  std::string credentials;  // reserved: passed on, not checked yet
  // For logs, on a TensorHub thread; must not block or call into TensorHub. Reports are dropped
  // where it is too slow for them.
  std::function<void(const ReaderReport&)> on_reader;
  absl::Duration join_timeout = absl::Seconds(10);
  // The data plane, one a process and server. The first client decides; a later one that differs is
  // refused with FAILED_PRECONDITION naming the option.
  std::string data_address = "";  // listen on; empty: the address that reaches the server
  uint32_t data_threads = 2;
  uint32_t connections_per_source = 2;
  // Caps the bytes sent over TCP; readers that use cuda_ipc or same_host are not held back, and
  // ibverbs is not used beside it. 0: no cap.
  uint64_t uplink_bytes_per_second = 0;
  // How bytes may move, the best first: "cuda_ipc" (GPUs of this host take them out of each other's
  // memory, where both processes have some and had loaded the CUDA driver when they joined, or
  // name this), "same_host" (readers on this host take them out of this process's memory),
  // "ibverbs" (RDMA, where both hosts have it), "tcp". Each transfer uses the first one that both
  // ends have and that reaches; SourceShare says which and why. Empty: all that there are.
  std::vector<std::string> transports;
  // Readers of this host may use versions where they lie in arenas of TensorHub's in this process
  // (Client::Attach). Such an arena stays theirs when it is to be written again: the most bytes
  // that readers may have attached or been left so; beyond it they are refused. 0: nobody attaches.
  // Empty: a quarter of the host's memory.
  std::optional<uint64_t> attach_limit_bytes;
  // The RDMA devices ("mlx5_0") that ibverbs uses; empty: all that can be used, and
  // Client::left_out names the others. If any is named, Join fails where ibverbs cannot begin, or
  // one cannot be used.
  std::vector<std::string> rdma_devices;
  // Memory of hosts and GPUs that ibverbs registers with them, over all buffers of the process. One
  // beyond it is served and received over the next transport, with the reason. Empty: 1 TiB.
  std::optional<uint64_t> rdma_registered_limit_bytes;
  // A source is read over the first of these transports that it has too and that leads there, or
  // the update fails with the reason, rather than over a slower one. One that is amiss counts: not
  // begun in this process (ibverbs without an RDMA device, where `transports` is empty), memory
  // that could not be registered, another network namespace. One that does not lead there does not:
  // cuda_ipc without memory of GPUs, cuda_ipc and same_host to another host.
  bool strict_transport = false;
};

struct RegisterOptions {
  std::string name = "weights";  // all ranks of the group give a buffer the same name
  std::string form = kDefaultForm;
  uint64_t segment_bytes = 0;  // 0: chosen from the shard's size
  // Content without them is compared with nothing: while somebody else holds a version, publishing
  // its label again is ALREADY_EXISTS.
  bool checksums = true;
};

// After which the caller's own work on the memory is done: only "now" exists. What a GPU's stream
// is still writing is waited for by PublishOptions::after_cuda_event.
struct AfterNothing {};

// Where a publication is served from.
enum class Snapshot : uint8_t {
  kNone = 0,  // the tensors themselves, which are frozen until Unpublish has returned
  kHost = 1,  // a copy in host memory, under ClientOptions::snapshot_limit_bytes
};

struct PublishOptions {
  Attributes attributes;                       // handed to readers; at most kMaxAttributesBytes
  absl::Duration timeout = absl::Seconds(60);  // for all ranks to have published
  std::variant<AfterNothing> after;
  // Set when this buffer holds another form (fused, quantised) of a version that the group holds in
  // a second buffer: the label is that version's, and readers of this buffer's form find it under
  // the same version. NOT_FOUND, FAILED_PRECONDITION when the group does not hold it.
  std::optional<VersionSequence> derived_from;
  // kHost: Publish copies the tensors before it returns; from then on they are the caller's to
  // write or to free, and only the copy is published. Unpublish then waits for readers of the copy
  // alone. Without room RESOURCE_EXHAUSTED, and nothing is published; with snapshot_or_in_place it
  // goes on in place: see PublishResult::snapshot_bytes, or WeightBuffer::snapshot_bytes.
  Snapshot snapshot = Snapshot::kNone;
  bool snapshot_or_in_place = false;
  // Tensors in GPU memory: Publish returns once what this CUevent (torch: Event.cuda_event) of
  // their GPU has recorded by now has happened, so that what a stream is still writing is never
  // read. Within `timeout` (DEADLINE_EXCEEDED). INVALID_ARGUMENT where no tensor lies on a GPU.
  // Without it the caller sees to that itself (torch.cuda.synchronize).
  std::optional<uintptr_t> after_cuda_event;
  // Reserved: parts of a version (base, lora/x, draft). Anything but empty is UNIMPLEMENTED.
  std::string component;
};
struct UnpublishOptions {
  // Readers in flight are cut after this long; the call ends soon after.
  absl::Duration drain_timeout = absl::Seconds(5);
  absl::Duration timeout = absl::Seconds(60);  // for all ranks to come
  // The effect on the last replica of a retained version. kOffload: it is copied to host memory
  // first, under offload_limit_bytes; without room FAILED_PRECONDITION naming the rank, the buffer
  // still published, as with DEADLINE_EXCEEDED before anything began. With the server away what it
  // has named is copied where there is room, and goes where there is none. kDrop: it goes, and with
  // it the version, also where other ranks of the group ask for kOffload.
  OnRetention on_retention = OnRetention::kOffload;
  absl::Duration offload_timeout = kDefaultOffloadTimeout;  // of a copy, beside `timeout`
};
// The progress of this rank's shard, while it arrives.
struct UpdateProgress {
  VersionInfo version;
  uint64_t bytes_received = 0;  // and checked; what is unchanged counts
  uint64_t bytes_total = 0;
  std::string source;     // "rollout-1/1", or several with commas
  std::string transport;  // "tcp"
};
struct UpdateOptions {
  std::string form;       // empty: the buffer's own; another one is UNIMPLEMENTED
  VersionSequence floor;  // nothing older than this
  absl::Duration timeout = absl::Minutes(10);
  absl::Duration drain_timeout = absl::Seconds(5);
  // As for Unpublish: what was held before. All ranks alike: INVALID_ARGUMENT where they disagree.
  OnRetention on_retention = OnRetention::kOffload;
  absl::Duration offload_timeout = kDefaultOffloadTimeout;
  // Straight into the buffer, even where staging_limit_bytes is set. All ranks alike.
  bool in_place = false;
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

struct StageOptions {
  VersionSequence floor;  // nothing older than this
  absl::Duration timeout = absl::Minutes(10);
  // As of UpdateOptions, but kCopy does what kSkip does: what is staged is a copy already.
  WhenSeeding when_seeding = WhenSeeding::kWait;
  std::function<void(const UpdateProgress&)> on_progress;  // as of UpdateOptions
};
struct ApplyOptions {
  absl::Duration timeout = absl::Seconds(60);  // for all ranks to come, and to copy
  absl::Duration drain_timeout = absl::Seconds(5);
  OnRetention on_retention = OnRetention::kOffload;  // as for Unpublish: what was held before
  absl::Duration offload_timeout = kDefaultOffloadTimeout;
};

// The result of Publish.
struct PublishResult {
  VersionInfo version;
  uint64_t snapshot_bytes = 0;  // 0: it is served in place
  absl::Duration snapshot;      // that the copy took
};

// One source's part of an update.
struct SourceShare {
  std::string name;  // "rollout-1/1"
  std::string peer;  // "tcp 10.0.0.7:4711"
  std::string transport;
  // Why not over a better transport that the source has: "same_host: on another host".
  std::string passed_over;
  uint64_t bytes = 0;
  absl::Duration active;  // from its first byte to its last
  std::string failure;    // why it was left; empty: it was not
  Distance distance = Distance::kSameSite;
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
  // The server's name of the operation, the same in its log, in `th events` and at every source.
  EventId event;
  // Where the seconds of this rank went. Their sum is the stall, but of Stage, which stalls nobody.
  absl::Duration resolve, queue, transfer, verify, apply;
  absl::Duration seconds() const { return resolve + queue + transfer + verify + apply; }
  absl::Duration stall() const { return beside ? absl::ZeroDuration() : seconds(); }
  bool beside = false;  // of Stage: the buffer was in use all the time
  uint64_t bytes_received = 0;
  // Not received: the buffer had the same bytes from the version before.
  uint64_t bytes_unchanged = 0;
  uint32_t reroutes = 0;
  uint64_t rerouted_bytes = 0;  // received after the first re-route
  // Received and thrown away, so received again: mostly the part of a segment that had come when
  // its source was lost.
  uint64_t reread_bytes = 0;
  uint64_t corrupt_segments = 0;
  // Received beside the weights and thrown away: gaps between tensors of a source that its readers'
  // adapters read together (ibverbs), at most 1 % of each segment.
  uint64_t packing_overhead_bytes = 0;
  // The most memory beyond the caller's buffer that the transfer held at one time: a staged copy,
  // requests, control frames, bytes on their way. The kernel's socket buffers are not counted.
  uint64_t peak_extra_bytes = 0;
  uint64_t staged_bytes = 0;  // of these, the staged copy's
  std::vector<SourceShare> sources;
};

// `back`: so many published versions before it.
inline VersionSelector Latest(uint32_t back = 0) { return LatestVersion{.back = back}; }

template <typename T>
using ResultCallback = std::function<void(absl::StatusOr<T>)>;

class Client;

// A registered set of tensors: one shard of this rank. A movable handle; copies are not made. The
// destructor withdraws it: readers end the segment under way, the server is told.
class WeightBuffer {
 public:
  WeightBuffer();
  ~WeightBuffer();
  WeightBuffer(WeightBuffer&&) noexcept;
  WeightBuffer& operator=(WeightBuffer&&) noexcept;

  // Freezes the buffer and offers it as version `label`; returns within a millisecond (with a
  // snapshot: when that is made; the buffer is free then). The group's result is in AwaitPublished;
  // an error of it also comes out of the next verb. FAILED_PRECONDITION when the buffer is
  // published, being filled or undefined.
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

  // Moves the buffer (on all ranks) to a version. An answer "not available" is no error. Where
  // staging_limit_bytes is set the version is staged first: a transfer that fails leaves the buffer
  // as it was. After an error see undefined(). DEADLINE_EXCEEDED naming the rank or source that was
  // waited for, or the GPU that hangs; UNAVAILABLE: no source was left; ABORTED: the version was
  // withdrawn, a rank of the group replaced; FAILED_PRECONDITION: another verb is under way, or no
  // room to keep what is retained; CANCELLED: this client has left.
  absl::StatusOr<UpdateResult> Update(VersionSelector version, UpdateOptions options = {});
  // Receives a version into spare host memory while the buffer stays as it is, in use and served:
  // on all ranks, as an operation of the group. moved(): it is staged, until it is applied,
  // discarded or staged anew. already_there(): the buffer holds it. An error leaves the buffer as
  // it was and nothing staged. RESOURCE_EXHAUSTED naming the rank without room under
  // staging_limit_bytes.
  //
  //   TH_ASSIGN_OR_RETURN(th::UpdateResult staged, weights.Stage(th::Latest()));  // serving on
  //   if (staged.moved()) { Pause(); status = weights.Apply().status(); Resume(); }
  absl::StatusOr<UpdateResult> Stage(VersionSelector version, StageOptions options = {});
  // Moves what is staged into the buffer, on all ranks or on none: no buffer is touched before all
  // ranks have called it. It takes the drain and a copy within the host. FAILED_PRECONDITION when
  // nothing is staged, ABORTED when it was withdrawn since; after an error see undefined(). What is
  // staged is freed by a good Apply, and kept by a failed one.
  absl::StatusOr<UpdateResult> Apply(ApplyOptions options = {});
  // Ends a Stage under way with CANCELLED, frees what is staged once its readers have let go.
  void DiscardStaged();
  // The version that is staged; an empty sequence: none.
  VersionInfo staged() const;
  // Stage, Apply, Update and Unpublish without blocking; `done` runs once, on a TensorHub thread.
  void StageAsync(VersionSelector version, StageOptions options, ResultCallback<UpdateResult> done);
  void ApplyAsync(ApplyOptions options, ResultCallback<UpdateResult> done);
  void UpdateAsync(VersionSelector version, UpdateOptions options,
                   ResultCallback<UpdateResult> done);
  void UnpublishAsync(UnpublishOptions options, std::function<void(absl::Status)> done);

  // Other addresses for the same tensors (the allocator moved them). Only while writable, or
  // asleep: then it wakes the buffer. An undefined buffer is to be Reset first, with which the
  // caller answers for what it holds. INVALID_ARGUMENT naming the tensor that is another;
  // FAILED_PRECONDITION; DEADLINE_EXCEEDED names a GPU that still uses the memory where it lies
  // now, and nothing has changed: call again. After OK that memory may be freed.
  absl::Status Rebind(const std::vector<Tensor>& tensors);

  // For an engine that gives the memory of its tensors back for a while:
  //
  //     TH_RETURN_IF_ERROR(weights.Sleep());   // on all ranks, like Unpublish
  //     engine.Sleep();                        // frees or unmaps the memory
  //     ...
  //     engine.WakeUp();                       // maps it again, at the same addresses
  //     TH_RETURN_IF_ERROR(weights.Wake());
  //     TH_RETURN_IF_ERROR(weights.Update(Latest()).status());
  //
  // Sleep takes the buffer back, as Unpublish does with these options, where it is published or
  // holds a version, and withdraws its memory from all transports. OK means that the memory may be
  // freed, unmapped or become something else; after an error it may not. It stays registered with
  // the server, and Publish, Update, Stage, Apply and Unpublish are FAILED_PRECONDITION until it
  // wakes. What Unpublish returns; FAILED_PRECONDITION while another verb is under way, or where
  // the buffer is undefined: Reset it first. DEADLINE_EXCEEDED names the GPU that still reads the
  // memory: call Sleep again, which waits for it again. Sleep of a buffer that is asleep does
  // nothing else.
  absl::Status Sleep(UnpublishOptions options = {});
  // The tensors lie where they lay when it fell asleep (else Rebind, which wakes it too), and are
  // registered anew. The buffer is writable, whatever its bytes are now; it holds no version.
  // FAILED_PRECONDITION: it is not asleep, or names the tensor that was GPU memory and is none now,
  // or another thread's Sleep, Wake or Rebind is under way. What Register returns for memory. Also
  // after a Sleep that ran out of time, for memory that was not given back: the next Sleep or
  // Rebind waits for what still uses it.
  absl::Status Wake();
  // True from the Sleep that has withdrawn the memory until Wake or Rebind. Only OK of Sleep says
  // that the memory may be freed: a GPU may still read that of a buffer that is asleep.
  bool asleep() const;
  // An update failed after its first write: what the buffer holds is a mixture. Left by a good
  // Update, or by Reset, with which the caller answers for the content.
  bool undefined() const;
  // Waits for GPUs that the update has given up. DEADLINE_EXCEEDED names one that has not ended
  // what it writes or reads: call again, which waits again; while one writes, the buffer stays
  // undefined. FAILED_PRECONDITION: it is published, or another verb is under way.
  absl::Status Reset();

  // The version held or published; an empty sequence: none.
  VersionInfo version() const;
  uint64_t bytes() const;  // of the distinct storages
  Digest layout_digest() const;
  // The bytes of host memory from which the buffer is published; 0: it is in place, or not
  // published.
  uint64_t snapshot_bytes() const;
  // How its GPU memory is registered with transports, or why it is staged, for logs: "ibverbs:
  // memory of GPU 0000:3b:00.0 registered by DMA-BUF with mlx5_0". Empty: nothing to say.
  std::vector<std::string> gpu_registrations() const;
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
  // Connects and joins. UNAVAILABLE after join_timeout without a server, the look-up of its name
  // included; ALREADY_EXISTS when another live worker holds the rank (it is named);
  // INVALID_ARGUMENT.
  static absl::StatusOr<std::unique_ptr<Client>> Join(ClientOptions options);
  // Leaves. Buffers that are still alive end: their calls return CANCELLED.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // INVALID_ARGUMENT naming the tensor: duplicate name, strides, overlapping storages, null data,
  // sizes that disagree, memory that cannot be read (not mapped, PROT_NONE, of a file that shrank).
  // Memory of the host that this process can read is taken, whether private, shared or of a file,
  // and GPU memory where the process has loaded the CUDA driver; what is unmapped later is not
  // noticed. Reads /proc/self/maps: a millisecond for 1,000 mappings. Tensors at the same address
  // with the same size are taken as aliases.
  absl::StatusOr<WeightBuffer> Register(std::vector<Tensor> tensors, RegisterOptions options = {});

  // Until `version` is published, at most so long. DEADLINE_EXCEEDED saying why it is not there
  // (not published, withdrawn, lost with a server). UNAVAILABLE without a server. Whether somebody
  // holds it still is Update's to say.
  absl::StatusOr<VersionInfo> WaitFor(VersionSelector version, absl::Duration timeout);

  // Hands the asked tensors of one shard to `take`, in stream order, as they arrive and once they
  // match the publisher's sums, through no more than options.limit_bytes of host memory: nothing is
  // asked for that has no room, so a slow `take` slows the transfer. Lost sources are replaced and
  // nothing that was taken comes again. What is received is not kept: this client is no source for
  // it and no replica of it. OK: all of it was taken, or outcome kNotAvailable and nothing was; of
  // a whole shard the list of sums agreed with the version's root. A group transaction as Update
  // is: every rank of the group calls it, in the same order among its calls of Receive. NOT_FOUND
  // (a tensor, with near names; a rank), INVALID_ARGUMENT (a limit below one segment, names the
  // least; more than one shard and none chosen), RESOURCE_EXHAUSTED; then those of Update (rolled
  // back, no source left, deadline), which say what was taken; the error of `take`.
  absl::StatusOr<ReceiveResult> Receive(VersionSelector version, ReceiveOptions options,
                                        const TakeSlice& take);

  // Uses one shard of a version where it lies: in the memory of a holder on this host, mapped
  // read-only into this process. No byte is copied, so it takes no time that grows with the size
  // (verify_bytes apart). What is attached never changes and stays as long as the result lives,
  // whatever becomes of the holder, which goes on in other memory. This client is no source for it
  // and no replica of it. A group transaction as Update is, and counted with the calls of Receive.
  // OK: it is attached, the list of sums agrees with the version's root; or outcome kNotAvailable.
  // FAILED_PRECONDITION naming each holder and why: none can be attached (none on this host, its
  // tensors lie in memory that is not TensorHub's, its limit, it is still receiving itself).
  // NOT_FOUND, INVALID_ARGUMENT as of Receive; then those of Update. With verify_bytes DATA_LOSS.
  absl::StatusOr<AttachResult> Attach(VersionSelector version, AttachOptions options = {});

  // Every later version is withdrawn; readers move back at their next Update. Returns the version
  // gone back to. `idempotency_key` empty: one is made.
  absl::StatusOr<VersionInfo> RollBack(VersionSelector to, std::string idempotency_key = "");

  // Clean: tells the server, lets readers end the segment under way (half a second at most), so
  // that they read nothing twice, and cuts the others. Idempotent; the destructor calls it.
  absl::Status Leave(absl::Duration timeout = absl::Seconds(2));
  // A notice, as of a spot machine that is taken back at `deadline` (of absl::Now's clock). Returns
  // at once. The server gives this rank no new reader who could have another source and moves those
  // that it has; who has no other source is served until the deadline, and then the client leaves
  // by itself. Verbs go on until then. Of several notices the earliest counts. INVALID_ARGUMENT:
  // the deadline has passed, or lies more than a day ahead. FAILED_PRECONDITION.
  //
  //   TH_RETURN_IF_ERROR(client->Preempt(absl::Now() + absl::Seconds(30)));
  //   client->AwaitEnded(absl::Seconds(35));
  absl::Status Preempt(absl::Time deadline);
  // True when the membership has ended within `timeout`: membership() says why.
  bool AwaitEnded(absl::Duration timeout) const;

  // OK while the membership lives; else why it ended ("replaced by ...").
  absl::Status membership() const;
  // True when the server knows of this membership just now. False while it is away, or takes this
  // rank up again after that: what is held is held and served on meanwhile.
  bool connected() const;
  // Control bytes of this membership, both ways, since the join (messages, without gRPC's framing).
  uint64_t control_bytes() const;
  // "host:port" at which this process's data plane is reached over TCP; empty where it does not use
  // TCP.
  std::string data_endpoint() const;
  // The parts of this host that the data plane does without, each with the reason, for logs: a
  // transport that
  // could not begin, an RDMA device that cannot be used ("ibverbs: mlx5_1: port 1 is down ...").
  std::vector<std::string> left_out() const;

 private:
  struct Impl;
  explicit Client(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// Which groups have applied a version. A value.
struct AppliedResult {
  struct Lacking {
    std::string group;
    std::string why;  // "holds step-56 (#7.3)", "is filling, 12 of 96 bytes", "has not joined"
  };
  bool all() const { return lacking.empty(); }

  VersionInfo version;
  std::vector<std::string> applied;  // they hold it whole, on all their ranks
  std::vector<Lacking> lacking;
};

// A client without a rank: it looks, waits and pins. Thread-safe; its calls block, for 30 s at most
// where they take no timeout, and are made again while the server restarts.
//
//   TH_ASSIGN_OR_RETURN(auto hub, th::Controller::Connect({.server = "10.0.0.1:7077", .run = "r1",
//                                                          .model = "qwen3-8b"}));
//   TH_ASSIGN_OR_RETURN(th::VersionInfo best, hub->Pin(th::Latest(), "eval", absl::Hours(2)));
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
  // The recent events in the run and model of the options, oldest first. `id` empty: all
  // operations. Ask on with `after` = the answer's `last`; another epoch counts from 1 again.
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
  // Which shard a streaming reader means (its key is that of the options): what Client::Receive
  // asks for, at a cost that does not grow with the model's ranks. NOT_FOUND: the rank has no such
  // buffer; INVALID_ARGUMENT: the version has several shards and no group is named.
  absl::StatusOr<FoundShard> FindShard(ShardQuery query,
                                       absl::Duration timeout = absl::Seconds(10));
  // The tensors of a shard, by the digest that List, FindShard and WeightBuffer tell. NOT_FOUND;
  // DATA_LOSS when what came is another one.
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
