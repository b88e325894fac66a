// Every phase that a buffer's operations can be in, against everything that the server, the data
// plane and the caller can say: the outcomes are the rows of SessionSteps, and those are drawn in
// docs/protocol/session.md.
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"
#include "th/worker_session/session_table.h"

namespace th {
namespace {

using ::testing::ElementsAreArray;
using ::testing::UnorderedElementsAreArray;

const VersionInfo kOld = Version(7, "step-1");    // what the buffer holds before
const VersionInfo kNew = Version(8, "step-2");    // what an update goes to
const VersionInfo kOther = Version(9, "step-3");  // what nobody asked for
constexpr TransferId kReader(1);
constexpr uint64_t kRoom = uint64_t{1} << 30;

// One worker with one buffer, and what the phases and events are made of.
class Scene {
 public:
  explicit Scene(uint64_t offload_limit_bytes) : worker_(WithRoom(offload_limit_bytes)) {
    worker_.Join();
    buffer_ = worker_.RegisteredBuffer();
  }

  static SessionOptions WithRoom(uint64_t offload_limit_bytes) {
    SessionOptions options = TestOptions();
    options.offload_limit_bytes = offload_limit_bytes;
    return options;
  }

  // ---- the way into the phases
  void Publish() {
    Begin(OperationKind::kPublish, kOld);
    Accept(worker_.Handle(event::Publish{CallId(number_.value), buffer_, {.label = kOld.label}})
               .status);
  }
  void Published() {
    Publish();
    Finish(absl::OkStatus(), UpdateOutcome::kNone, kOld);
    Seal();
  }
  void Read() { worker_.Admit(kReader, buffer_, kOld.sequence); }
  void Unpublish() {
    Begin(OperationKind::kUnpublish, kOld);
    Accept(worker_.Handle(event::Unpublish{CallId(number_.value), buffer_, {}}).status);
  }
  void Update(const VersionInfo& target = kNew) {
    Begin(OperationKind::kUpdate, target);
    Accept(worker_.Handle(event::Update{CallId(number_.value), buffer_, {}}).status);
  }
  void Resolve() { Say(OperationResolved{key(), target_, std::nullopt}); }
  void Fill() {
    Update();
    Resolve();
    Assign();
  }
  void Undefine() {
    Fill();
    Write();
    Fail();
    Stopped();
  }

  // ---- events
  void Say(const ServerMessage& message) { worker_.Say(message); }
  void Assign() { Say(worker_.Assignment(key(), ++assignment_, target_.sequence, {7})); }
  void Finish(absl::Status status, UpdateOutcome outcome, const VersionInfo& version) {
    worker_.Finish(key(), kind_, std::move(status), outcome, version);
  }
  void FinishWell() {
    const bool update = kind_ == OperationKind::kUpdate;
    Finish(absl::OkStatus(), update ? UpdateOutcome::kMoved : UpdateOutcome::kNone, target_);
  }
  void Seal() {
    worker_.Handle(event::Sealed{buffer_, kOld.sequence, worker_.session.buffer_generation(buffer_),
                                 TestRoot(1)});
  }
  void Write() { worker_.Handle(event::FirstWrite{buffer_}); }
  void Progress() {
    worker_.now += absl::Milliseconds(250);  // the first one waits for its throughputs
    worker_.Handle(event::FillProgressed{buffer_, {FirstSegments(4), 4 * kMinSegmentBytes}});
  }
  void Complete() { worker_.Handle(event::FillCompleted{buffer_, TestRoot(9)}); }
  void Fail() { worker_.Handle(event::FillFailed{buffer_, absl::DataLossError("wrong")}); }
  void Stopped() { worker_.Handle(event::FillStopped{buffer_}); }
  void ReleaseReader() { worker_.Handle(event::ReaderReleased{kReader}); }
  void SourceFails(SourceFailure failure) {
    worker_.Handle(event::SourceFailed{buffer_, AssignmentId(assignment_), source(), failure, ""});
  }
  void SourceIsSuspected() {
    worker_.Handle(event::SourceSuspected{buffer_, AssignmentId(assignment_), source(), ""});
  }
  // ---- retention
  void AskToUnpublish() {
    Begin(OperationKind::kUnpublish, kOld);
    Accept(
        worker_
            .Handle(event::Unpublish{CallId(1), buffer_, {.on_retention = OnRetention::kOffload}})
            .status);
  }
  void AskToUpdate() {
    Begin(OperationKind::kUpdate, kNew);
    Accept(
        worker_.Handle(event::Update{CallId(1), buffer_, {.on_retention = OnRetention::kOffload}})
            .status);
  }
  void MustOffload(absl::Status status = absl::OkStatus()) {
    Say(OperationFinished{.key = key(),
                          .kind = kind_,
                          .status = std::move(status),
                          .version = kOld,
                          .must_offload = true});
    Copy();
  }
  // The session has asked for memory of itself.
  void Copy() { copy_ = BufferId(buffer_.value + 1); }
  // Memory for the copy that was asked for, or none.
  void Allocate(absl::Status status = absl::OkStatus()) {
    worker_.Handle(event::OffloadAllocated{copy_, std::move(status)});
    if (copy_ != BufferId()) Say(BufferRegistered{copy_, absl::OkStatus()});
  }
  void FinishCopy(absl::Status status) {
    const OperationKey copying{copy_, OperationNumber(1)};
    Say(OperationResolved{copying, kOld, std::nullopt});
    worker_.Handle(event::FillCompleted{copy_, TestRoot(1)});
    worker_.Finish(copying, OperationKind::kUpdate, std::move(status), UpdateOutcome::kMoved, kOld);
    worker_.Handle(event::FillStopped{copy_});
  }
  static BufferAddress source() { return {WorkerId(7), BufferId(1)}; }
  OperationKey key() const { return {buffer_, number_}; }

