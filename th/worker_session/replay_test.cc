// A session's life as a trace: its events with their times, fed to a fresh session, bring the same
// answers and outputs.
#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"

namespace th {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

const VersionInfo kOld = Version(7, "step-1");
const VersionInfo kNew = Version(8, "step-2");
const VersionInfo kNext = Version(9, "step-3");

// Longer than a rank waits for a server before it copies alone.
constexpr absl::Duration kAlone = absl::Seconds(5);

SessionOptions WithRoom() {
  SessionOptions options = TestOptions();
  options.offload_limit_bytes = uint64_t{1} << 30;
  return options;
}

// Where the replay differs from the trace: "event 12: output 0". Empty: nowhere.
std::vector<std::string> DifferencesOf(const std::vector<TracedEvent>& trace) {
  std::vector<std::string> differences;
  WorkerSession session(WithRoom(), SessionLimits{});
  for (size_t i = 0; i < trace.size(); ++i) {
    const TracedEvent& line = trace[i];
    const bool answers_so = session.Handle(line.event, line.at) == line.answer;
    if (!answers_so) differences.push_back(absl::StrCat("event ", i, ": answer"));
    std::vector<SessionOutput> outputs;
    while (auto output = session.PollOutput()) outputs.push_back(*std::move(output));
    const size_t count = std::max(outputs.size(), line.outputs.size());
    for (size_t j = 0; j < count; ++j) {
      const bool both = j < outputs.size() && j < line.outputs.size();
      if (both && outputs[j] == line.outputs[j]) continue;
      differences.push_back(absl::StrCat("event ", i, ": output ", j));
    }
  }
  return differences;
}

void PublishAndServe(SessionHarness& worker, BufferId buffer) {
  worker.PublishNamed(buffer, OperationNumber(1), kOld);
  worker.Admit(TransferId(1), buffer, kOld.sequence);
  worker.Handle(event::ReaderBytesMoved{TransferId(1)});
  worker.Handle(event::ReaderReleased{TransferId(1)});
}

void UpdateOverARestart(SessionHarness& worker, BufferId buffer) {
  worker.UpdateToFilling(buffer, OperationNumber(2), kNew);
  worker.Handle(event::FirstWrite{buffer});
  worker.Pass(absl::Seconds(1));
  worker.Handle(event::FillProgressed{buffer, {FirstSegments(3), 3 * kMinSegmentBytes}});
  worker.Handle(event::SourceFailed{buffer,
                                    AssignmentId(1),
                                    {WorkerId(7), BufferId(1)},
                                    SourceFailure::kStalled,
                                    "silent for 1 s"});
  worker.Rejoin(Epoch(2));
  worker.Handle(event::AllReceived{buffer});
  worker.Handle(event::FillCompleted{buffer, TestRoot(9), {.reroutes = 1}});
  worker.Finish({buffer, OperationNumber(2)}, OperationKind::kUpdate, absl::OkStatus(),
                UpdateOutcome::kMoved, kNew);
}

void StageAndApply(SessionHarness& worker, BufferId buffer) {
  const auto copy = worker.BufferOf(event::Stage{CallId(3), buffer, {}});
  ASSERT_OK(copy);
  worker.Say(BufferRegistered{*copy, absl::OkStatus()});
  worker.Say(OperationResolved{{*copy, OperationNumber(1)}, kNext, std::nullopt});
  worker.Handle(event::OffloadAllocated{*copy, absl::OkStatus()});
  worker.Handle(event::FirstWrite{*copy});
  worker.Handle(event::FillCompleted{*copy, TestRoot(3)});
  worker.Finish({*copy, OperationNumber(1)}, OperationKind::kUpdate, absl::OkStatus(),
                UpdateOutcome::kMoved, kNext);
  ASSERT_EQ(worker.session.staged_version(buffer), kNext);
  ASSERT_OK(worker.Handle(event::Apply{CallId(4), buffer, {}}).status);
  worker.Handle(event::CancelUpdate{buffer});
  worker.Finish({buffer, OperationNumber(3)}, OperationKind::kUpdate, absl::AbortedError("no"));
  worker.Handle(event::DiscardStaged{buffer});
}

void UnpublishWithACopy(SessionHarness& worker, BufferId buffer) {
  ASSERT_OK(
      worker.Handle(event::Unpublish{CallId(5), buffer, {.on_retention = OnRetention::kOffload}})
          .status);
  worker.BreakStream();
  worker.Pass(kAlone);  // it copies alone, in vain
}

std::vector<TracedEvent> TraceOfALife() {
  SessionHarness worker(WithRoom());
  worker.Trace();
  worker.Join();
  const BufferId buffer = worker.RegisteredBuffer();
  PublishAndServe(worker, buffer);
  UpdateOverARestart(worker, buffer);
  StageAndApply(worker, buffer);
  const StreamTicket ticket = worker.Handle(event::BeginStream{}).ticket;
  worker.Handle(event::FailStream{ticket, "hf", absl::AbortedError("nothing to receive")});
  EXPECT_FALSE(worker.Handle(event::Publish{CallId(9), buffer, {}}).status.ok());
  UnpublishWithACopy(worker, buffer);
  worker.Handle(event::Leave{});
  return worker.trace();
}

TEST(ReplayTest, TheSameEventsBringTheSameAnswersAndOutputs) {
  EXPECT_THAT(DifferencesOf(TraceOfALife()), IsEmpty());
}

TEST(ReplayTest, WithoutAnEventThatPutsOutSomethingTheyDiffer) {
  const std::vector<TracedEvent> trace = TraceOfALife();
  ASSERT_GT(trace.size(), 30u);
  for (size_t left_out = 0; left_out < trace.size(); ++left_out) {
    const bool tick = std::holds_alternative<event::Tick>(trace[left_out].event);
    if (tick || trace[left_out].outputs.empty()) continue;
    std::vector<TracedEvent> rest = trace;
    rest[left_out].event = event::ReaderBytesMoved{TransferId(99)};
    EXPECT_THAT(DifferencesOf(rest), Not(IsEmpty())) << "without event " << left_out;
  }
}

}  // namespace
}  // namespace th
