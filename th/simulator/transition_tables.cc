#include "th/simulator/transition_tables.h"

#include <algorithm>
#include <iterator>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "th/mutability_contract/transitions.h"
#include "th/worker_session/session_table.h"

namespace th {
namespace {

constexpr absl::string_view kReplicaPhases[] = {"idle", "publishing", "holding", "filling",
                                                "draining"};
constexpr absl::string_view kReplicaEvents[] = {
    "publish by one rank",
    "publish by every rank",
    "update by one rank",
    "unpublish by one rank",
    "ready to fill",
    "done by one rank",
    "done by every rank",
    "a rank fails",
    "a rank seals",
    "a rank resets",
    "a rank leaves",
    "a rank is replaced",
    "the operation's time is over",
};

// ---- what cannot happen in a simulated fleet, and why

struct Impossible {
  absl::string_view name, why;
};

constexpr char kInOrder[] =
    "operations of a group run in order: an update is resolved when the unpublish before it has "
    "ended on every rank, its drain included";
constexpr char kOnce[] = "the server resolves an operation once, also over a restart";
constexpr char kBefore[] = "the server says so before an operation is resolved, or never";
constexpr char kNothingYet[] = "nothing is received before the first write";

// clang-format off
constexpr Impossible kImpossible[] = {
    {"publish asked | OperationFinished, not available", kBefore},
    {"publish asked | OperationFinished, offload first", kBefore},
    {"publish asked | OperationFinished, offload first, an error", kBefore},
    {"unpublish asked | OperationResolved, another", kOnce},
    {"unpublish asked | OperationFinished, not available", kBefore},
    {"unpublish copying | OperationFinished, not available", kBefore},
    {"unpublish copying alone | OperationResolved, another", kOnce},
    {"unpublish drained | OperationFinished, not available", kBefore},
    {"unpublish drained | OperationFinished, offload first", kBefore},
    {"update holding | OperationResolved, another", kOnce},
    {"update holding | OperationFinished, not available", kBefore},
    {"update holding | OperationFinished, offload first", kBefore},
    {"update holding | OperationFinished, offload first, an error", kBefore},
    {"update beginning | OperationResolved, another", kInOrder},
    {"update beginning | OperationFinished, OK", kInOrder},
    {"update beginning | OperationFinished, not available", kInOrder},
    {"update beginning | OperationFinished, offload first", kInOrder},
    {"update beginning | OperationFinished, offload first, an error", kInOrder},
    {"update beginning | GroupChanged", kInOrder},
    {"update beginning | sealed", kInOrder},
    {"update draining | OperationResolved, another", kOnce},
    {"update filling, not written | OperationResolved, another", kOnce},
    {"update filling, not written | OperationFinished, not available", kBefore},
    {"update filling, not written | OperationFinished, offload first", kBefore},
    {"update filling, not written | OperationFinished, offload first, an error", kBefore},
    {"update filling, not written | a source is suspected", kNothingYet},
    {"update filling, written | OperationResolved, another", kOnce},
    {"update filling, written | OperationFinished, not available", kBefore},
    {"update filling, written | OperationFinished, offload first", kBefore},
    {"update filling, written | OperationFinished, offload first, an error", kBefore},
    {"update shard done | OperationResolved, another", kOnce},
    {"update shard done | OperationFinished, not available", kBefore},
    {"update shard done | OperationFinished, offload first", kBefore},
    {"update shard done | OperationFinished, offload first, an error", kBefore},
};

// Those that fewer than one seed in a hundred takes: no test of few seeds can demand them.
constexpr absl::string_view kRare[] = {
    "undefined | begin_update | readers of the same version",
    "published and read | GroupChanged",
    "publish asked | GroupChanged",
    "unpublish asked | OperationFinished, OK",
    "unpublish asked | GroupChanged",
    "unpublish copying | OperationFinished, OK",
    "unpublish copying | PublicationRefused",
    "unpublish copying | GroupChanged",
    "unpublish copying alone | OperationResolved",
    "unpublish copying alone | OperationFinished, offload first",
    "unpublish copying alone | the copy is held",
    "unpublish copying alone | the copy fails",
    "unpublish copying alone | PublicationRefused",
    "unpublish copying alone | GroupChanged",
    "unpublish copying alone | sealed",
    "unpublish draining | GroupChanged",
    "unpublish drained | OperationFinished, offload first, an error",
    "unpublish drained | GroupChanged",
    "update asked | OperationResolved, another",
    "update asked | sealed",
    "update copying | PublicationRefused",
    "update copying | GroupChanged",
    "update copying | sealed",
    "update holding | PublicationRefused",
    "update holding | GroupChanged",
    "update holding | sealed",
    "update beginning | OperationFinished, an error",
    "update beginning | the caller cancels",
    "update draining | GroupChanged",
    "update draining | sealed",
    "update filling, not written | OperationFinished, OK",
    "update filling, not written | GroupChanged",
    "update filling, not written | the fill fails",
    "update filling, written | GroupChanged",
    "update shard done | RootKnown",
    "update shard done | GroupChanged",
    "update stopping, not written | RootKnown",
    "update stopping, not written | GroupChanged",
    "update stopping, written | RootKnown",
    "update stopping, written | GroupChanged",
    "publish by every rank | draining",
    "ready to fill | publishing",
    "a rank seals | publishing",
    "a rank leaves | publishing",
    "a rank is replaced | publishing",
    "the operation's time is over | publishing",
};
// clang-format on

std::string WhyNotHere(absl::string_view name) {
  for (const Impossible& impossible : kImpossible) {
    if (impossible.name == name) return std::string(impossible.why);
  }
  return "";
}

std::vector<DrawnTransition> Named(const std::vector<std::string>& names) {
  std::vector<DrawnTransition> drawn;
  drawn.reserve(names.size());
  for (const std::string& name : names) {
    const bool rare = std::find(std::begin(kRare), std::end(kRare), name) != std::end(kRare);
    drawn.push_back({name, WhyNotHere(name), rare});
  }
  return drawn;
}

std::vector<DrawnTransition> ContractTable() {
  std::vector<std::string> names;
  for (const BufferTransition& step : BufferTransitions()) {
    names.push_back(absl::StrCat(BufferStateName(step.from), " | ", BufferEventName(step.event),
                                 " | ", BufferConditionName(step.condition)));
  }
  return Named(names);
}

std::string NameOf(const SessionStep& step) { return absl::StrCat(step.phase, " | ", step.event); }

std::vector<DrawnTransition> SessionTable() {
  std::vector<std::string> names;
  for (const SessionStep& step : SessionSteps()) names.push_back(NameOf(step));
  return Named(names);
}

std::vector<DrawnTransition> ReplicaTable() {
  std::vector<std::string> names;
  for (absl::string_view event : kReplicaEvents) {
    for (absl::string_view phase : kReplicaPhases) {
      names.push_back(absl::StrCat(event, " | ", phase));
    }
  }
  return Named(names);
}

}  // namespace

absl::string_view TransitionTableName(TransitionTable table) {
  switch (table) {
    case TransitionTable::kContract:
      return "contract";
    case TransitionTable::kSession:
      return "session";
    case TransitionTable::kReplica:
      return "replica";
  }
  return "unknown";
}

const std::vector<DrawnTransition>& TransitionsOf(TransitionTable table) {
  static const auto& contract = *new std::vector<DrawnTransition>(ContractTable());
  static const auto& session = *new std::vector<DrawnTransition>(SessionTable());
  static const auto& replica = *new std::vector<DrawnTransition>(ReplicaTable());
  switch (table) {
    case TransitionTable::kContract:
      return contract;
    case TransitionTable::kSession:
      return session;
    case TransitionTable::kReplica:
      break;
  }
  return replica;
}

size_t ImpossibleTransitions() { return std::size(kImpossible); }

size_t RareTransitions() { return std::size(kRare); }

absl::string_view FirstOutputOfSessionStep(absl::string_view name) {
  static const auto& outputs = *[] {
    auto* by_name = new absl::flat_hash_map<std::string, absl::string_view>();
    for (const SessionStep& step : SessionSteps()) {
      const bool changes = step.becomes != "same";
      (*by_name)[NameOf(step)] = changes ? "" : step.outputs.substr(0, step.outputs.find(", "));
    }
    return by_name;
  }();
  const auto found = outputs.find(name);
  return found == outputs.end() ? absl::string_view() : found->second;
}

}  // namespace th
