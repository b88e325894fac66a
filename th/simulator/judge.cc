#include "th/simulator/judge.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "th/simulator/event_queue.h"
#include "th/simulator/simulated_buffer.h"
#include "th/simulator/simulated_process.h"

namespace th {
namespace {

std::string Text(const Judge::GroupOperation& operation) {
  return absl::StrCat(operation.group, " generation ", operation.generation, " operation ",
                      operation.number.value);
}

}  // namespace

void Judge::Violated(std::string what) {
  if (violations_.size() >= kMaxViolationsKept) return;
  violations_.push_back(absl::StrCat("at ", queue_->Stamp(), ": ", what));
}

void Judge::Expect(bool holds, const char* rule, const std::string& who) {
  if (!holds) Violated(absl::StrCat(who, ": ", rule));
}

void Judge::Published(const VersionLabel& label, const std::string& content,
                      const std::string& truly) {
  contents_[label].insert(truly);
  if (truly != content) lied_about_.insert(label);
}

bool Judge::WasPublished(const VersionLabel& label, int shard, SegmentIndex segment,
                         SegmentSum value) const {
  if (WasForged(value)) return true;
  const auto contents = contents_.find(label);
  return contents != contents_.end() &&
         std::any_of(contents->second.begin(), contents->second.end(),
                     [&](const std::string& content) {
                       return ContentOf(content, shard, segment) == value;
                     });
}

void Judge::Moved(const std::string& who, const VersionInfo& version,
                  const SimulatedBuffer& buffer) {
  const std::set<std::string>& contents = contents_[version.label];
  const auto held = std::find_if(contents.begin(), contents.end(),
                                 [&](const std::string& content) { return buffer.Is(content); });
  if (held == contents.end()) {
    return Violated(absl::StrCat(who, " moved to ", version.ToString(),
                                 " and holds what nobody published as that"));
  }
  const auto name = version.attributes.find(kContentAttribute);
  const bool named = name != version.attributes.end() && !lied_about_.contains(version.label);
  const auto first =
      moved_to_.emplace(std::pair(version.sequence, buffer.shard()), named ? name->second : *held)
          .first;
  if (first->second == *held) return;
  Violated(absl::StrCat(who, " moved to ", version.ToString(), " and holds '", *held, "', not '",
                        first->second, "'"));
}

void Judge::Heard(HeardByOperation* heard, const SimulatedProcess* who,
                  const GroupOperation& operation, ReignId reign, const std::string& what) {
  if (lying_groups_.contains({operation.group, operation.generation})) return;
  Told& first = (*heard)[{operation, reign}];
  const bool anybody_knows =
      std::any_of(first.heard_by.begin(), first.heard_by.end(),
                  [](const SimulatedProcess* process) { return process->alive(); });
  if (!anybody_knows) first = {what, {}};
  first.heard_by.push_back(who);
  if (first.what == what) return;
  Violated(absl::StrCat("one transaction, two results: ", Text(operation), " is '", first.what,
                        "' for one rank and '", what, "' for another"));
}

void Judge::HeardResolved(const SimulatedProcess* who, const GroupOperation& operation,
                          VersionSequence version) {
  Heard(&resolved_, who, operation, ReignId(), absl::StrCat("resolved to #", version.ToString()));
}

void Judge::HeardFinished(const SimulatedProcess* who, const GroupOperation& operation,
                          ReignId reign, const OperationFinished& finished) {
  // The start of one rank that does not fit its group's operation is refused to that rank alone.
  if (absl::IsInvalidArgument(finished.status)) return;
  // What an unpublish took away is no part of its result: a new server may not know it.
  const bool unpublish = finished.kind == OperationKind::kUnpublish;
  const VersionSequence version = unpublish ? VersionSequence() : finished.version.sequence;
  // What failed has no other kind than the rank's own word: ranks that went on alone while there
  // was no server may have called it differently.
  const std::string kind = finished.status.ok() ? absl::StrCat("kind ", finished.kind, ", ") : "";
  const std::string what =
      absl::StrCat(kind, "outcome ", finished.outcome, ", #", version.ToString(), ", ",
                   absl::StatusCodeToString(finished.status.code()),
                   finished.offload_first ? ", offload first" : "");
  // Who waits for a copy has no result yet: a rank that has not heard of it may end the operation
  // without the server, which then tells all that this is its end.
  if (unpublish && finished.offload_first && finished.status.ok()) return;
  Heard(&results_, who, operation, reign, what);
  if (finished.status.ok()) Heard(&successes_, who, operation, ReignId(), what);
}

void Judge::Left(const SimulatedProcess* who) {
  for (HeardByOperation* heard : {&resolved_, &results_, &successes_}) {
    for (auto& [key, told] : *heard) std::erase(told.heard_by, who);
  }
}

void Judge::Unregistered(const SimulatedProcess* who, const std::string& buffer) {
  for (HeardByOperation* heard : {&resolved_, &results_, &successes_}) {
    for (auto& [key, told] : *heard) {
      if (key.first.buffer == buffer) std::erase(told.heard_by, who);
    }
  }
}

}  // namespace th
