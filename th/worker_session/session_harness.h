// A worker session without a world: the test plays the server, the data plane and the clock.
//
//   SessionHarness worker;
//   worker.Join();
//   const BufferId buffer = worker.RegisteredBuffer();
//   EXPECT_OK(worker.Handle(event::Publish{CallId(1), buffer, {.label = Label("step-1")}}).status);
//   EXPECT_EQ(worker.TakeSent<StartOperation>().size(), 1u);
#ifndef TH_WORKER_SESSION_SESSION_HARNESS_H_
#define TH_WORKER_SESSION_SESSION_HARNESS_H_

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/worker_session/worker_session.h"

namespace th {

VersionLabel Label(const std::string& text);
VersionInfo Version(uint64_t sequence, const std::string& label);
// Ten segments of 4 KiB; another `seed` is another layout.
std::shared_ptr<const ShardLayout> TestLayout(int seed = 0);
inline constexpr uint64_t kTestSegments = 10;
Digest TestRoot(uint8_t seed);
CapabilityKey TestKey(uint8_t seed);
SessionOptions TestOptions();
// Segments [0, end).
SegmentSet FirstSegments(uint64_t end);

// One line of a trace: what happened, and what the session made of it.
struct TracedEvent {
  absl::Time at;
  SessionEvent event;
  SessionAnswer answer;
  std::vector<SessionOutput> outputs;
};

class SessionHarness {
 public:
  explicit SessionHarness(SessionOptions options = TestOptions(), SessionLimits limits = {});

  // Tells the session of one event, now.
  SessionAnswer Handle(SessionEvent event);
  // The same of a verb that makes a buffer.
  absl::StatusOr<BufferId> BufferOf(SessionEvent verb);

  // ---- the server's part
  void Say(const ServerMessage& message);
  // Start, the stream, and the server's yes.
  void Join();
  // The stream is open again: what the session says first on it. Fails the test when it is no join.
  JoinRequest OpenAndHearJoin();
  // A stream that breaks, the next one, and the yes of a server of `next_epoch`.
  void Rejoin(Epoch next_epoch, GroupGeneration group = GroupGeneration(1));
  Joined JoinedAnswer(Epoch of_epoch, GroupGeneration group = GroupGeneration(1)) const;
  void BreakStream();
  void Finish(OperationKey key, OperationKind kind, absl::Status status,
              UpdateOutcome outcome = UpdateOutcome::kNone, VersionInfo version = {});

  // ---- the caller's part; each returns when the server has agreed
  BufferId RegisteredBuffer(const std::string& name = "weights", int layout_seed = 0);
  // Named by the server, and sealed.
  void PublishNamed(BufferId buffer, OperationNumber number, const VersionInfo& version);
  // Brings the update that is operation `number` to filling from one source.
  void UpdateToFilling(BufferId buffer, OperationNumber number, const VersionInfo& version);
  // A complete update.
  void UpdateTo(BufferId buffer, OperationNumber number, const VersionInfo& version);

  // ---- the data plane's part
  Capability CapabilityFor(BufferId buffer, VersionSequence version) const;
  void Admit(TransferId transfer, BufferId buffer, VersionSequence version);
  AssignSources Assignment(OperationKey key, uint64_t assignment, VersionSequence version,
                           const std::vector<uint64_t>& workers) const;

  // Lets time pass, ticking at every deadline on the way.
  void Pass(absl::Duration duration);

  // From here on every event goes into trace().
  void Trace() { traces_ = true; }
  const std::vector<TracedEvent>& trace() const { return trace_; }

  // Everything of one kind that came out and was not taken yet, oldest first.
  template <typename Output>
  std::vector<Output> Take();
  template <typename Message>
  std::vector<Message> TakeSent();
  // The names of the messages that went to the server, in order; takes them all.
  std::vector<std::string> TakeSentNames();
  void Drop();  // forgets what came out so far

  WorkerSession session;
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  Epoch epoch{1};
  WorkerId worker{101};

 private:
  void Collect();

  std::vector<SessionOutput> outputs_;
  bool traces_ = false;
  std::vector<TracedEvent> trace_;
};

const char* MessageName(const WorkerMessage& message);

template <typename Output>
std::vector<Output> SessionHarness::Take() {
  Collect();
  std::vector<Output> taken;
  std::vector<SessionOutput> rest;
  for (SessionOutput& output : outputs_) {
    if (auto* found = std::get_if<Output>(&output)) {
      taken.push_back(std::move(*found));
    } else {
      rest.push_back(std::move(output));
    }
  }
  outputs_ = std::move(rest);
  return taken;
}

template <typename Message>
std::vector<Message> SessionHarness::TakeSent() {
  Collect();
  std::vector<Message> taken;
  std::vector<SessionOutput> rest;
  for (SessionOutput& output : outputs_) {
    auto* sent = std::get_if<SendToServer>(&output);
    if (sent != nullptr && std::holds_alternative<Message>(sent->message)) {
      taken.push_back(std::get<Message>(std::move(sent->message)));
    } else {
      rest.push_back(std::move(output));
    }
  }
  outputs_ = std::move(rest);
  return taken;
}

}  // namespace th

#endif  // TH_WORKER_SESSION_SESSION_HARNESS_H_
