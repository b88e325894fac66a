// The one thread that owns the registry and its store.
//
//   RegistryLoop loop({.limits = limits, .store = std::move(store)}, &metrics);
//   const ConnectionId id = loop.Open(peer);         // any thread, from here on
//   loop.HandleMessage(id, message);
//   loop.Ask([](RegistryTurn& turn) { … return answer; });
//   loop.Stop();
//
// It works in turns: takes what has arrived, asks the registry, writes the state if it changed
// (fsync), and only then sends messages, closes streams, gives answers and lets the streams read
// on. So nothing leaves that is not durable, one fsync serves a whole turn, and every stream has at
// most one message in the inbox.
//
// Leases and deadlines are judged by the time up to which the loop has heard what was sent
// (HeardUntil), so a slow turn or a slow disk ends no lease of a worker that has spoken, and a
// worker that has not is dropped all the same. A pause of the whole process is something else: no
// thread ran, what workers sent meanwhile is unread, and leases and deadlines move by it. The
// thread th-pulse tells the two apart (PauseWatch).
//
// When a write fails the loop has failed for good: it closes every stream, answers nothing more and
// calls `on_failure` once.
#ifndef TH_SERVER_REGISTRY_LOOP_H_
#define TH_SERVER_REGISTRY_LOOP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "th/coordination/durable_store.h"
#include "th/protocol/messages.h"
#include "th/reference_registry/registry.h"
#include "th/registry_state/heard_until.h"
#include "th/registry_state/pause_watch.h"
#include "th/server/event_ring.h"
#include "th/server/form_claims.h"
#include "th/server/server_metrics.h"
#include "th/server/steady_clock.h"

namespace th {

// Questions of controllers in the inbox at once; more are refused with RESOURCE_EXHAUSTED.
inline constexpr size_t kMaxPendingQuestions = 1024;
// Controllers that wait for a version at once; likewise.
inline constexpr size_t kMaxWaits = 4096;
// Streams that have not said anything yet; likewise.
inline constexpr size_t kMaxSilentStreams = 4096;
// How often waiting controllers are looked at while things happen.
inline constexpr absl::Duration kWaitCheckInterval = absl::Milliseconds(5);
// Events of one turn: bounds how long the first one's answer waits for the last one's.
inline constexpr size_t kMaxTurnEvents = 1024;
// The thread th-pulse shows this often that the process runs. Well below kMaxPulseGap, so that a
// busy machine is not taken for a stopped one.
inline constexpr absl::Duration kPulseInterval = absl::Milliseconds(100);

// The far end of a stream as the loop sees it. Thread-safe; no method blocks.
class StreamPeer {
 public:
  virtual ~StreamPeer() = default;
  // Queues a message. False: the queue is full, the stream is closing with RESOURCE_EXHAUSTED.
  virtual bool Send(const ServerMessage& message) = 0;
  // The last message was handled: read the next one.
  virtual void ReadNext() = 0;
  // Ends the stream once everything queued has left.
  virtual void CloseAfterSending() = 0;
  // Ends it now.
  virtual void Abort() = 0;
};

// The state that a question may use, on the loop's thread.
struct RegistryTurn {
  const Registry& registry;
  const EventRing& events;
  FormClaims& form_claims;
  absl::Time now;
  // Names who asks, for people: "controller at 10.0.0.5". Empty: the server itself.
  std::string asked_by = "";
  // Runs a command, in the name of asked_by; its effects are part of the turn.
  std::function<CommandFinished(const ModelKey&, const RunCommand&)> run_command = nullptr;
};

// Gives a question's answer once the turn is durable, or says why there is none. Called exactly
// once.
using Answer = absl::AnyInvocable<void(const absl::Status&)>;
using Question = absl::AnyInvocable<Answer(RegistryTurn&)>;

// A controller that waits until `selector` names a version after `after`.
struct VersionWait {
  ModelKey key;
  VersionSelector selector;
  VersionSequence after;
  absl::Duration timeout;
  // Called exactly once, on the loop's thread.
  absl::AnyInvocable<void(absl::StatusOr<VersionInfo>)> done;
};
using VersionWaitId = StrongInt<struct VersionWaitIdTag>;

enum class Asker { kController, kServer };

// Every method is thread-safe unless it says otherwise; callbacks come on the loop's thread, never
// inline.
class RegistryLoop {
 public:
  struct Options {
    RegistryLimits limits;
    // A stream that has not said anything for this long is closed.
    absl::Duration first_message_timeout = absl::Seconds(10);
    // A closed stream whose peer does not read its last messages is cut after this long.
    absl::Duration close_grace = absl::Seconds(2);
    std::unique_ptr<DurableStore> store;  // open
    std::function<void(absl::Status)> on_failure = [](absl::Status) {};
    // Hears of each event that is remembered, on the loop's thread; returns at once.
    std::function<void(Epoch, const RecentEvent&)> on_event = [](Epoch, const RecentEvent&) {};
    absl::Duration pulse_interval = kPulseInterval;
    // Rises; called on any thread.
    std::function<absl::Time()> now = [clock = SteadyClock()] { return clock.Now(); };
  };
  // `metrics` outlives the loop. The thread starts at once.
  RegistryLoop(Options options, ServerMetrics* metrics);
  ~RegistryLoop();  // Stop()
  RegistryLoop(const RegistryLoop&) = delete;
  RegistryLoop& operator=(const RegistryLoop&) = delete;

  // Rises when a worker has lived in a higher one than this server's state knows.
  Epoch epoch() const { return Epoch(epoch_); }

  // The loop keeps `peer` until the stream is closed by either side.
  ConnectionId Open(std::shared_ptr<StreamPeer> peer);
  void HandleMessage(ConnectionId connection, WorkerMessage message);
  // The peer sent something that is no message: it hears `why` and is closed.
  void HandleBadFrame(ConnectionId connection, absl::Status why);
  // The peer is gone, or will say no more. Idempotent.
  void HandleDisconnect(ConnectionId connection);

