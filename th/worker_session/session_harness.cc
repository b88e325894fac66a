#include "th/worker_session/session_harness.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {

VersionLabel Label(const std::string& text) { return VersionLabel::Parse(text).value(); }

VersionInfo Version(uint64_t sequence, const std::string& label) {
  return {VersionSequence(sequence), Label(label), Lineage(0), {}};
}

std::shared_ptr<const ShardLayout> TestLayout(int seed) {
  TensorSpec tensor;
  tensor.name = absl::StrCat("w", seed);
  tensor.dtype = DType::kU8;
  tensor.shape = {static_cast<int64_t>(kTestSegments * kMinSegmentBytes)};
  ShardLayout::Spec spec;
  spec.tensors = {tensor};
  spec.segment_bytes = kMinSegmentBytes;
  return std::make_shared<ShardLayout>(ShardLayout::Build(std::move(spec)).value());
}

Digest TestRoot(uint8_t seed) {
  Digest root;
  root.bytes.fill(seed);
  return root;
}

CapabilityKey TestKey(uint8_t seed) {
  CapabilityKey key;
  key.bytes.fill(seed);
  return key;
}

SessionOptions TestOptions() {
  SessionOptions options;
  options.key = {"r1", "qwen3"};
  options.name = {"rollout-3", Rank(1)};
  options.ranks = 2;
  options.endpoints = {{"10.0.0.3:4711"}};
  return options;
}

SegmentSet FirstSegments(uint64_t end) {
  return SegmentSet::FromRanges({{SegmentIndex(0), SegmentIndex(end)}});
}

SessionHarness::SessionHarness(SessionOptions options, SessionLimits limits)
    : session(std::move(options), limits) {}

SessionAnswer SessionHarness::Handle(SessionEvent event) {
  if (!traces_) return session.Handle(std::move(event), now);
  TracedEvent& line = trace_.emplace_back(TracedEvent{.at = now, .event = event});
  line.answer = session.Handle(std::move(event), now);
  while (auto output = session.PollOutput()) line.outputs.push_back(*std::move(output));
  outputs_.insert(outputs_.end(), line.outputs.begin(), line.outputs.end());
  return line.answer;
}

absl::StatusOr<BufferId> SessionHarness::BufferOf(SessionEvent verb) {
  const SessionAnswer answer = Handle(std::move(verb));
  if (!answer.status.ok()) return answer.status;
  return answer.buffer;
}

void SessionHarness::Say(const ServerMessage& message) { Handle(event::ServerSaid{message}); }

Joined SessionHarness::JoinedAnswer(Epoch of_epoch, GroupGeneration group) const {
  Joined joined;
  joined.hello = {kMinProtocolVersion, kProtocolVersion, 0, "server"};
  joined.epoch = of_epoch;
  joined.worker = worker;
  joined.group_generation = group;
  joined.key = TestKey(static_cast<uint8_t>(of_epoch.value));
  joined.lease = absl::Seconds(3);
  joined.progress_interval = absl::Seconds(1);
  return joined;
}

void SessionHarness::Join() {
  Handle(event::Start{});
  Handle(event::StreamOpened{});
  Say(JoinedAnswer(epoch));
  ASSERT_TRUE(session.joined());
  Drop();
}

void SessionHarness::BreakStream() {
  Handle(event::StreamClosed{absl::UnavailableError("connection reset")});
}

JoinRequest SessionHarness::OpenAndHearJoin() {
  Handle(event::StreamOpened{});
  const auto joins = TakeSent<JoinRequest>();
  EXPECT_EQ(joins.size(), 1u);
  return joins.empty() ? JoinRequest{} : joins.front();
}

void SessionHarness::Rejoin(Epoch next_epoch, GroupGeneration group) {
  epoch = next_epoch;
  Take<OpenStream>();
  BreakStream();
  Pass(absl::Milliseconds(50));
  ASSERT_EQ(Take<OpenStream>().size(), 1u);
  const JoinRequest join = OpenAndHearJoin();
  Say(JoinedAnswer(next_epoch, group));
  for (const AnnouncedBuffer& buffer : join.buffers) {
    Say(BufferRegistered{buffer.buffer, absl::OkStatus()});
  }
}

void SessionHarness::Finish(OperationKey key, OperationKind kind, absl::Status status,
                            UpdateOutcome outcome, VersionInfo version) {
  OperationFinished finished;
  finished.key = key;
  finished.kind = kind;
  finished.status = std::move(status);
  finished.outcome = outcome;
  finished.version = std::move(version);
  Say(finished);
}