  // ---- verbs of the caller, as events: whether they are taken
  absl::Status last_verb() const { return verb_; }
  void TryReset() { verb_ = worker_.Handle(event::Reset{buffer_}).status; }
  void TryRebind() { verb_ = worker_.session.CanRebind(buffer_); }
  void TryPublish() {
    verb_ = worker_.Handle(event::Publish{CallId(99), buffer_, {.label = kOther.label}}).status;
  }
  void TryUnpublish() { verb_ = worker_.Handle(event::Unpublish{CallId(99), buffer_, {}}).status; }
  void Cancel() { worker_.Handle(event::CancelUpdate{buffer_}); }
  void TryUpdate() { verb_ = worker_.Handle(event::Update{CallId(99), buffer_, {}}).status; }

  // ---- what is seen
  // The operations that the caller waits for, as far as they are, and the buffer's state.
  std::string Phase() const {
    std::vector<std::string> parts = absl::StrSplit(worker_.session.Describe(buffer_), "; ");
    parts.pop_back();  // the buffer, in words of the contract
    for (std::string& part : parts) part = ShortName(part);
    parts.emplace_back(BufferStateName(worker_.session.buffer_state(buffer_)));
    return absl::StrJoin(parts, ", ");
  }
  // The outputs for the driver, in order.
  std::string Outputs() {
    std::vector<std::string> names;
    while (auto output = worker_.session.PollOutput()) {
      std::string name = std::visit(NameOf{}, *output);
      if (!name.empty()) names.push_back(std::move(name));
    }
    return absl::StrJoin(names, ", ");
  }

 private:
  struct NameOf {
    std::string operator()(const SendToServer& o) const { return MessageName(o.message); }
    std::string operator()(const OperationDone& o) const {
      return absl::StrCat("done ", absl::StatusCodeToString(o.status.code()));
    }
    std::string operator()(const StartFill&) const { return "*StartFill*"; }
    std::string operator()(const SetSources&) const { return "*SetSources*"; }
    std::string operator()(const SetRoot&) const { return "*SetRoot*"; }
    std::string operator()(const StopFill&) const { return "*StopFill*"; }
    std::string operator()(const StartSealing&) const { return "*StartSealing*"; }
    std::string operator()(const CutReaders&) const { return "*CutReaders*"; }
    std::string operator()(const AllocateOffload&) const { return "*AllocateOffload*"; }
    std::string operator()(const FreeOffload&) const { return "*FreeOffload*"; }
    std::string operator()(const PublicationLost&) const { return "*PublicationLost*"; }
    // The buffer's state is in the phase already; the stream is no part of this table.
    template <typename Other>
    std::string operator()(const Other&) const {
      return "";
    }
  };
  // "update step-2: filling, 4 of 10 segments from 1 sources" -> "update filling".
  static std::string ShortName(const std::string& text) {
    if (!absl::StartsWith(text, "update") || absl::EndsWith(text, "copying")) return text;
    const std::vector<std::string> halves = absl::StrSplit(text, ": ");
    const std::vector<std::string> words = absl::StrSplit(halves.back(), ", ");
    return absl::StrCat("update ", words.front());
  }
  void Begin(OperationKind kind, const VersionInfo& target) {
    number_ = begun_ ? number_.Next() : number_;
    begun_ = true;
    kind_ = kind;
    target_ = target;
  }
  static void Accept(const absl::Status& status) { ASSERT_OK(status); }