  // RESOURCE_EXHAUSTED or UNAVAILABLE: it was not accepted, and no answer will come. The server's
  // own questions, which are few, are taken and not counted however many controllers ask.
  absl::Status Ask(Question question, Asker asker = Asker::kController);
  absl::StatusOr<VersionWaitId> Wait(VersionWait wait);
  void CancelWait(VersionWaitId wait);

  // Something happened to the server itself: remembered among the recent events. It is not logged.
  void Note(RegistryEvent event);

  // Ends every stream, present and future, with Refused{why, retry_after}, and every wait with
  // `why`.
  void RefuseEverybody(absl::Status why, absl::Duration retry_after);
  // Ends the thread after the turn it is in. Idempotent; not from the loop's thread.
  void Stop();

 private:
  using Event = absl::AnyInvocable<void()>;
  struct QueuedEvent {
    absl::Time at;
    Event event;
  };
  struct Stream {
    std::shared_ptr<StreamPeer> peer;
    bool silent = true;   // has not said anything yet
    bool ending = false;  // goes with this turn; what else it says is not heard
  };
  struct PendingWait {
    VersionWait wait;
    absl::Time deadline;
  };
  // The outcome of one turn, in the order in which it leaves.
  struct Outcome {
    std::optional<DurableState> durable;
    std::vector<OutgoingMessage> messages;
    std::vector<ConnectionId> close;
    std::vector<Answer> answers;
    std::vector<RegistryEvent> events;
    std::vector<ConnectionId> read_next;
    bool empty() const {
      return !durable.has_value() && messages.empty() && close.empty() && answers.empty() &&
             events.empty() && read_next.empty();
    }
  };

  // Any thread. False: the loop has stopped.
  bool Post(Event event);
  // Any thread: this process runs now.
  void Pulse();
  // The thread th-pulse.
  void RunPulse();

  // The loop's thread only, from here on.
  void Run();
  // Sleeps until something has arrived, but not beyond `wake_at`.
  std::deque<QueuedEvent> TakeEvents(absl::Time wake_at);
  void Turn(std::deque<QueuedEvent> events);
  absl::Time NextWake() const;
  // Moves leases and deadlines by the pauses that were noticed since the last turn.
  void ForgivePause();
  void Absorb(RegistryEffects effects);
  void Remember(const RegistryEvent& event);
  void Tick();
  void CloseSilentStreams();
  void CheckWaits();
  // nullopt: still to wait.
  std::optional<absl::StatusOr<VersionInfo>> ResultOf(const PendingWait& pending,
                                                      absl::Time now) const;
  void Commit();
  void Deliver(Outcome outcome);
  void Fail(absl::Status why);
  // A worker has lived in that epoch: begins an epoch above it, as a restart of the server would.
  void BeginAbove(Epoch heard);
  void OnOpen(ConnectionId connection, std::shared_ptr<StreamPeer> peer);
  void OnMessage(ConnectionId connection, const WorkerMessage& message);
  void OnDisconnect(ConnectionId connection);
  void OnQuestion(Question& question);
  // True for a stream that is open and not about to be closed.
  bool Listens(ConnectionId connection) const;
  void Refuse(ConnectionId connection, absl::Status why, absl::Duration retry_after);
  // Every stream that is open; those that have not said anything yet only if asked for.
  void RefuseStreams(const Refused& refused, bool also_silent);
  void SendTo(ConnectionId connection, const ServerMessage& message);
  // Lets go of a stream that is ending: what is queued leaves, and it is cut if it does not end
  // then.
  void CloseAfterSending(ConnectionId connection);
  void AbortLateClosers();

  const std::function<absl::Time()> now_;
  const absl::Duration pulse_interval_;
  ServerMetrics* const metrics_;
  const std::unique_ptr<DurableStore> store_;
  const RegistryLimits limits_;
  std::atomic<uint32_t> epoch_;
  const absl::Duration first_message_timeout_;
  const absl::Duration close_grace_;
  const std::function<void(absl::Status)> on_failure_;
  const std::function<void(Epoch, const RecentEvent&)> on_event_;

  mutable absl::Mutex mutex_;
  std::deque<QueuedEvent> inbox_ ABSL_GUARDED_BY(mutex_);  // by time of arrival
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  size_t pending_questions_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t pending_waits_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_connection_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_wait_ ABSL_GUARDED_BY(mutex_) = 0;

  absl::Mutex pulse_mutex_;
  PauseWatch pause_watch_ ABSL_GUARDED_BY(pulse_mutex_);
  absl::Duration unforgiven_pause_ ABSL_GUARDED_BY(pulse_mutex_);

  // The loop's thread only.
  std::unique_ptr<Registry> registry_;
  EventRing events_;
  FormClaims form_claims_;
  absl::flat_hash_map<ConnectionId, Stream> streams_;
  size_t silent_streams_ = 0;
  // By time; streams that have spoken or gone since are skipped.
  std::deque<std::pair<absl::Time, ConnectionId>> silent_;
  std::deque<std::pair<absl::Time, std::shared_ptr<StreamPeer>>> closing_;  // by time
  std::map<VersionWaitId, PendingWait> waits_;
  absl::Time check_waits_at_ = absl::InfiniteFuture();
  Outcome outcome_;
  HeardUntil heard_until_;
  std::optional<Refused> refusing_;  // set: nobody is admitted any more
  absl::Status failure_;

  std::thread thread_;  // these last: everything above is there when they start
  std::thread pulse_thread_;
};

}  // namespace th

#endif  // TH_SERVER_REGISTRY_LOOP_H_
