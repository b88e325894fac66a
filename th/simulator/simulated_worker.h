// One worker's process in a simulation: a worker session with one buffer of the caller's and the
// copies that the session asks for, the fills of those and the transfers to their readers. Drives
// the session as //th/client does.
#ifndef TH_SIMULATOR_SIMULATED_WORKER_H_
#define TH_SIMULATOR_SIMULATED_WORKER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/messages.h"
#include "th/registry_state/registry_types.h"
#include "th/simulator/observed_session.h"
#include "th/simulator/simulated_buffer.h"
#include "th/simulator/simulated_fill.h"
#include "th/simulator/simulated_process.h"
#include "th/simulator/simulated_serving.h"
#include "th/simulator/simulated_stream.h"
#include "th/weights/version.h"
#include "th/worker_session/worker_session.h"

namespace th {

class Cluster;

// The reason why a rank waits within a call.
enum class WaitsFor : uint8_t {
  kServer,     // an update: which version it is
  kDrain,      // readers of its own buffer
  kSource,     // an update: somebody to pull from
  kBytes,      // an update: the segments
  kChecksums,  // an update: the publisher's sums, which every segment agreed with one by one
  kGroup,      // the other ranks, and the server's word that all are there
};

// The name of every worker's own buffer.
inline constexpr char kSimulatedBufferName[] = "weights";
// The transport of every worker's endpoints.
inline constexpr char kSimulatedTransport[] = "simulated";

struct WorkerSpec {
  ModelKey key = {"r1", "qwen3"};
  RankName name;
  uint32_t ranks = 1;
  int shard = 0;
  Location location;
  bool spot = false;
  uint64_t offload_limit_bytes = 0;
  uint64_t staging_limit_bytes = 0;
  // Each so many-th copy under offload_limit_bytes finds no memory after all; 0: none does.
  uint64_t copies_refused_every = 0;
};

class SimulatedWorker : public SimulatedProcess {
 public:
  // `addresses`: of its endpoints, in the order in which readers try them.
  SimulatedWorker(Cluster* cluster, WorkerSpec spec, std::vector<std::string> addresses);

  // ---- the caller's part. Each begins a call; `done` has its end. A refused verb is in
  // `refusals`. The buffer is given `content` first and must be writable.
  CallId Publish(const std::string& label, const std::string& content,
                 absl::Duration timeout = absl::Seconds(60));
  // The same, but what it calls `content` are the bytes of another.
  CallId PublishFalsely(const std::string& label, const std::string& content,
                        const std::string& truly);
  CallId Update(VersionSelector selector = LatestVersion{},
                absl::Duration timeout = absl::Seconds(60));
  // When it has ended well the owner writes other bytes at once, as a training step does.
  CallId Unpublish(absl::Duration drain_timeout = absl::Seconds(5),
                   absl::Duration timeout = absl::Seconds(60));
  // Sets the option of later calls. kDrop until told otherwise.
  void SetOnRetention(OnRetention on_retention) { on_retention_ = on_retention; }
  // Sets the option of later updates. kWait until told otherwise.
  void SetWhenSeeding(WhenSeeding when_seeding) { when_seeding_ = when_seeding; }
  // Into a copy beside the buffer; what is staged is moved in by Apply.
  CallId Stage(VersionSelector selector = LatestVersion{},
               absl::Duration timeout = absl::Seconds(60));
  CallId Apply(absl::Duration timeout = absl::Seconds(60));
  void DiscardStaged();
  // The update, stage or apply that is under way ends; no effect without one.
  void CancelUpdate();
  VersionSequence staged() const { return session_.staged_version(buffer_id_).sequence; }
  // A streaming receive of the rank's shard, which has no CallId: it is counted in received() when
  // its consumer has all of it.
  void Receive(ReceiveSpec spec);
  // One that fails before it has a buffer.
  void FailReceive();
  CallId Command(RunCommand command);
  void Reset();
  // Frees its buffer, whoever reads it, and registers it again: calls that are pending end
  // CANCELLED, and what it held is gone.
  void RegisterAgain();
  void TryRebind();  // asks only whether it may; nothing is changed
  void Leave();      // pending calls end CANCELLED
  void Preempt(absl::Duration notice);

