#include "th/simulator/invariant_checker.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "th/protocol/answer.h"
#include "th/simulator/event_queue.h"
#include "th/simulator/simulated_buffer.h"
#include "th/simulator/simulated_process.h"

namespace th {
namespace {

std::string Text(const InvariantChecker::GroupOperation& operation) {
  return absl::StrCat(std::string(operation.group), " generation ", operation.generation,
                      " operation ", operation.number.value);
}

}  // namespace

std::string InvariantChecker::Word::ToString() const {
  if (resolved) return absl::StrCat("resolved to #", version.ToString());
  return absl::StrCat(kind.has_value() ? absl::StrCat("kind ", *kind, ", ") : "", "outcome ",
                      outcome, ", #", version.ToString(), ", ", absl::StatusCodeToString(code),
                      must_offload ? ", offload first" : "");
}

void InvariantChecker::Violated(std::string what) {
  if (violations_.size() >= kMaxViolationsKept) return;
  violations_.push_back(absl::StrCat("at ", queue_->Stamp(), ": ", what));
}

void InvariantChecker::Expect(bool holds, const char* rule, const std::string& who) {
  if (!holds) Violated(absl::StrCat(who, ": ", rule));
}

void InvariantChecker::Published(const VersionLabel& label, const std::string& content,
                                 const std::string& truly) {
  contents_[label].try_emplace(truly);
  if (truly != content) lied_about_.insert(label);
}

const std::vector<SegmentChecksum>& InvariantChecker::SegmentsOf(const std::string& content,
                                                                 int shard, Segments* known) const {
  const auto [found, made] = known->try_emplace(shard);
  if (made) {
    for (SegmentIndex i; i.value < segment_count_; i = i.Next()) {
      found->second.push_back(ContentOf(content, shard, i));
    }
  }
  return found->second;
}

void InvariantChecker::NoteLabel(const VersionInfo& version) {
  if (version.label.empty()) return;
  std::vector<VersionLabel>& labels = labels_[version.sequence];
  if (std::find(labels.begin(), labels.end(), version.label) == labels.end()) {
    labels.push_back(version.label);
  }
}

absl::Span<const VersionLabel> InvariantChecker::LabelsOf(const VersionInfo& version) const {
  if (!version.label.empty()) return absl::MakeConstSpan(&version.label, 1);
  const auto labels = labels_.find(version.sequence);
  return labels == labels_.end() ? absl::Span<const VersionLabel>() : labels->second;
}

bool InvariantChecker::WasPublished(const VersionInfo& version, int shard, SegmentIndex segment,
                                    SegmentChecksum value) {
  if (WasForged(version.sequence, shard, value)) return true;
  for (const VersionLabel& label : LabelsOf(version)) {
    for (auto& [name, segments] : contents_[label]) {
      if (SegmentsOf(name, shard, &segments)[segment.value] == value) return true;
    }
  }
  return false;
}

const std::string* InvariantChecker::FindContent(const VersionInfo& version,
                                                 const SimulatedBuffer& buffer) {
  for (const VersionLabel& label : LabelsOf(version)) {
    for (auto& [name, segments] : contents_[label]) {
      if (SegmentsOf(name, buffer.shard(), &segments) == buffer.values()) return &name;
    }
  }
  return nullptr;
}

bool InvariantChecker::IsLiedAbout(const VersionInfo& version) const {
  const absl::Span<const VersionLabel> labels = LabelsOf(version);
  return std::any_of(labels.begin(), labels.end(),
                     [&](const VersionLabel& label) { return lied_about_.contains(label); });
}

bool InvariantChecker::WasForged(VersionSequence version, int shard, SegmentChecksum value) const {
  const auto forged = forged_.find({version, shard});
  return forged != forged_.end() && forged->second.contains(value);
}

bool InvariantChecker::IsDisputed(const VersionInfo& version, int shard) const {
  const absl::Span<const VersionLabel> labels = LabelsOf(version);
  const ShardOfVersion place{version.sequence, shard};
  return forged_.contains(place) || false_roots_.contains(place) ||
         std::any_of(labels.begin(), labels.end(), [&](const VersionLabel& label) {
           const auto contents = contents_.find(label);
           return contents != contents_.end() && contents->second.size() > 1;
         });
}

void InvariantChecker::Moved(const std::string& who, const VersionInfo& version,
                             const SimulatedBuffer& buffer, uint64_t state) {
  const std::string* const held = FindContent(version, buffer);
  if (held == nullptr) {
    return Violated(absl::StrCat(who, " moved to ", version.ToString(),
                                 " and holds what nobody published as that"));
  }
  const auto name = version.attributes.find(kContentAttribute);
  const bool named = name != version.attributes.end() && !IsLiedAbout(version);
  const ShardOfState shard{state, version.sequence, buffer.shard()};
  const auto first = moved_to_.emplace(shard, named ? name->second : *held).first;
  if (first->second == *held) return;
  Violated(absl::StrCat(who, " moved to ", version.ToString(), " and holds '", *held, "', not '",
                        first->second, "'"));
}

void InvariantChecker::Heard(HeardByOperation* heard, const SimulatedProcess* who,
                             const GroupOperation& operation, EpochId epoch_id, uint64_t state,
                             const Word& word) {
  const bool lies = !lying_groups_.empty() &&
                    lying_groups_.contains({std::string(operation.group), operation.generation});
  if (lies) return;
  Reported& first = (*heard)[{operation, epoch_id}];
  const bool anybody_knows =
      std::any_of(first.heard_by.begin(), first.heard_by.end(),
                  [](const SimulatedProcess* process) { return process->alive(); });
  if (!anybody_knows) first = {word, {}, state};
  first.heard_by.push_back(who);
  if (first.word == word) return;
  // A server that has lost its state takes the word of a rank that ended an unpublish alone.
  const Word& later = first.state < state ? word : first.word;
  if (first.state != state && later.kind == OperationKind::kUnpublish) {
    if (first.state < state) {
      first.word = word;
      first.state = state;
    }
    return;
  }
  const bool failed =
      first.word.code != absl::StatusCode::kOk && word.code != absl::StatusCode::kOk;
  if (failed && word.forgotten) return;
  if (failed && first.word.forgotten) {
    first.word = word;
    return;
  }
  Violated(absl::StrCat("one transaction, two results: ", Text(operation), " is '",
                        first.word.ToString(), "' for one rank and '", word.ToString(),
                        "' for another"));
}

void InvariantChecker::HeardResolved(const SimulatedProcess* who, const GroupOperation& operation,
                                     VersionSequence version) {
  Heard(&resolved_, who, operation, EpochId(), /*state=*/0, {.resolved = true, .version = version});
}

void InvariantChecker::HeardFinished(const SimulatedProcess* who, const GroupOperation& operation,
                                     EpochId epoch_id, uint64_t state,
                                     const OperationFinished& finished) {
  NoteLabel(finished.version);
  // The start of one rank that does not fit its group's operation is refused to that rank alone.
  if (absl::IsInvalidArgument(finished.status)) return;
  // So is a call that comes late, and that the group's result cannot answer.
  if (SaysNothingDoneForRank(finished.status)) return;
  const bool unpublish = finished.kind == OperationKind::kUnpublish;
  // An unpublish that waits for a copy has no result yet: a rank that has not heard of it may end
  // the operation without the server, which then tells all that this is its end.
  if (unpublish && finished.must_offload && finished.status.ok()) return;
  Word word{.outcome = finished.outcome,
            .version = finished.version.sequence,
            .code = finished.status.code(),
            .must_offload = finished.must_offload,
            .forgotten = SaysForgotten(finished.status)};
  // The version that an unpublish took away is no part of its result: a new server may not know it.
  if (unpublish) word.version = VersionSequence();
  // A failed operation has no other kind than the rank's own word: ranks that went on alone while
  // there was no server may have called it differently.
  if (finished.status.ok()) word.kind = finished.kind;
  Heard(&results_, who, operation, epoch_id, state, word);
  if (finished.status.ok()) Heard(&successes_, who, operation, EpochId(), state, word);
}

void InvariantChecker::Left(const SimulatedProcess* who) {
  for (HeardByOperation* heard : {&resolved_, &results_, &successes_}) {
    for (auto& [key, reported] : *heard) std::erase(reported.heard_by, who);
  }
}

void InvariantChecker::Unregistered(const SimulatedProcess* who, const std::string& buffer) {
  for (HeardByOperation* heard : {&resolved_, &results_, &successes_}) {
    for (auto& [key, reported] : *heard) {
      if (key.first.buffer == buffer) std::erase(reported.heard_by, who);
    }
  }
}

}  // namespace th
