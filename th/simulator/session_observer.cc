#include "th/simulator/session_observer.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "th/protocol/messages.h"

namespace th {
namespace {

// The description of a buffer that is gone: no table has a step of it.
constexpr absl::string_view kNoSuchBuffer = "no such buffer";

bool IsOfKind(absl::string_view operation, absl::string_view kind) {
  return absl::StartsWith(operation, kind) &&
         (operation.size() == kind.size() || operation[kind.size()] == ' ');
}

// The operation that an event is about: the one of its kind, else the newest. Empty: none.
absl::string_view OperationOf(const SessionObserver::Moment& moment,
                              std::optional<OperationKind> kind) {
  if (!kind.has_value()) return moment.operations.empty() ? "" : moment.operations.back();
  for (const absl::string_view operation : moment.operations) {
    if (IsOfKind(operation, OperationKindName(*kind))) return operation;
  }
  return "";
}

// A phase as the table names it.
absl::string_view PhaseOf(const SessionObserver::Moment& moment,
                          std::optional<OperationKind> kind) {
  const absl::string_view operation = OperationOf(moment, kind);
  if (operation.empty()) {
    if (moment.state == BufferState::kWritable) return "new";
    const bool read = moment.state == BufferState::kPublished && moment.read;
    return read ? "published and read" : BufferStateName(moment.state);
  }
  if (operation == "publish") return "publish asked";
  if (operation == "unpublish") {
    return moment.state == BufferState::kDraining ? "unpublish draining" : "unpublish drained";
  }
  if (operation == "update filling") {
    return moment.written ? "update filling, written" : "update filling, not written";
  }
  if (operation == "update stopping") {
    return moment.written ? "update stopping, written" : "update stopping, not written";
  }
  return operation;
}

bool Differ(const SessionObserver::Moment& a, const SessionObserver::Moment& b) {
  return a.operations != b.operations || a.state != b.state;
}

// As the session's table names what is put out; of what it names where nothing else changes.
struct OutputName {
  absl::string_view operator()(const StartFill&) const { return "*StartFill*"; }
  absl::string_view operator()(const SetSources&) const { return "*SetSources*"; }
  absl::string_view operator()(const SetRoot&) const { return "*SetRoot*"; }
  absl::string_view operator()(const SendToServer& sent) const {
    return std::visit(*this, sent.message);
  }
  absl::string_view operator()(const ReadyToFill&) const { return "ReadyToFill"; }
  absl::string_view operator()(const RegisterBuffer&) const { return "RegisterBuffer"; }
  absl::string_view operator()(const BufferReset&) const { return "BufferReset"; }
  absl::string_view operator()(const ShardSealed&) const { return "ShardSealed"; }
  absl::string_view operator()(const FillProgress&) const { return "FillProgress"; }
  absl::string_view operator()(const SourceFailed&) const { return "SourceFailed"; }
  absl::string_view operator()(const SourceSuspected&) const { return "SourceSuspected"; }
  absl::string_view operator()(const RankFailed&) const { return "RankFailed"; }
  template <typename Other>
  absl::string_view operator()(const Other&) const {
    return "";
  }
};

}  // namespace

void SessionObserver::Registered(BufferId buffer) {
  seen_.erase(callers_);
  callers_ = buffer;
  See(buffer);
}

void SessionObserver::See(BufferId buffer) {
  seen_[buffer] = {session_->buffer_state(buffer), session_->buffer_generation(buffer), false};
}

SessionObserver::Moment SessionObserver::MomentOf(BufferId buffer) const {
  Moment moment;
  moment.operations = session_->phases(buffer);
  if (!session_->has_buffer(buffer)) moment.operations.push_back(kNoSuchBuffer);
  moment.read = session_->is_read(buffer);
  moment.state = session_->buffer_state(buffer);
  const auto written = written_.find(buffer);
  moment.written = written != written_.end() && written->second;
  return moment;
}

SessionObserver::Before SessionObserver::Look(const Event& event) {
  Before before;
  if (!event.name.empty()) {
    before.of_buffer = MomentOf(event.buffer);
    const auto seen = seen_.find(event.buffer);
    if (seen != seen_.end()) seen->second.read = before.of_buffer.read;
  }
  if (seen_.size() > 1) before.of_callers = MomentOf(callers_);
  return before;
}

void SessionObserver::Saw(const Event& event, const Before& before) {
  if (!event.name.empty()) SawSession(event, before.of_buffer);
  if (seen_.size() > 1) SawCopyEnd(before.of_callers);
  SawContract(event);
}

// ---- the session's table

void SessionObserver::SawSession(const Event& event, const Moment& before) {
  const std::string name = absl::StrCat(PhaseOf(before, event.kind), " | ", event.name);
  const absl::string_view output = FirstOutputOfSessionStep(name);
  const bool nothing_to_see = output == "-";
  if (nothing_to_see || Differ(before, MomentOf(event.buffer))) {
    coverage_->Take(TransitionTable::kSession, name);
  } else if (!output.empty()) {
    waiting_.push_back(name);
  }
}

// A copy's own events end what waits for it.
void SessionObserver::SawCopyEnd(const Moment& before) {
  struct Copying {
    absl::string_view copying, asked;
  };
  static constexpr Copying kKinds[] = {{"unpublish copying", "unpublish asked"},
                                       {"update copying", "update asked"}};
  const auto has = [](const Moment& moment, absl::string_view operation) {
    return std::find(moment.operations.begin(), moment.operations.end(), operation) !=
           moment.operations.end();
  };
  for (const auto& [copying, asked] : kKinds) {
    if (!has(before, copying)) continue;
    const Moment after = MomentOf(callers_);
    if (has(after, copying)) continue;
    const bool asks_again = has(after, asked);
    const bool as_it_was = after.operations.empty() && after.state == BufferState::kPublished;
    if (!asks_again && !as_it_was) continue;
    coverage_->Take(
        TransitionTable::kSession,
        absl::StrCat(copying, asks_again ? " | the copy is held" : " | the copy fails"));
  }
}

void SessionObserver::Said(const SessionOutput* output) {
  if (output == nullptr) return waiting_.clear();
  if (const auto* asked = std::get_if<AllocateOffload>(output)) See(asked->copy);
  if (const auto* freed = std::get_if<FreeOffload>(output)) seen_.erase(freed->copy);
  if (waiting_.empty()) return;
  const absl::string_view said = std::visit(OutputName{}, *output);
  if (said.empty()) return;
  std::erase_if(waiting_, [&](const std::string& name) {
    if (FirstOutputOfSessionStep(name) != said) return false;
    coverage_->Take(TransitionTable::kSession, name);
    return true;
  });
}

// ---- the contract's table

void SessionObserver::TakeContract(BufferState from, BufferEvent event, BufferCondition condition) {
  const BufferTransition* const step = FindBufferTransition(from, event, condition);
  if (step == nullptr) return;
  coverage_->Take(TransitionTable::kContract,
                  absl::StrCat(BufferStateName(from), " | ", BufferEventName(event), " | ",
                               BufferConditionName(step->condition)));
}

void SessionObserver::SawContract(const Event& event) {
  for (auto& [buffer, seen] : seen_) {
    const Seen now{session_->buffer_state(buffer), session_->buffer_generation(buffer), false};
    if (now.generation == BufferGeneration()) continue;  // it is unregistered; FreeOffload follows
    const bool moved = now.state != seen.state || now.generation != seen.generation;
    if (moved) {
      FollowContract(event, buffer, seen, now);
      if (now.state == BufferState::kFilling) written_[buffer] = false;
    } else if (event.name == "verb Reset" && event.buffer == buffer) {
      TakeContract(seen.state, BufferEvent::kReset, BufferCondition::kAlways);
    }
    seen = now;
  }
}

void SessionObserver::FollowContract(const Event& event, BufferId buffer, const Seen& from,
                                     const Seen& to) {
  using State = BufferState;
  using When = BufferCondition;
  const bool through_writable = to.generation.value - from.generation.value > 1;
  switch (from.state) {
    case State::kWritable:
      return TakeContract(
          State::kWritable,
          to.state == State::kFilling ? BufferEvent::kBeginUpdate : BufferEvent::kPublish,
          When::kAlways);
    case State::kPublished: {
      const bool for_update =
          to.state == State::kFilling
              ? !through_writable
              : OperationOf(MomentOf(buffer), OperationKind::kUpdate) == "update draining";
      TakeContract(State::kPublished,
                   for_update ? BufferEvent::kBeginUpdate : BufferEvent::kUnpublish, When::kAlways);
      if (to.state == State::kDraining) return;
      return FollowContract(event, buffer, {State::kDraining, from.generation, false}, to);
    }
    case State::kDraining: {
      const bool for_update = to.state == State::kFilling && !through_writable;
      TakeContract(State::kDraining, BufferEvent::kDrained,
                   for_update ? When::kForUpdate : When::kForUnpublish);
      if (through_writable && to.state == State::kFilling) {
        TakeContract(State::kWritable, BufferEvent::kBeginUpdate, When::kAlways);
      }
      return;
    }
    case State::kFilling:
      return FollowEndOfFill(buffer, from, to);
    case State::kUndefined:
      return FollowUndefined(event, from, to);
  }
}

void SessionObserver::FollowEndOfFill(BufferId buffer, const Seen& from, const Seen& to) {
  using When = BufferCondition;
  const auto written = written_.find(buffer);
  const bool wrote = written != written_.end() && written->second;
  switch (to.state) {
    case BufferState::kPublished:
      if (to.generation == from.generation) {
        return TakeContract(from.state, BufferEvent::kFilled, When::kAlways);
      }
      return TakeContract(from.state, BufferEvent::kFillFailed, When::kUntouchedPublished);
    case BufferState::kUndefined:
      return TakeContract(from.state, BufferEvent::kFillFailed,
                          wrote ? When::kWrote : When::kUntouchedUndefined);
    case BufferState::kWritable:
      return TakeContract(from.state, BufferEvent::kFillFailed, When::kUntouchedWritable);
    case BufferState::kDraining:
    case BufferState::kFilling:
      return;  // several steps at once; each is seen by itself elsewhere
  }
}

void SessionObserver::FollowUndefined(const Event& event, const Seen& from, const Seen& to) {
  using When = BufferCondition;
  const bool reset = event.name == "verb Reset";
  switch (to.state) {
    case BufferState::kFilling:
      return TakeContract(from.state, BufferEvent::kBeginUpdate,
                          from.read ? When::kReadersOfSameVersion : When::kNoReader);
    case BufferState::kDraining:
      return TakeContract(from.state, reset ? BufferEvent::kReset : BufferEvent::kBeginUpdate,
                          When::kReaders);
    case BufferState::kWritable:
      return TakeContract(from.state, BufferEvent::kReset, When::kNoReader);
    case BufferState::kPublished:
    case BufferState::kUndefined:
      return;
  }
}

}  // namespace th
