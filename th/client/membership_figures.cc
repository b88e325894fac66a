#include "th/client/membership_figures.h"

#include "absl/time/time.h"

namespace th {
namespace {

std::string OutcomeOf(const OperationDone& done) {
  if (!done.status.ok()) return "failed";
  switch (done.outcome) {
    case UpdateOutcome::kMoved:
      return "moved";
    case UpdateOutcome::kAlreadyThere:
      return "already_there";
    case UpdateOutcome::kNotAvailable:
      return "not_available";
    case UpdateOutcome::kNone:
      break;
  }
  return "done";
}

absl::Duration SecondsOf(const OperationDone& done) {
  return done.resolve + done.queue + done.transfer + done.verify + done.apply;
}

void AddStall(Verb verb, const OperationDone& done, StallByPhase& stall) {
  const auto add = [&](StallPhase phase, absl::Duration waited) {
    stall[static_cast<size_t>(phase)] += waited;
  };
  if (verb == Verb::kStage || verb == Verb::kPublish) return;
  if (!done.status.ok()) return add(StallPhase::kFailed, SecondsOf(done));
  if (verb == Verb::kUnpublish) return add(StallPhase::kDrain, SecondsOf(done));
  add(StallPhase::kResolve, done.resolve);
  add(StallPhase::kQueue, done.queue);
  add(StallPhase::kTransfer, done.transfer);
  add(StallPhase::kVerify, done.verify);
  add(StallPhase::kApply, done.apply);
}

}  // namespace

absl::string_view VerbName(Verb verb) {
  static constexpr absl::string_view kNames[] = {"publish", "unpublish", "update", "stage",
                                                 "receive"};
  return kNames[static_cast<size_t>(verb)];
}

void MembershipFigures::Count(Verb verb, const OperationDone& done, const FillCost& cost,
                              uint64_t corrupt) {
  ++ended[{verb, OutcomeOf(done)}];
  AddStall(verb, done, stall);
  const bool moved = done.status.ok() && done.outcome == UpdateOutcome::kMoved;
  if (moved && verb != Verb::kStage) update_seconds.Record(SecondsOf(done));
  AddFillCost(cost, received);
  corrupt_segments += corrupt;
}

}  // namespace th
