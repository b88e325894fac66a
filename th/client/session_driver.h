// The driver of one WorkerSession: carries out what the session asks for, and tells it what
// happens.
//
// Threads. `mu_` guards the session; verbs of the user, frames from the server (gRPC's threads) and
// events of the data plane (its threads) each enter the session under it, for microseconds; no
// callback runs meanwhile. What the session then asks for is carried out in its order on
// th-control, with no lock held. Lock order: tasks are posted under mu_, and buffers asked for
// their seal_status(), so it comes before the locks of TaskLoop's and TaskThread's queues and of
// that status, and before no other.
//
// Lifetime: shared by the client, its buffers, open streams and fills. After Leave (or any other
// end of the session) it becomes quiet: no thread touches the caller's memory any more.
#ifndef TH_CLIENT_SESSION_DRIVER_H_
#define TH_CLIENT_SESSION_DRIVER_H_

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
#include "th/client/host_copies.h"
#include "th/client/local_buffer.h"
#include "th/client/membership_figures.h"
#include "th/client/memory_claims.h"
#include "th/client/reader_reporter.h"
#include "th/client/runtime.h"
#include "th/client/served_readers.h"
#include "th/client/session_access.h"
#include "th/client/tensor_binding.h"
#include "th/transfer/task_thread.h"
#include "th/transfer/transport.h"
#include "th/worker_session/worker_session.h"