  SessionHarness worker_;
  BufferId buffer_;
  OperationNumber number_{1};
  bool begun_ = false;
  OperationKind kind_ = OperationKind::kPublish;
  VersionInfo target_ = kOld;
  uint64_t assignment_ = 0;
  BufferId copy_;
  absl::Status verb_;
};

using Step = std::function<void(Scene&)>;
struct Named {
  const char* name;
  Step step;
};

struct Phase {
  const char* name;
  Step step;
  uint64_t offload_limit_bytes = 0;
};

std::vector<Phase> Phases() {
  return {
      {"new", [](Scene&) {}},
      {"publish asked", [](Scene& s) { s.Publish(); }},
      {"published", [](Scene& s) { s.Published(); }},
      {"published and read", [](Scene& s) { s.Published(), s.Read(); }},
      {"unpublish asked", [](Scene& s) { s.Published(), s.AskToUnpublish(); }},
      {"unpublish copying",
       [](Scene& s) { s.Published(), s.AskToUnpublish(), s.MustOffload(), s.Allocate(); }},
      // Others of its group have ended it.
      {"unpublish copying alone",
       [](Scene& s) { s.Published(), s.AskToUnpublish(), s.FinishWell(), s.Copy(), s.Allocate(); },
       kRoom},
      {"unpublish draining", [](Scene& s) { s.Published(), s.Read(), s.Unpublish(); }},
      {"unpublish drained", [](Scene& s) { s.Published(), s.Unpublish(); }},
      {"update asked", [](Scene& s) { s.Published(), s.Update(); }},
      {"update copying",
       [](Scene& s) { s.Published(), s.AskToUpdate(), s.MustOffload(), s.Allocate(); }},
      {"update holding", [](Scene& s) { s.Published(), s.Update(kOld), s.Resolve(); }},
      {"update beginning",
       [](Scene& s) { s.Published(), s.Read(), s.Unpublish(), s.Update(), s.Resolve(); }},
      {"update draining", [](Scene& s) { s.Published(), s.Read(), s.Update(), s.Resolve(); }},
      {"update filling, not written", [](Scene& s) { s.Published(), s.Fill(); }},
      {"update filling, written", [](Scene& s) { s.Published(), s.Fill(), s.Write(); }},
      {"update shard done", [](Scene& s) { s.Published(), s.Fill(), s.Write(), s.Complete(); }},
      {"update stopping, not written", [](Scene& s) { s.Published(), s.Fill(), s.Fail(); }},
      {"update stopping, written", [](Scene& s) { s.Published(), s.Fill(), s.Write(), s.Fail(); }},
      {"undefined", [](Scene& s) { s.Published(), s.Undefine(); }},
  };
}

std::vector<Named> Events() {
  return {
      {"OperationResolved", [](Scene& s) { s.Resolve(); }},
      {"OperationResolved, another",
       [](Scene& s) {
         s.Say(OperationResolved{s.key(), kOther, std::nullopt});
       }},
      {"AssignSources", [](Scene& s) { s.Assign(); }},
      {"RootKnown",
       [](Scene& s) {
         s.Say(RootKnown{kNew.sequence, {TestLayout()->digest(), TestRoot(3)}});
       }},
      {"OperationFinished, OK", [](Scene& s) { s.FinishWell(); }},
      {"OperationFinished, not available",
       [](Scene& s) { s.Finish(absl::OkStatus(), UpdateOutcome::kNotAvailable, {}); }},
      {"OperationFinished, an error",
       [](Scene& s) { s.Finish(absl::AbortedError("no"), UpdateOutcome::kNone, {}); }},
      {"OperationFinished, offload first", [](Scene& s) { s.MustOffload(); }},
      {"OperationFinished, offload first, an error",
       [](Scene& s) { s.MustOffload(absl::FailedPreconditionError("no room")); }},
      {"the copy is held", [](Scene& s) { s.FinishCopy(absl::OkStatus()); }},
      {"the copy fails", [](Scene& s) { s.FinishCopy(absl::UnavailableError("no source")); }},
      {"PublicationRefused",
       [](Scene& s) {
         s.Say(PublicationRefused{s.key().buffer, kOld.sequence, absl::AbortedError("back")});
       }},
      {"GroupChanged",
       [](Scene& s) {
         s.Say(GroupChanged{GroupGeneration(2), {"rollout-3", Rank(0)}});
       }},
      {"sealed", [](Scene& s) { s.Seal(); }},
      {"the last reader lets go", [](Scene& s) { s.ReleaseReader(); }},
      {"progress", [](Scene& s) { s.Progress(); }},
      {"the first write", [](Scene& s) { s.Write(); }},
      {"a source fails", [](Scene& s) { s.SourceFails(SourceFailure::kClosed); }},
      {"a source is suspected", [](Scene& s) { s.SourceIsSuspected(); }},
      {"the fill is complete", [](Scene& s) { s.Complete(); }},
      {"the fill fails", [](Scene& s) { s.Fail(); }},
      {"the fill has stopped", [](Scene& s) { s.Stopped(); }},
      {"verb Publish", [](Scene& s) { s.TryPublish(); }},
      {"verb Unpublish", [](Scene& s) { s.TryUnpublish(); }},
      {"verb Update", [](Scene& s) { s.TryUpdate(); }},
      {"verb Reset", [](Scene& s) { s.TryReset(); }},
      {"verb Rebind", [](Scene& s) { s.TryRebind(); }},
      {"the caller cancels", [](Scene& s) { s.Cancel(); }},
  };
}

// The row of one step; empty when it is ignored, or refused without a trace.
std::string RowOf(const Phase& phase, const Named& event) {
  Scene scene(phase.offload_limit_bytes);
  phase.step(scene);
  scene.Outputs();
  const std::string before = scene.Phase();
  event.step(scene);
  const std::string after = scene.Phase();
  const std::string outputs = scene.Outputs();
  const bool verb = absl::StartsWith(event.name, "verb");
  if (verb && !scene.last_verb().ok()) {
    EXPECT_EQ(after, before) << phase.name << ": " << event.name << " was refused";
    EXPECT_EQ(outputs, "") << phase.name << ": " << event.name << " was refused";
    return "";
  }
  if (!verb && after == before && outputs.empty()) return "";
  return absl::StrCat("| ", phase.name, " | ", event.name, " | ", after == before ? "same" : after,
                      " | ", outputs.empty() ? "-" : outputs, " |");
}

std::vector<std::string> RowsOfTheTable() {
  std::vector<std::string> rows;
  for (const SessionStep& step : SessionSteps()) {
    rows.push_back(absl::StrCat("| ", step.phase, " | ", step.event, " | ", step.becomes, " | ",
                                step.outputs, " |"));
  }
  return rows;
}

std::vector<std::string> RowsOfTheDrawnTable() {
  const std::string path = absl::StrCat(getenv("TEST_SRCDIR"), "/", getenv("TEST_WORKSPACE"),
                                        "/docs/protocol/session.md");
  std::ifstream file(path);
  std::vector<std::string> rows;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "| phase | event |")) {
      inside = true;
    } else if (!absl::StartsWith(line, "|")) {
      inside = false;
    } else if (inside && !absl::StartsWith(line, "|---")) {
      rows.push_back(absl::StrReplaceAll(line, {{"`", ""}}));
    }
  }
  return rows;
}

TEST(SessionTableTest, EveryStepIsInTheTableAndAllOthersAreIgnoredOrRefused) {
  std::vector<std::string> rows;
  for (const Phase& phase : Phases()) {
    for (const Named& event : Events()) {
      std::string row = RowOf(phase, event);
      if (!row.empty()) rows.push_back(std::move(row));
    }
  }
  EXPECT_THAT(RowsOfTheTable(), UnorderedElementsAreArray(rows)) << "the session's steps are:\n"
                                                                 << absl::StrJoin(rows, "\n");
}

TEST(SessionTableTest, TheDrawnTableIsTheCodes) {
  EXPECT_THAT(RowsOfTheDrawnTable(), ElementsAreArray(RowsOfTheTable()));
}

}  // namespace
}  // namespace th