  const WorkerSpec& spec() const { return spec_; }
  bool lists_checksums() const;  // to its readers
  const std::string& Name() const { return name_; }
  std::string Describe() const;  // for people
  const WorkerSession& session() const { return session_; }
  bool ready() const { return ready_; }  // joined, and its buffer is known to the server
  const std::optional<SessionEnded>& ended() const { return ended_; }
  BufferId buffer_id() const { return buffer_id_; }
  BufferState state() const { return session_.buffer_state(buffer_id_); }
  const SimulatedBuffer& buffer() const { return *FindBuffer(buffer_id_); }  // the caller's
  const SimulatedBuffer* FindBuffer(BufferId id) const;                      // null: there is none
  // The copies that the session has asked for: of what is retained or seeds its site; of what is
  // staged.
  std::vector<BufferId> copies() const;
  std::vector<BufferId> staged_copies() const;
  bool IsStreaming(BufferId buffer) const;  // a streaming receive's
  // Its owner frees it, and waits until nothing is written into it any more.
  bool IsBeingFreed(BufferId buffer) const;
  std::string NameOf(BufferId buffer) const;
  uint64_t received() const { return received_; }
  double held_fraction() const;  // of the fill that goes on; 0: none
  // Segments that were accepted, by the name of their source.
  const std::map<std::string, uint64_t>& segments_from() const { return segments_from_; }
  uint64_t segments_sent() const { return serving_.segments_sent(); }
  // The segment that is on the wire of this transfer, to its reader.
  std::optional<SegmentIndex> BeingSent(TransferId transfer) const {
    return serving_.BeingSent(transfer);
  }
  uint64_t sources_lost() const { return sources_lost_; }
  uint64_t corrupt_segments() const { return corrupt_segments_; }
  bool waits_for_calls() const { return pending_calls_ > 0; }

  std::map<CallId, OperationDone> done;
  std::map<CallId, CommandFinished> commands;
  std::vector<PublicationLost> lost_publications;
  std::vector<absl::Status> refusals;
  // ---- if set, told of what happens; they may begin calls
  std::function<void(const OperationDone&)> on_done;  // after `done` has it
  std::function<void()> on_ready;
  // ---- the same, but they only listen
  std::function<void(WaitsFor)> on_wait;  // from here on, within the call that goes on
  std::function<void(const std::string& source)> on_accepted;  // a segment

  // ---- faults
  // Pending calls of a dead process never end.
  void Kill();   // its machine tells everybody
  void Crash();  // with its machine: nobody is told
  void Stop();   // as by SIGSTOP, until Continue
  void Continue();
  void BreakStream();
  // The next copy of `segment` that it sends has a bit flipped on its way.
  void FlipNext(SegmentIndex segment) { serving_.FlipNext(segment); }
  // The bytes that it sends of `segment` for so long are wrong, and so is the sum that it claims
  // for them.
  void Forge(SegmentIndex segment, absl::Duration lasting) {
    serving_.Forge(segment, now() + lasting);
  }
  // Its first endpoint resets all pulls and takes none until it is mended; the others work.
  void BreakEndpoint() { Break(SimulatedServing::Breakage::kReset); }
  // The same of the path there, as of a fabric whose link is down: readers do not see it close.
  void BreakPath() { Break(SimulatedServing::Breakage::kPath); }
  void MendEndpoint() { serving_.Mend(addresses_.front()); }
  // To the server, past the session.
  void SayFalsely(WorkerMessage message);
  bool says_falsely() const { return says_falsely_; }
  // For tests of the checker: what no server has said, and what no session has.
  void HearForATest(const ServerMessage& message) { HandleServerMessage(*stream_, message); }
  void SayUnheardForATest(WorkerMessage message);
  // From now on its driver says that a fill has stopped while bytes still land.
  void AnswerStopsEarlyForATest() { answers_stops_early_ = true; }
  OperationKey newest_operation() const { return newest_operation_; }  // of its own buffer

