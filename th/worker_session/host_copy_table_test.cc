// Every phase of a copy in host memory, kept or staged, against everything that can happen to it:
// the outcomes are the rows of HostCopySteps, and those are drawn in docs/protocol/session.md.
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/worker_session/session_harness.h"
#include "th/worker_session/session_table.h"

namespace th {
namespace {

using ::testing::ElementsAreArray;
using ::testing::UnorderedElementsAreArray;

const VersionInfo kOld = Version(7, "step-1");  // what the buffer holds, and a kept copy is made of
const VersionInfo kNew = Version(8, "step-2");  // what is staged
constexpr TransferId kReader(1);

// One worker with one buffer and its copy.
class Scene {
 public:
  Scene() {
    worker_.Join();
    buffer_ = worker_.RegisteredBuffer();
    copy_ = BufferId(buffer_.value + 1);
  }

  // ---- the way into the phases
  void KeepUnregistered() {
    version_ = kOld;
    worker_.PublishNamed(buffer_, OperationNumber(1), kOld);
    ASSERT_OK(
        worker_
            .Handle(event::Unpublish{CallId(2), buffer_, {.on_retention = OnRetention::kOffload}})
            .status);
    WantCopyFirst();
  }
  void Keep() {
    KeepUnregistered();
    Register();
  }
  void Stage() {
    version_ = kNew;
    worker_.UpdateTo(buffer_, OperationNumber(1), kOld);
    TryStage();
    Register();
  }
  void Hold() {
    AnswerMemory(absl::OkStatus());
    Fill();
    FinishCopy(absl::OkStatus(), UpdateOutcome::kMoved);
  }
  void StageAndHold() {
    Stage();
    Resolve();
    Hold();
  }
  void Read() { worker_.Admit(kReader, copy_, version_.sequence); }

  // ---- events
  void Register() { worker_.Say(BufferRegistered{copy_, absl::OkStatus()}); }
  void AnswerMemory(absl::Status status) {
    worker_.Handle(event::OffloadAllocated{copy_, std::move(status)});
  }
  void Resolve() { worker_.Say(OperationResolved{key(), version_, std::nullopt}); }
  void Fill() {
    Resolve();
    worker_.Say(worker_.Assignment(key(), 1, version_.sequence, {7}));
    worker_.Handle(event::FirstWrite{copy_});
    worker_.Handle(event::FillCompleted{copy_, TestRoot(1)});
  }
  void FinishCopy(absl::Status status, UpdateOutcome outcome) {
    worker_.Finish(key(), OperationKind::kUpdate, std::move(status), outcome, version_);
    worker_.Handle(event::FillStopped{copy_});
  }
  void WantCopyFirst() {
    worker_.Say(OperationFinished{.key = {buffer_, OperationNumber(2)},
                                  .kind = OperationKind::kUnpublish,
                                  .version = kOld,
                                  .must_offload = true});
  }
  void ChangeGroup() { worker_.Say(GroupChanged{GroupGeneration(2), {"rollout-3", Rank(0)}}); }
  void Release() { worker_.Say(OffloadReleased{copy_}); }
  void TakeBack() {
    worker_.Say(PublicationRefused{copy_, version_.sequence, absl::AbortedError("back")});
  }
  void TryStage() {
    const SessionAnswer answer = worker_.Handle(event::Stage{CallId(++call_), buffer_, {}});
    if (answer.status.ok()) number_ = OperationNumber(++stages_);
  }
  void Cancel() { worker_.Handle(event::CancelUpdate{buffer_}); }
  void Discard() { worker_.Handle(event::DiscardStaged{buffer_}); }
  void UnregisterOriginal() { worker_.Handle(event::UnregisterBuffer{buffer_}); }
  void ReleaseReader() { worker_.Handle(event::ReaderReleased{kReader}); }

  // ---- what is seen
  std::string Phase() const {
    if (!worker_.session.has_buffer(copy_)) return "(removed)";
    const std::vector<std::string> parts = absl::StrSplit(worker_.session.Describe(copy_), "; ");
    return parts.front();
  }
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
    std::string operator()(const StopFill&) const { return "*StopFill*"; }
    std::string operator()(const CutReaders&) const { return "*CutReaders*"; }
    std::string operator()(const AllocateOffload&) const { return "*AllocateOffload*"; }
    std::string operator()(const FreeOffload&) const { return "*FreeOffload*"; }
    std::string operator()(const PublicationLost&) const { return "*PublicationLost*"; }
    template <typename Other>
    std::string operator()(const Other&) const {
      return "";
    }
  };

  OperationKey key() const { return {copy_, number_}; }

