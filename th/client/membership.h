// The driver of one WorkerSession: carries out what the session asks for, and tells it what
// happens.
//
// Threads. `mu_` guards the session; verbs of the user, frames from the server (gRPC's threads) and
// events of the data plane (its threads) each enter the session under it, for microseconds, and
// never call out meanwhile. What the session then asks for is carried out in its order on
// th-control, with no lock held. Lock order: mu_ before nothing.
//
// Lifetime: shared by the client, its buffers, open streams and fills. After Leave (or any other
// end of the session) it becomes quiet: no thread touches the caller's memory any more.
#ifndef TH_CLIENT_MEMBERSHIP_H_
#define TH_CLIENT_MEMBERSHIP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "th/client/call.h"
#include "th/client/control_stream.h"
#include "th/client/data_plane.h"
#include "th/client/local_buffer.h"
#include "th/client/reader_reporter.h"
#include "th/client/runtime.h"
#include "th/client/session_access.h"
#include "th/client/tensor_binding.h"
#include "th/memory/host_arena.h"
#include "th/transfer/transport.h"
#include "th/worker_session/worker_session.h"

namespace th {

// For the server's answer to a registration: it may have to ask for the layout first.
inline constexpr absl::Duration kRegisterTimeout = absl::Seconds(30);
// A stream that was asked to end is cancelled after this long.
inline constexpr absl::Duration kStreamFlush = absl::Milliseconds(500);
// For readers of a buffer that is reset to let go. The data plane needs milliseconds; past this the
// caller hears that they have not.
inline constexpr absl::Duration kResetTimeout = absl::Seconds(10);

class Membership final : public SessionAccess,
                         public HolderDelegate,
                         public ControlStreamObserver,
                         public std::enable_shared_from_this<Membership> {
 public:
  struct Parts {
    std::shared_ptr<Runtime> runtime;
    std::shared_ptr<DataPlane> data_plane;
    std::unique_ptr<ControlConnector> connector;
    SessionOptions options;
    SessionLimits limits;
    uint64_t staging_limit_bytes = 0;
    uint64_t snapshot_limit_bytes = 0;
    std::shared_ptr<ReaderReporter> readers;  // null: nobody asked
  };
  explicit Membership(Parts parts);
  ~Membership() override;

  // Blocks until joined, at most a little longer than the session's join_timeout. CANCELLED when
  // left meanwhile; DEADLINE_EXCEEDED; else what the server refused it with.
  absl::Status Join();
  // Ends the membership and waits until it is quiet. Idempotent. DEADLINE_EXCEEDED: the server did
  // not confirm it within `timeout`; it has ended all the same.
  absl::Status Leave(absl::Duration timeout);
  // Tells the server; the session leaves by itself in `notice`. INVALID_ARGUMENT.
  absl::Status Preempt(absl::Duration notice);
  // Whether it has ended within `timeout`.
  bool AwaitEnded(absl::Duration timeout) const;
  // OK while it lives.
  absl::Status status() const;
  // CANCELLED once the caller has left, FAILED_PRECONDITION on th-callback: what a verb that waits
  // asks first.
  absl::Status CanWait() const;

  // Blocks until the server has taken the buffer, 30 s at most: DEADLINE_EXCEEDED, or why it or the
  // session refused it (ALREADY_EXISTS: the name is taken).
  absl::StatusOr<std::shared_ptr<LocalBuffer>> Register(std::string name, std::string form,
                                                        BindingOptions options,
                                                        TensorBinding binding);
  // ---- streaming receives (see event::BeginStream)
  StreamTicket BeginStream();
  // A buffer for one update, whose bytes pass through `ring`; to be ended by EndStream. Blocks
  // as Register does, for `timeout` at most.
  absl::StatusOr<std::shared_ptr<LocalBuffer>> RegisterStream(
      const StreamTicket& ticket, std::string form, std::shared_ptr<const ShardLayout> layout,
      std::shared_ptr<SegmentRing> ring, absl::Duration timeout);
  void FailStream(const StreamTicket& ticket, std::string form, const absl::Status& why);
  // Returns when nothing touches the ring any more.
  void EndStream(LocalBuffer& buffer, const absl::Status& why);

  // Returns when nothing touches the buffer's memory any more.
  void Unregister(LocalBuffer& buffer);

  // Gives the session `verb` under a new call, which ends once, on th-control; never when `verb`
  // itself is refused, whose error is returned. `call` is of the buffer that the session answers
  // with, if it does.
  absl::Status Start(const std::shared_ptr<Call>& call,
                     absl::FunctionRef<SessionEvent(CallId)> verb);
  // Blocks until readers of what was checked have let go. What the session refuses;
  // DEADLINE_EXCEEDED.
  absl::Status Reset(LocalBuffer& buffer);
  // FAILED_PRECONDITION while anything is served from or filled into the buffer.
  absl::Status Rebind(LocalBuffer& buffer, const std::vector<void*>& storages);
  // Whether the sums of the buffer's present publication were sent to the server, within `timeout`.
  bool AwaitSealed(BufferId buffer, absl::Duration timeout) const;

  // Whether the server knows of this membership now.
  bool connected() const;

  // ---- membership_copies.cc
  bool stages() const { return staging_limit_bytes_ > 0; }
  // An empty sequence: nothing is staged for the buffer.
  VersionInfo staged_version(BufferId buffer) const;
  void DiscardStaged(BufferId buffer);
  // Copies the buffer's bytes to host memory, from which it is published next. On return the
  // caller's memory may be written. FAILED_PRECONDITION when the buffer is not writable,
  // RESOURCE_EXHAUSTED without room.
  absl::Status TakeSnapshot(LocalBuffer& buffer);
  // Back to the caller's memory, when the publication was refused.
  void DropSnapshot(LocalBuffer& buffer);

  // What the session knows of a buffer.
  BufferState buffer_state(BufferId buffer) const;
  VersionInfo buffer_version(BufferId buffer) const;
  const ModelKey& key() const { return options_.key; }
  Runtime& runtime() { return *runtime_; }
  const std::shared_ptr<Runtime>& shared_runtime() const { return runtime_; }
  DataPlane& data_plane() { return *data_plane_; }

  // ---- SessionAccess
  SessionAnswer Handle(SessionEvent event) override;

  // ---- HolderDelegate, on data threads
  void OnAdmission(AdmissionRequest request, std::function<void(Admission)> decide) override;
  void OnReaderBytes(TransferId transfer, uint64_t bytes_sent_so_far) override;
  void OnReaderReleased(TransferId transfer, uint64_t bytes_sent) override;

  // ---- ControlStreamObserver: messages on gRPC's threads, the end on th-control
  void OnServerMessage(StreamId stream, const ServerMessage& message) override;
  void OnStreamClosed(StreamId stream, absl::Status why) override;

 private:
  using BufferPtr = std::shared_ptr<LocalBuffer>;
  struct ServedTransfer {
    BufferPtr buffer;
    ReaderReport report;
    uint64_t bytes = 0;
  };
  struct WaitingAdmission {
    BufferId buffer;
    std::function<void(Admission)> decide;
    ReaderReport report;
    bool released = false;  // the reader has gone meanwhile
  };

  void Wake();
  // ---- th-control: membership.cc
  void Pump();
  std::vector<SessionOutput> TakeOutputs();
  void ArmTimer();

  // ---- th-control: membership_outputs.cc
  void Do(OpenStream);
  void Do(CloseStream);
  void Do(SendToServer send);
  void Do(SessionJoined joined);
  void Do(SessionEnded ended);
  void Do(StartFill order);
  void Do(SetSources order);
  void Do(SetRoot order);
  void Do(StopFill order);
  void Do(StartSealing order);
  void Do(CutReaders order);
  void Do(FinishReaders order);
  void Do(ServingChanged serving);
  void Do(AllocateOffload order);
  void Do(FreeOffload order);
  void Do(AdmissionDecided decided);
  void Do(BufferReady ready);
  void Do(OperationDone done);
  void Do(CommandDone done);
  void Do(const PublicationLost&) {}  // the session tells it with the next unpublish

  // On th-seal: backing every page takes its time.
  absl::StatusOr<BufferPtr> MakeCopyBuffer(const AllocateOffload& order) const;
  // On th-control: whether the buffer's memory may be changed for another now.
  absl::Status CanChangeMemory(const LocalBuffer& buffer);

  // Until the server has taken the buffer; unregisters what it refuses.
  absl::Status AwaitReady(LocalBuffer& buffer, absl::string_view name, absl::Duration timeout);
  BufferPtr FindBuffer(BufferId id) const;
  std::shared_ptr<Call> TakeCall(CallId id);
  void Finish(const std::shared_ptr<Call>& call);
  void EndCalls(const absl::Status& status);
  void RefuseAdmissions(const absl::Status& status);
  void DropIdleHolders();
  // Lets the buffer's readers end the segment under way, for limits_.leave_grace at most.
  void LetReadersFinish(const LocalBuffer& buffer);
  bool IsRead(const LocalBuffer* buffer) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Stops everything of a buffer; its memory is free once BufferQuiet.
  void Silence(LocalBuffer& buffer);
  // Carries out what is asked, silences the buffer, and forgets it once it is quiet.
  void Withdraw(LocalBuffer& buffer);
  void AwaitQuiet(const LocalBuffer& buffer);
  bool BufferQuiet(const LocalBuffer* buffer) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool Quiet() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void CloseStreamSoon();
  void Report(ReaderReport report) const;
  void NoteSent(TransferId transfer, uint64_t bytes, bool released)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<Runtime> runtime_;
  const std::shared_ptr<DataPlane> data_plane_;
  const std::unique_ptr<ControlConnector> connector_;  // used on th-control
  const SessionOptions options_;
  const SessionLimits limits_;
  const uint64_t staging_limit_bytes_;
  // Shared with the copies in them.
  const std::shared_ptr<HostArena> offload_arena_;
  const std::shared_ptr<HostArena> staging_arena_;
  const std::shared_ptr<HostArena> snapshot_arena_;
  const std::shared_ptr<ReaderReporter> readers_;  // null: nobody asked
  std::atomic<bool> woken_{false};

  mutable absl::Mutex mu_;
  WorkerSession session_ ABSL_GUARDED_BY(mu_);
  CallId last_call_ ABSL_GUARDED_BY(mu_);
  std::map<CallId, std::shared_ptr<Call>> calls_ ABSL_GUARDED_BY(mu_);
  std::map<BufferId, BufferPtr> buffers_ ABSL_GUARDED_BY(mu_);
  std::map<TransferId, ServedTransfer> served_ ABSL_GUARDED_BY(mu_);
  std::map<TransferId, WaitingAdmission> admissions_ ABSL_GUARDED_BY(mu_);
  std::multiset<const LocalBuffer*> fills_ ABSL_GUARDED_BY(mu_);  // that have not stopped
  std::map<BufferId, BufferGeneration> sealed_ ABSL_GUARDED_BY(mu_);
  StreamId open_stream_ ABSL_GUARDED_BY(mu_);  // 0: none
  size_t streams_ ABSL_GUARDED_BY(mu_) = 0;    // that have not closed
  bool joined_ ABSL_GUARDED_BY(mu_) = false;
  bool left_ ABSL_GUARDED_BY(mu_) = false;  // by the caller
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mu_);
  // The server's last word, where that was a refusal after which the session tries again.
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);

  // ---- th-control only
  StreamId last_stream_;
  std::shared_ptr<ControlStream> stream_;
  std::set<WorkerId> holders_;
  TaskLoop::TimerId timer_;
  absl::Time timer_at_ = absl::InfiniteFuture();
};

}  // namespace th

#endif  // TH_CLIENT_MEMBERSHIP_H_
