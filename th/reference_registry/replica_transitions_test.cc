// Every event in every phase of a replica: what becomes of it, and what its ranks hear. The same
// table is drawn in docs/protocol/registry.md.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/reference_registry/registry_harness.h"

namespace th {
namespace {

using ::testing::ElementsAreArray;

constexpr const char* kPhases[] = {"idle", "publishing", "holding", "filling", "draining"};

enum class Event {
  kPublish,
  kPublishAll,
  kUpdate,
  kUnpublish,
  kReady,
  kDone,
  kDoneAll,
  kFailed,
  kSeal,
  kReset,
  kLeave,
  kReplace,
  kDeadline,
};

struct Row {
  Event event;
  const char* name;
  // By phase, in the order of kPhases. A phase and a status: it is in that phase then, and the
  // first rank has heard that result. "stays": nothing but what the event itself says. "refused":
  // counted, and nothing has changed.
  const char* outcome[5];
};

// clang-format off
constexpr Row kRows[] = {
    {Event::kPublish, "publish by one rank",
     {"publishing", "stays", "holding, FAILED_PRECONDITION", "stays", "stays"}},
    {Event::kPublishAll, "publish by every rank",
     {"holding, OK", "holding, OK", "holding, FAILED_PRECONDITION", "stays", "stays"}},
    {Event::kUpdate, "update by one rank", {"filling", "stays", "filling", "stays", "stays"}},
    {Event::kUnpublish, "unpublish by one rank",
     {"idle, FAILED_PRECONDITION", "stays", "draining", "stays", "stays"}},
    {Event::kReady, "ready to fill", {"refused", "refused", "refused", "stays", "refused"}},
    {Event::kDone, "done by one rank", {"refused", "refused", "refused", "stays", "stays"}},
    {Event::kDoneAll, "done by every rank",
     {"refused", "refused", "refused", "holding, OK", "idle, OK"}},
    {Event::kFailed, "a rank fails",
     {"refused", "idle, INTERNAL", "idle", "idle, INTERNAL", "idle, INTERNAL"}},
    {Event::kSeal, "a rank seals", {"refused", "refused", "stays", "refused", "stays"}},
    {Event::kReset, "a rank resets",
     {"stays", "idle, ABORTED", "idle", "idle, ABORTED", "idle, ABORTED"}},
    {Event::kLeave, "a rank leaves",
     {"stays", "idle, UNAVAILABLE", "idle", "idle, UNAVAILABLE", "idle, UNAVAILABLE"}},
    {Event::kReplace, "a rank is replaced",
     {"stays", "idle, ABORTED", "idle", "idle, ABORTED", "idle, ABORTED"}},
    {Event::kDeadline, "the operation's time is over",
     {"stays", "idle, DEADLINE_EXCEEDED", "stays", "idle, DEADLINE_EXCEEDED",
      "idle, DEADLINE_EXCEEDED"}},
};
// clang-format on

VersionSelector Step1() { return *ParseVersionSelector("step-1"); }

// A trainer that has published step-1, and a group of two whose replica is in one phase.
class Stage {
 public:
  explicit Stage(absl::string_view phase)
      : trainer_(Trainer(hub_, "step-1")), zero_(hub_, "g", 0, 2), one_(hub_, "g", 1, 2) {
    for (TestRank* rank : {&zero_, &one_}) rank->JoinAndRegister();
    if (phase == "publishing") zero_.Publish("step-2");
    if (phase == "holding" || phase == "draining") PublishAll();
    if (phase == "draining") {
      for (TestRank* rank : {&zero_, &one_}) rank->Unpublish();
    }
    if (phase == "filling") {
      for (TestRank* rank : {&zero_, &one_}) rank->Update(Step1());
      zero_.Ready();
    }
    hub_.TakeAll<OperationFinished>(zero_.connection);
    EXPECT_EQ(Phase(), phase);
  }

  // The outcome of the event in the words of the table.
  std::string OutcomeOf(Event event) {
    const std::string before = Phase();
    const uint64_t refused = hub_.registry().counters().messages_refused;
    Happen(event);
    const std::string after = Phase();
    const auto heard = hub_.TakeAll<OperationFinished>(zero_.connection);
    if (!heard.empty()) {
      return absl::StrCat(after, ", ", absl::StatusCodeToString(heard.back().status.code()));
    }
    if (hub_.registry().counters().messages_refused > refused) {
      return after == before ? "refused" : absl::StrCat("refused, but ", after);
    }
    return after == before ? "stays" : after;
  }

