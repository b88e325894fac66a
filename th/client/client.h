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
//     if (result.moved()) OnNewWeights(result.version());  // else: nothing new
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

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/client/attach.h"
#include "th/client/cancellation.h"
#include "th/client/client_options.h"
#include "th/client/controller.h"
#include "th/client/receive.h"
#include "th/client/results.h"
#include "th/client/tensor.h"
#include "th/client/verb_options.h"
#include "th/client/weight_buffer.h"
#include "th/protocol/catalog.h"
#include "th/protocol/error_fields.h"
#include "th/protocol/event.h"
#include "th/status/status_macros.h"
#include "th/weights/version.h"

namespace th {

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

  // Until some group offers `version` in `form`, or this group is the one that is to make it: of
  // the groups that wait the server chooses one at a time, until it has published the form
  // (PublishOptions::derived_from), has left, or half of the `timeout` that it gave is over. Called
  // again with a timeout of zero by the group that was chosen, it gives the form back, as after a
  // failure. So engines that are told of a version at the same moment load it by name once. A
  // server that restarts has forgotten whom it chose, and one of an earlier release chooses all.
  // Errors of WaitFor; DEADLINE_EXCEEDED names the group that makes the form.
  absl::StatusOr<AwaitedForm> AwaitForm(VersionSelector version, std::string form,
                                        absl::Duration timeout);

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

// Returns the metrics of all memberships of this process, and of the process, for Prometheus (text
// format 0.0.4): calls by outcome, stalls by phase, bytes by transport, readers.
// docs/operations.md has the metrics. A membership is listed until it is destroyed. The host serves
// the text wherever it serves its own; tensorhub_worker does so with --http. Costs microseconds a
// membership; thread-safe.
std::string MetricsText();

// Threads that TensorHub itself runs in this process apart from the data plane's and gRPC's; 0 when
// no client and no controller lives.
int RuntimeThreadCount();

}  // namespace th

#endif  // TH_CLIENT_CLIENT_H_
