#include "th/simulator/replica_observer.h"

#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace th {
namespace {

// The buffer that a message of one operation or buffer is about.
struct BufferOf {
  BufferId operator()(const StartOperation& message) const { return message.key.buffer; }
  BufferId operator()(const ReadyToFill& message) const { return message.key.buffer; }
  BufferId operator()(const RankDone& message) const { return message.key.buffer; }
  BufferId operator()(const RankFailed& message) const { return message.key.buffer; }
  BufferId operator()(const ShardSealed& message) const { return message.buffer; }
  BufferId operator()(const BufferReset& message) const { return message.buffer; }
  template <typename Other>
  BufferId operator()(const Other&) const {
    return BufferId();
  }
};

}  // namespace

void ReplicaObserver::Take(absl::string_view event, absl::string_view phase) {
  if (event.empty() || phase.empty()) return;
  coverage_->Take(TransitionTable::kReplica, absl::StrCat(event, " | ", phase));
}

bool ReplicaObserver::IsLast(std::map<Operation, std::set<uint32_t>>* said, const Rank& rank,
                             OperationNumber number) {
  const std::string& group = rank.name->group;
  std::set<uint32_t>& ranks = (*said)[{group, generations_[group], number}];
  ranks.insert(rank.name->rank.value);
  return ranks.size() == rank.ranks;
}

// Empty: the table has no such event.
absl::string_view ReplicaObserver::EventOf(const Rank& rank, const WorkerMessage& message) {
  if (std::holds_alternative<Leave>(message)) return "a rank leaves";
  if (std::visit(BufferOf{}, message) != rank.buffer) return "";
  if (const auto* start = std::get_if<StartOperation>(&message)) {
    generations_[rank.name->group] = start->group_generation.value;
    if (start->kind == OperationKind::kUpdate) return "update by one rank";
    if (start->kind == OperationKind::kUnpublish) return "unpublish by one rank";
    const bool last = IsLast(&asked_, rank, start->key.number);
    return last ? "publish by every rank" : "publish by one rank";
  }
  if (const auto* done = std::get_if<RankDone>(&message)) {
    return IsLast(&done_, rank, done->key.number) ? "done by every rank" : "done by one rank";
  }
  if (std::holds_alternative<ReadyToFill>(message)) return "ready to fill";
  if (std::holds_alternative<RankFailed>(message)) return "a rank fails";
  if (std::holds_alternative<ShardSealed>(message)) return "a rank seals";
  return "a rank resets";
}

RegistryEffects ReplicaObserver::Watch(const Registry& registry, absl::FunctionRef<Rank()> who,
                                       const WorkerMessage& message, Run run) {
  if (coverage_ == nullptr) return run();
  const Rank rank = who();
  one_of_.try_emplace(rank.name->group, rank);
  const absl::string_view phase =
      registry.ReplicaPhaseName(*rank.model, rank.name->group, rank.buffer_name);
  const uint64_t replaced = registry.counters().workers_replaced;
  RegistryEffects effects = run();
  if (registry.counters().workers_replaced > replaced) {
    Take("a rank is replaced", phase);
  } else {
    Take(EventOf(rank, message), phase);
  }
  return effects;
}

RegistryEffects ReplicaObserver::WatchTick(const Registry& registry, GroupOf group_of, Run run) {
  if (coverage_ == nullptr) return run();
  std::map<std::string, absl::string_view> phases;
  for (const auto& [group, rank] : one_of_) {
    phases[group] = registry.ReplicaPhaseName(*rank.model, group, rank.buffer_name);
  }
  RegistryEffects effects = run();
  for (const OutgoingMessage& out : effects.messages) {
    const auto* finished = std::get_if<OperationFinished>(&out.message);
    if (finished == nullptr || !absl::IsDeadlineExceeded(finished->status)) continue;
    const std::string group = group_of(out.connection);
    const auto rank = one_of_.find(group);
    const bool of_callers = rank != one_of_.end() && rank->second.buffer == finished->key.buffer;
    if (of_callers) Take("the operation's time is over", phases[group]);
  }
  return effects;
}

}  // namespace th