  // ---- for the cluster, the server and other workers
  void Begin();
  void HandleStreamOpen(ConnectionId connection);
  void HandleStreamClosed(ConnectionId connection, absl::Status why);
  void HandleServerMessage(ConnectionId connection, const ServerMessage& message);
  void HandleChunkDelivered(TransferId transfer);  // whether it runs or not: its machine sent it
  // A reader's messages.
  void HandlePullOpened(SimulatedWorker* reader, TransferId transfer, const std::string& address,
                        const Capability& capability, BufferGeneration generation);
  void HandlePullAsked(TransferId transfer, SegmentRange range);
  void HandlePullAskedChecksums(TransferId transfer);
  void HandlePullFinished(TransferId transfer);
  void HandlePullClosed(TransferId transfer);
  void HandlePullContinues(TransferId transfer);  // the reader takes bytes again
  // A source's messages.
  void HandlePullAdmitted(TransferId transfer, absl::Status status);
  void HandleChecksums(TransferId transfer, SegmentIndex first,
                       const std::vector<SegmentChecksum>& checksums);
  void HandleSegment(TransferId transfer, const SentSegment& segment);
  void HandleSourceAlive(TransferId transfer);
  void HandleSourceClosed(TransferId transfer, const std::string& why);
  void HandlePathBroken(TransferId transfer, const std::string& why);
  void HandleFillTick(OperationKey operation);
  void HandleStreamTake(BufferId buffer);  // its consumer has a segment
  // Ends it, as received, once its group has moved and its consumer has everything.
  void FinishStreamIfTaken(BufferId buffer);

  // ---- for its parts
  Cluster& cluster() { return *cluster_; }
  ObservedSession& mutable_session() { return session_; }
  void CountAccepted(const std::string& source);
  void CountLost() { ++sources_lost_; }
  void CountCorrupt() { ++corrupt_segments_; }
  // Carries out what the session and the fill ask, until both are quiet.
  void Settle();
  // The same after bytes that came or went: the session's next deadline is no earlier then, unless
  // something was carried out.
  void SettleAfterBytes();

 private:
  CallId PublishBytes(const std::string& label, const std::string& content,
                      const std::string& truly, absl::Duration timeout);
  CallId BeginCall(const absl::Status& begun, CallId call);
  absl::Status RegisterOwnBuffer();
  bool CarryOut();  // false: there was nothing to do
  void Do(SessionOutput output);
  void Do(SendToServer sent);
  void Do(const BufferReady& registered);
  void Do(const SetSources& set);
  void Do(const StartFill& start);
  void Do(const SetRoot& set);
  void Do(const StartSealing& sealing);
  void Do(const AllocateOffload& asked);
  void Do(const FreeOffload& freed);
  void Do(const th::StopFill& stop);
  void Do(const OperationDone& finished);
  void HearDone(const OperationDone& finished);
  // A buffer of this process, and the fill that goes on in it.
  struct Holding {
    Holding(std::string buffer_name, int shard, uint64_t segments)
        : name(std::move(buffer_name)), buffer(shard, segments) {}
    const std::string name;
    SimulatedBuffer buffer;
    std::unique_ptr<SimulatedFill> fill;
    SegmentSet held_before_fill;
    std::unique_ptr<SimulatedStream> stream;  // of a streaming receive
    bool staged = false;
    bool freed = false;                               // see IsBeingFreed
    bool stopping = false;                            // its fill was told to stop, and has not yet
    std::vector<std::function<void()>> when_stopped;  // in this order