namespace th {

// Limits the wait for the server's answer to a registration: it may have to ask for the layout
// first.
inline constexpr absl::Duration kRegisterTimeout = absl::Seconds(30);
// A stream that was asked to end is cancelled after this long.
inline constexpr absl::Duration kStreamFlush = absl::Milliseconds(500);
// Limits the wait for readers of a buffer that is reset to let go. The data plane needs
// milliseconds; past this the caller hears that they have not.
inline constexpr absl::Duration kResetTimeout = absl::Seconds(10);

class SessionDriver final : public SessionAccess,
                            public HolderDelegate,
                            public ControlStreamObserver,
                            public std::enable_shared_from_this<SessionDriver> {
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
  explicit SessionDriver(Parts parts);
  ~SessionDriver() override;

  // Blocks until joined, at most a little longer than the session's join_timeout. CANCELLED when
  // left meanwhile; DEADLINE_EXCEEDED; else what the server refused it with.
  absl::Status Join();
  // Ends the membership and waits until it is quiet. Idempotent. DEADLINE_EXCEEDED: the server did
  // not confirm it within `timeout`; it has ended all the same.
  absl::Status Leave(absl::Duration timeout);
  // Tells the server; the session leaves by itself in `notice`. INVALID_ARGUMENT.
  absl::Status Preempt(absl::Duration notice);
  // True if it has ended within `timeout`.
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
  // Where what is received goes: one of them is set.
  struct StreamInto {
    std::shared_ptr<SegmentRing> ring;       // all that it wants passes through it
    std::shared_ptr<MappingTarget> mapping;  // nothing is received: the shard is used where it lies
  };
  StreamTicket BeginStream();
  // A buffer for one update, which keeps no byte; to be ended by EndStream. Blocks as Register
  // does, for `timeout` at most.
  absl::StatusOr<std::shared_ptr<LocalBuffer>> RegisterStream(
      const StreamTicket& ticket, std::string form, std::shared_ptr<const ShardLayout> layout,
      StreamInto into, absl::Duration timeout);
  void FailStream(const StreamTicket& ticket, std::string form, const absl::Status& why);
  // Returns when nothing touches the ring, or the target, any more.
  void EndStream(LocalBuffer& buffer, const absl::Status& why);

  // Returns when nothing touches the buffer's memory any more.
  void Unregister(LocalBuffer& buffer);

  // Gives the session `verb` under a new call, which ends once, on th-control; never when `verb`
  // itself is refused, whose error is returned. Blocks, for kDeviceTime at most, where that is
  // because the session is over; but a call with a `then` ends with that error instead. `call` is
  // of the buffer that the session answers with, if it does.
  absl::Status Start(const std::shared_ptr<Call>& call,
                     absl::FunctionRef<SessionEvent(CallId)> verb);
  // If the session takes the buffer for writable, waits until it is so for the caller: its readers,
  // and those of other processes, which look at the store's generation alone, have been cut, and
  // AwaitRenewed has returned. In any other state it returns at once.
  void AwaitWritable(const LocalBuffer& buffer);
  // The same for a caller that does not wait: `then` runs on th-control when AwaitWritable would
  // have returned.
  void WhenWritable(std::shared_ptr<LocalBuffer> buffer, std::function<void()> then);
  // Blocks until no GPU writes the memory, and readers of what was checked have let go. What the
  // session refuses; DEADLINE_EXCEEDED: the buffer is undefined still where a GPU writes it.
  absl::Status Reset(LocalBuffer& buffer);
  // The caller's memory of the buffer; no regions where all of it is the host's.
  StorageMemory MemoryOf(const LocalBuffer& buffer);
  // The addresses of the same.
  std::vector<void*> StoragesOf(const LocalBuffer& buffer);
  // Wakes the buffer too. FAILED_PRECONDITION while anything is served from or filled into it.
  // DEADLINE_EXCEEDED: a GPU still uses the memory before, and nothing has changed.
  absl::Status Rebind(LocalBuffer& buffer, const TensorBinding& binding);
  // Withdraws the buffer's memory from the data plane; no verb of it begins before Rebind.
  // FAILED_PRECONDITION as Rebind; DEADLINE_EXCEEDED: a GPU still reads it, and IsAsleep says
  // whether the buffer has fallen asleep all the same.
  absl::Status Sleep(LocalBuffer& buffer);
  // The binding of what lies now where the buffer's memory lay when it fell asleep: `before` is
  // that memory, `storages` are its addresses.
  using BindWhereItLay = absl::FunctionRef<absl::StatusOr<TensorBinding>(
      const StorageMemory& before, std::vector<void*> storages)>;
  // Wakes a buffer whose memory is there again. `bind` runs once, on this thread, while nobody else
  // changes the buffer's memory; not where the buffer is not asleep (FAILED_PRECONDITION).
  absl::Status Wake(LocalBuffer& buffer, BindWhereItLay bind);
  bool IsAsleep(BufferId buffer) const;
  // True if the buffer serves what was published from it, so that its sums are made here.
  bool PublishesOwn(BufferId buffer) const;
  // Why the buffer's publication could not stay, once its readers have ended too and it may be
  // written, for which at most kResetTimeout is waited; OK: it was not lost.
  absl::Status LostPublication(const LocalBuffer& buffer);
  // Waits up to `timeout`; true if the server, which is there, has the sums of the buffer's own
  // present publication. Returns at once where it will never have them. False while the server is
  // away, whatever it knew.
  bool AwaitSealed(const LocalBuffer& buffer, absl::Duration timeout) const;

  // Ends the Update, Stage, Apply or streaming receive of the buffer that is under way: its call
  // ends CANCELLED, soon. From any thread.
  void CancelUpdate(BufferId buffer);
  // True when the server knows of this membership now.
  bool connected() const;
  MembershipFigures figures() const;

  // ---- session_driver_copies.cc
  bool stages() const { return staging_limit_bytes_ > 0; }
  // An empty sequence: nothing is staged for the buffer.
  VersionInfo staged_version(BufferId buffer) const;
  void DiscardStaged(BufferId buffer);
  // Copies the buffer's bytes to host memory, from which it is published next; its memory is
  // claimed meanwhile. On return the caller's memory may be written. FAILED_PRECONDITION when the
  // buffer is not writable, RESOURCE_EXHAUSTED without room.
  absl::Status TakeSnapshot(LocalBuffer& buffer);
  // Goes back to the caller's memory, when the publication was refused.
  void DropSnapshot(LocalBuffer& buffer);

  // The state and the version of a buffer, as the session knows them.
  BufferState buffer_state(BufferId buffer) const;
  VersionInfo buffer_version(BufferId buffer) const;
  const ModelKey& key() const { return options_.key; }
  const std::string& group() const { return options_.name.group; }
  Runtime& runtime() { return *runtime_; }
  const std::shared_ptr<Runtime>& shared_runtime() const { return runtime_; }
  DataPlane& data_plane() { return *data_plane_; }

  // ---- SessionAccess
  SessionAnswer Handle(SessionEvent event) override;

  // ---- HolderDelegate, on data threads
  void OnAdmission(AdmissionRequest request, std::function<void(Admission)> decide) override;
  void OnReaderBytes(TransferId transfer, uint64_t bytes_sent_so_far) override;
  void OnReaderReleased(TransferId transfer, uint64_t bytes_sent, const std::string& why) override;

  // ---- ControlStreamObserver: messages on gRPC's threads, the end on th-control
  void OnServerMessage(StreamId stream, const ServerMessage& message) override;
  void OnStreamClosed(StreamId stream, absl::Status why) override;

 private:
  using BufferPtr = std::shared_ptr<LocalBuffer>;
  void SchedulePump();
  // ---- th-control: session_driver.cc
  void Pump();
  std::vector<SessionOutput> TakeOutputs();
  void ArmTimer();

  // ---- th-control: session_driver_outputs.cc
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
  void Do(const PublicationLost&) {}  // LostPublication and the next unpublish tell it

  // Runs on th-seal: backing every page takes its time.
  absl::StatusOr<BufferPtr> MakeCopyBuffer(const AllocateOffload& order);
  // OK if the buffer's memory may be changed for another now. Runs on th-control.
  absl::Status CanChangeMemory(const LocalBuffer& buffer);
  absl::Status CheckCanRebind(BufferId buffer) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Closes the buffer to verbs, until ReleaseMemory, once its memory may be changed for another and
  // nothing of it is under way on th-arena. FAILED_PRECONDITION. One that is asleep is closed for
  // kSleep as it is, and not for kSnapshot; for kWake no other is.
  absl::Status ClaimMemory(const LocalBuffer& buffer, ClaimFor claim);
  void ReleaseMemory(const LocalBuffer& buffer);
  // Waits until no reader uses the buffer, which nothing offers any more: kResetTimeout at most.
  absl::Status AwaitReadersEnd(const LocalBuffer& buffer);
  // Binds a buffer that is claimed: its memory is `binding` from now on, and it is awake.
  absl::Status BindAwake(LocalBuffer& buffer, const TensorBinding& binding);
  // Has the session take the caller's word for the content, once no GPU writes it any more.
  absl::Status LeaveUndefined(const LocalBuffer& buffer);

  // Waits until the server has taken the buffer; unregisters what it refuses.
  absl::Status AwaitReady(LocalBuffer& buffer, absl::string_view name, absl::Duration timeout);
  // Makes the argument of LocalBuffer's constructor.
  LocalBuffer::RunBeside RunsBeside();
  void RunBeside(BufferPtr buffer, std::function<void()> work, std::function<void()> then);
  // Waits until the buffer's memory is not being copied for its owner, nor read by a GPU that still
  // works for readers of what it held: at most kDeviceTime a GPU (local_buffer.cc).
  void AwaitRenewed(const LocalBuffer& buffer) const;
  // Waits before a verb is refused because the session is over, as who hears that may write: until
  // the session has cut all its readers, for kDeviceTime at most. Returns `refused`, after that
  // time with the word that memory is still in use.
  absl::Status AwaitSilenced(const absl::Status& refused) const;
  // The same for a call that nobody waits for: it ends then. On th-control.
  void FinishOnceSilenced(const std::shared_ptr<Call>& call, const absl::Status& refused);
  void FinishIfSilenced();
  // True when `condition`, which holds mu_, has become true within `timeout`, and before the calls
  // of this thread were cancelled.
  bool AwaitUnlessCancelled(absl::Duration timeout, absl::FunctionRef<bool()> condition) const;
  absl::Status CheckMayClaim(const LocalBuffer& buffer, ClaimFor claim) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);
  BufferPtr FindBuffer(BufferId id) const;
  std::shared_ptr<Call> TakeCall(CallId id);
  void Finish(const std::shared_ptr<Call>& call);
  // Counts a verb that has ended, of `buffer`, which is null where it is gone.
  void Count(const Call& call, const LocalBuffer* buffer);
  void EndCalls(const absl::Status& status);
  void RefuseAdmissions(const absl::Status& status);
  void DropIdleHolders();
  // Lets the buffer's readers end the segment under way, for limits_.leave_grace at most.
  void LetReadersFinish(const LocalBuffer& buffer);
  // Stops everything of a buffer; its memory is free once BufferQuiet.
  void Silence(LocalBuffer& buffer);
  // Carries out what is asked, silences the buffer, and forgets it once it is quiet.
  void Withdraw(LocalBuffer& buffer);
  // Claims the buffer for its end, once nothing touches its memory and nobody else has claimed it.
  void AwaitQuietAndClaim(const LocalBuffer& buffer);
  // The session has ended, and what readers have attached is left to them: who hears of the end may
  // write.
  bool HasEnded() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool BufferQuiet(const LocalBuffer* buffer) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool Quiet() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void CloseStreamSoon();