BufferId SessionHarness::RegisteredBuffer(const std::string& name, int layout_seed) {
  const auto buffer = BufferOf(event::RegisterBuffer{name, "hf", TestLayout(layout_seed)});
  EXPECT_OK(buffer);
  Say(BufferRegistered{*buffer, absl::OkStatus()});
  Drop();
  return *buffer;
}

void SessionHarness::PublishNamed(BufferId buffer, OperationNumber number,
                                  const VersionInfo& version) {
  ASSERT_OK(Handle(event::Publish{CallId(number.value), buffer, {.label = version.label}}).status);
  Finish({buffer, number}, OperationKind::kPublish, absl::OkStatus(), UpdateOutcome::kNone,
         version);
  ASSERT_EQ(session.buffer_version(buffer), version);
  Handle(event::Sealed{buffer, version.sequence, session.buffer_generation(buffer), TestRoot(1)});
  Drop();
}

void SessionHarness::UpdateToFilling(BufferId buffer, OperationNumber number,
                                     const VersionInfo& version) {
  const OperationKey key{buffer, number};
  ASSERT_OK(
      Handle(event::Update{CallId(number.value), buffer, {.timeout = absl::Seconds(60)}}).status);
  Say(OperationResolved{key, version, std::nullopt});
  Say(Assignment(key, 1, version.sequence, {7}));
  ASSERT_EQ(session.buffer_state(buffer), BufferState::kFilling);
  Drop();
}

void SessionHarness::UpdateTo(BufferId buffer, OperationNumber number, const VersionInfo& version) {
  UpdateToFilling(buffer, number, version);
  Handle(event::FirstWrite{buffer});
  Handle(event::FillCompleted{buffer, TestRoot(9)});
  Finish({buffer, number}, OperationKind::kUpdate, absl::OkStatus(), UpdateOutcome::kMoved,
         version);
  ASSERT_EQ(session.buffer_state(buffer), BufferState::kPublished);
  Drop();
}

Capability SessionHarness::CapabilityFor(BufferId buffer, VersionSequence version) const {
  CapabilityClaims claims;
  claims.reader = WorkerId(55);
  claims.source = {worker, buffer};
  claims.version = version;
  claims.epoch = epoch;
  claims.assignment = AssignmentId(1);
  return MintCapability(TestKey(static_cast<uint8_t>(epoch.value)), claims);
}

void SessionHarness::Admit(TransferId transfer, BufferId buffer, VersionSequence version) {
  Handle(event::AdmissionAsked{transfer, buffer, CapabilityFor(buffer, version),
                               session.buffer_generation(buffer)});
}

AssignSources SessionHarness::Assignment(OperationKey key, uint64_t assignment,
                                         VersionSequence version,
                                         const std::vector<uint64_t>& workers) const {
  AssignSources assigned;
  assigned.key = key;
  assigned.assignment = AssignmentId(assignment);
  assigned.version = version;
  for (uint64_t source : workers) {
    AssignedSource one;
    one.buffer = {WorkerId(source), BufferId(1)};
    one.name = {absl::StrCat("rollout-", source), Rank(1)};
    one.endpoints = {{absl::StrCat("10.0.0.", source, ":4711")}};
    assigned.sources.push_back(one);
  }
  return assigned;
}

void SessionHarness::Pass(absl::Duration duration) {
  const absl::Time until = now + duration;
  // Each round is one deadline; a session that asks for the same moment again and again is broken.
  for (int round = 0; round < 10000; ++round) {
    const absl::Time next = session.NextDeadline();
    if (next > until) break;
    now = std::max(now, next);
    Handle(event::Tick{});
  }
  now = until;
  EXPECT_GT(session.NextDeadline(), now) << "the session spins";
}

std::vector<std::string> SessionHarness::TakeSentNames() {
  std::vector<std::string> names;
  for (const SendToServer& sent : Take<SendToServer>()) names.push_back(MessageName(sent.message));
  return names;
}

void SessionHarness::Drop() {
  Collect();
  outputs_.clear();
}

void SessionHarness::Collect() {
  while (auto output = session.PollOutput()) outputs_.push_back(std::move(*output));
}

const char* MessageName(const WorkerMessage& message) {
  static constexpr const char* kNames[] = {
      "JoinRequest",     "RegisterBuffer",   "LayoutUpload", "StartOperation", "ReadyToFill",
      "ShardSealed",     "FillProgress",     "RankDone",     "RankFailed",     "SourceFailed",
      "BufferReset",     "UnregisterBuffer", "RunCommand",   "Heartbeat",      "Leave",
      "SourceSuspected", "Preempt"};
  static_assert(std::size(kNames) == std::variant_size_v<WorkerMessage>);
  return kNames[message.index()];
}

}  // namespace th