    bool IsStream() const { return stream != nullptr; }
    bool IsStaged() const { return staged; }
    bool IsOffload() const { return !IsStream() && !IsStaged(); }
  };
  // Beside the caller's.
  std::vector<BufferId> BuffersThat(bool (Holding::*are)() const) const;
  SimulatedBuffer& own_buffer() { return holdings_.at(buffer_id_).buffer; }
  void ForEachFill(absl::FunctionRef<void(SimulatedFill&)> visit);
  // The fill of an operation. Null: it does not go on.
  SimulatedFill* FindFill(const OperationKey& operation);
  bool AnyFillHasEvents() const;
  void HandleFillOutput(BufferId buffer, const FillOutput& event);
  void ReportWait(BufferId buffer, WaitsFor what) const;
  // Its fill asks nothing more, and has stopped after a while; `then` comes first of what waits for
  // that.
  void BeginStop(BufferId buffer, std::function<void()> then);
  void EndFill(BufferId buffer);
  void StopAllFills();             // of those that stop: now
  void TakeBack(BufferId buffer);  // its caller has heard that nobody writes it any more
  // Now, or after the stop of a fill that was told to.
  void WhenQuiet(BufferId buffer, std::function<void()> task);
  void FreeMemory(BufferId buffer);
  void CloseEverything(bool report);
  void Break(SimulatedServing::Breakage how);  // its first endpoint
  void HandleWake() override;
  void NoteGeneration(const ServerMessage& message);
  void JudgeMessage(const ServerMessage& message);
  uint64_t state_joined() const;  // of the server; as SimulatedServer::DiskOf
  void JudgeDone(const OperationDone& finished);
  void JudgeUnpublished(const OperationDone& finished);
  void JudgeCopies();
  void JudgeStaged(const OperationDone& finished, const OperationFinished& reported);
  SimulatedStream* FindStream(BufferId buffer);  // null: it is over
  void BeginStreamUpdate(BufferId buffer, const absl::Status& registered);
  void NoteStreamDone(const OperationDone& finished);
  void GiveUpStream(BufferId buffer);  // before its update
  void EndStream(BufferId buffer, const absl::Status& why);
  void DropReceive(BufferId buffer);
  void DropReceives();

  Cluster* const cluster_;  // outlives it
  const WorkerSpec spec_;
  const std::string name_;  // "rollout-3/1"
  const std::vector<std::string> addresses_;
  ObservedSession session_;
  BufferId buffer_id_;
  OnRetention on_retention_ = OnRetention::kDrop;
  WhenSeeding when_seeding_ = WhenSeeding::kWait;
  std::map<BufferId, Holding> holdings_;
  std::map<BufferId, std::string> names_;  // of those without memory, too
  SimulatedServing serving_{this};
  bool ready_ = false;
  std::optional<SessionEnded> ended_;
  std::optional<ConnectionId> stream_;
  uint64_t group_generation_ = 0;
  uint64_t generation_numbered_by_ = 0;  // as in InvariantChecker::GroupOperation
  EpochId epoch_id_;                     // that it has joined last
  struct Unpublishing {
    BufferGeneration under;
    absl::Time drained_by;
    bool copies = false;  // perhaps
  };
  std::map<CallId, Unpublishing> unpublishing_;  // calls that have not ended
  // The latest moment at which its stream was not silent, or it did not listen.
  absl::Time heard_at_ = absl::InfinitePast();
  std::map<BufferId, OperationFinished> last_results_;
  OperationKey newest_operation_;
  bool says_falsely_ = false;  // has begun to; until its end
  bool answers_stops_early_ = false;
  uint64_t calls_ = 0;
  uint64_t copies_asked_ = 0;  // see WorkerSpec::copies_refused_every
  uint64_t pending_calls_ = 0;
  bool published_falsely_ = false;  // what it holds; until a fill
  uint64_t writes_ = 0;             // of its owner, to tell what it writes apart
  std::map<std::string, uint64_t> segments_from_;
  uint64_t sources_lost_ = 0;
  uint64_t corrupt_segments_ = 0;
  uint64_t received_ = 0;  // streams
};

}  // namespace th

#endif  // TH_SIMULATOR_SIMULATED_WORKER_H_