  const std::shared_ptr<Runtime> runtime_;
  const std::shared_ptr<DataPlane> data_plane_;
  const std::unique_ptr<ControlConnector> connector_;  // used on th-control
  const SessionOptions options_;
  const SessionLimits limits_;
  const uint64_t staging_limit_bytes_;
  HostCopies copies_;
  const std::shared_ptr<ReaderReporter> reporter_;  // null: nobody asked
  std::atomic<bool> pump_scheduled_{false};

  mutable absl::Mutex mu_;
  WorkerSession session_ ABSL_GUARDED_BY(mu_);
  CallId last_call_ ABSL_GUARDED_BY(mu_);
  std::map<CallId, std::shared_ptr<Call>> calls_ ABSL_GUARDED_BY(mu_);
  std::map<BufferId, BufferPtr> buffers_ ABSL_GUARDED_BY(mu_);
  MemoryClaims claims_ ABSL_GUARDED_BY(mu_);
  ServedReaders readers_ ABSL_GUARDED_BY(mu_);
  MembershipFigures figures_ ABSL_GUARDED_BY(mu_);                   // but for what figures() adds
  std::multiset<const LocalBuffer*> fills_ ABSL_GUARDED_BY(mu_);     // that have not stopped
  std::multiset<const LocalBuffer*> renewals_ ABSL_GUARDED_BY(mu_);  // see RunBeside
  StreamId open_stream_ ABSL_GUARDED_BY(mu_);                        // 0: none
  size_t streams_ ABSL_GUARDED_BY(mu_) = 0;                          // that have not closed
  bool joined_ ABSL_GUARDED_BY(mu_) = false;
  bool left_ ABSL_GUARDED_BY(mu_) = false;  // by the caller
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mu_);
  // The server's last word, where that was a refusal after which the session tries again.
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);

  // `th-arena`, begun when readers have first attached what is to be written.
  std::unique_ptr<TaskThread> renewer_ ABSL_GUARDED_BY(mu_);

  // ---- th-control only
  std::vector<std::shared_ptr<Call>> refused_calls_;  // see FinishOnceSilenced
  StreamId last_stream_;
  std::shared_ptr<ControlStream> stream_;
  std::set<WorkerId> holders_;
  TaskLoop::TimerId timer_;
  absl::Time timer_at_ = absl::InfiniteFuture();
};

}  // namespace th

#endif  // TH_CLIENT_SESSION_DRIVER_H_