  SessionHarness worker_;
  BufferId buffer_;
  BufferId copy_;
  VersionInfo version_;
  OperationNumber number_{1};
  uint64_t stages_ = 0;
  uint64_t call_ = 10;
};

struct Named {
  const char* name;
  std::function<void(Scene&)> step;
};

std::vector<std::function<void(Scene&)>> Phases() {
  return {
      [](Scene& s) { s.KeepUnregistered(), s.AnswerMemory(absl::ResourceExhaustedError("none")); },
      [](Scene& s) { s.Keep(); },
      [](Scene& s) { s.Keep(), s.AnswerMemory(absl::OkStatus()); },
      [](Scene& s) { s.Keep(), s.Hold(); },
      [](Scene& s) { s.Keep(), s.Hold(), s.Read(), s.Release(); },
      [](Scene& s) { s.Stage(); },
      [](Scene& s) { s.Stage(), s.Resolve(); },
      [](Scene& s) { s.Stage(), s.Resolve(), s.AnswerMemory(absl::OkStatus()); },
      [](Scene& s) { s.StageAndHold(); },
      [](Scene& s) { s.StageAndHold(), s.Read(), s.Discard(); },
      [](Scene& s) { s.StageAndHold(), s.Discard(); },
  };
}

std::vector<Named> Events() {
  return {
      {"its memory is there", [](Scene& s) { s.AnswerMemory(absl::OkStatus()); }},
      {"no memory", [](Scene& s) { s.AnswerMemory(absl::ResourceExhaustedError("none")); }},
      {"BufferRegistered", [](Scene& s) { s.Register(); }},
      {"OperationResolved", [](Scene& s) { s.Resolve(); }},
      {"filled, OperationFinished, OK",
       [](Scene& s) {
         s.Fill();
         s.FinishCopy(absl::OkStatus(), UpdateOutcome::kMoved);
       }},
      {"OperationFinished, not available",
       [](Scene& s) { s.FinishCopy(absl::OkStatus(), UpdateOutcome::kNotAvailable); }},
      {"OperationFinished, an error",
       [](Scene& s) { s.FinishCopy(absl::AbortedError("no"), UpdateOutcome::kNone); }},
      {"GroupChanged", [](Scene& s) { s.ChangeGroup(); }},
      {"OffloadReleased", [](Scene& s) { s.Release(); }},
      {"PublicationRefused", [](Scene& s) { s.TakeBack(); }},
      {"the last reader lets go", [](Scene& s) { s.ReleaseReader(); }},
      {"verb Stage", [](Scene& s) { s.TryStage(); }},
      {"verb Discard", [](Scene& s) { s.Discard(); }},
      {"the caller cancels", [](Scene& s) { s.Cancel(); }},
      {"the original is unregistered", [](Scene& s) { s.UnregisterOriginal(); }},
  };
}

// The row of one step; empty when nothing of the copy changes and nothing is put out.
std::string RowOf(const std::function<void(Scene&)>& phase, const Named& event) {
  Scene scene;
  phase(scene);
  scene.Outputs();
  const std::string before = scene.Phase();
  // Nobody stages beside a kept copy.
  const bool verb = absl::StartsWith(event.name, "verb");
  if (verb && !absl::StartsWith(before, "staged")) return "";
  event.step(scene);
  const std::string after = scene.Phase();
  const std::string outputs = scene.Outputs();
  if (after == before && outputs.empty()) return "";
  return absl::StrCat("| ", before, " | ", event.name, " | ", after == before ? "same" : after,
                      " | ", outputs.empty() ? "-" : outputs, " |");
}

std::vector<std::string> RowsOfTheTable() {
  std::vector<std::string> rows;
  for (const SessionStep& step : HostCopySteps()) {
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
    if (absl::StartsWith(line, "| copy | event |")) {
      inside = true;
    } else if (!absl::StartsWith(line, "|")) {
      inside = false;
    } else if (inside && !absl::StartsWith(line, "|---")) {
      rows.push_back(absl::StrReplaceAll(line, {{"`", ""}}));
    }
  }
  return rows;
}

TEST(HostCopyTableTest, EveryStepOfACopyIsInTheTableAndNothingElseChangesIt) {
  std::vector<std::string> rows;
  for (const auto& phase : Phases()) {
    for (const Named& event : Events()) {
      std::string row = RowOf(phase, event);
      if (!row.empty()) rows.push_back(std::move(row));
    }
  }
  EXPECT_THAT(RowsOfTheTable(), UnorderedElementsAreArray(rows)) << "the steps of a copy are:\n"
                                                                 << absl::StrJoin(rows, "\n");
}

TEST(HostCopyTableTest, TheDrawnTableIsTheCodes) {
  EXPECT_THAT(RowsOfTheDrawnTable(), ElementsAreArray(RowsOfTheTable()));
}

}  // namespace
}  // namespace th