 private:
  void PublishAll() {
    const bool has_asked = Phase() == "publishing";
    if (!has_asked) zero_.Publish("step-2");
    one_.Publish("step-2");
  }

  void Happen(Event event) {
    switch (event) {
      case Event::kPublish:
        return zero_.Publish("step-2");
      case Event::kPublishAll:
        return PublishAll();
      case Event::kUpdate:
        return zero_.Update(Step1());
      case Event::kUnpublish:
        return zero_.Unpublish();
      case Event::kReady:
        return zero_.Ready();
      case Event::kDone:
        return zero_.Done();
      case Event::kDoneAll:
        zero_.Done();
        if (Phase() == "filling") one_.Ready();
        return one_.Done();
      case Event::kFailed:
        return zero_.Fail(absl::InternalError("no luck"));
      case Event::kSeal:
        return zero_.Seal(hub_.List().models.at(0).versions.at(0).info.sequence, "content");
      case Event::kReset:
        return zero_.Say(BufferReset{zero_.buffer});
      case Event::kLeave:
        return one_.Say(Leave{});
      case Event::kReplace: {
        one_.Disconnect();
        TestRank fresh(hub_, "g", 1, 2);
        EXPECT_TRUE(fresh.Join());
        return;
      }
      case Event::kDeadline:
        for (int second = 0; second < 61; ++second) {
          for (TestRank* rank : {&trainer_, &zero_, &one_}) rank->Say(Heartbeat{});
          hub_.Advance(absl::Seconds(1));
        }
    }
  }

  // The catalog tells replicas that hold apart: who published and who received.
  static std::string NameOfState(const std::string& state) {
    return state == "published" || state == "complete" ? "holding" : state;
  }

  std::string Phase() {
    const CatalogModel model = hub_.List().models.at(0);
    for (const CatalogVersion& version : model.versions) {
      for (const CatalogReplica& replica : version.replicas) {
        if (replica.group == "g") return NameOfState(replica.state);
      }
    }
    for (const CatalogReplica& replica : model.idle) {
      if (replica.group == "g") return NameOfState(replica.state);
    }
    return "gone";
  }

  RegistryHarness hub_;
  TestRank trainer_;
  TestRank zero_;
  TestRank one_;
};

class ReplicaTransitionTest : public ::testing::TestWithParam<std::tuple<size_t, size_t>> {};

TEST_P(ReplicaTransitionTest, EndsAsTheTableSays) {
  const auto [row, phase] = GetParam();
  EXPECT_EQ(Stage(kPhases[phase]).OutcomeOf(kRows[row].event), kRows[row].outcome[phase]);
}

std::string CaseName(const ::testing::TestParamInfo<std::tuple<size_t, size_t>>& info) {
  const auto [row, phase] = info.param;
  std::string name = absl::StrCat(kRows[row].name, " while ", kPhases[phase]);
  std::erase_if(name, [](char c) { return c == '\''; });
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(EveryEventInEveryPhase, ReplicaTransitionTest,
                         ::testing::Combine(::testing::Range(size_t{0}, std::size(kRows)),
                                            ::testing::Range(size_t{0}, std::size(kPhases))),
                         CaseName);

std::vector<std::string> RowsOfTheDrawnTable() {
  std::ifstream file(
      absl::StrCat(std::getenv("TEST_SRCDIR"), "/tensorhub/docs/protocol/registry.md"));
  std::vector<std::string> rows;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> cells = absl::StrSplit(line, " | ");
    if (cells.size() == 6 && !absl::StartsWith(line, "| event")) rows.push_back(line);
  }
  return rows;
}

TEST(DrawnTableTest, TheDrawnTableIsThisOne) {
  std::vector<std::string> rows;
  for (const Row& row : kRows) {
    rows.push_back(absl::StrCat("| ", row.name, " | ", absl::StrJoin(row.outcome, " | "), " |"));
  }
  EXPECT_THAT(RowsOfTheDrawnTable(), ElementsAreArray(rows));
}

}  // namespace
}  // namespace th
