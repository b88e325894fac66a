#include "th/simulator/observed_session.h"

#include <utility>
#include <variant>

namespace th {
namespace {

absl::string_view NameOfEnd(const OperationFinished& finished) {
  if (finished.must_offload) {
    return finished.status.ok() ? "OperationFinished, offload first"
                                : "OperationFinished, offload first, an error";
  }
  if (!finished.status.ok()) return "OperationFinished, an error";
  return finished.outcome == UpdateOutcome::kNotAvailable ? "OperationFinished, not available"
                                                          : "OperationFinished, OK";
}

}  // namespace

struct ObservedSession::MessageOf {
  ObservedSession& seen;

  Step operator()(const Joined& joined) const { return NewGeneration("", joined); }
  Step operator()(const GroupChanged& changed) const {
    return NewGeneration("GroupChanged", changed);
  }
  Step operator()(const OperationResolved& resolved) const {
    const VersionSequence version = resolved.version.sequence;
    const auto& before = seen.resolved_;
    const bool another =
        before.has_value() && before->first == resolved.key && before->second != version;
    if (resolved.key.buffer == seen.callers_) seen.resolved_ = {resolved.key, version};
    const bool unpublish = version == VersionSequence();
    return {another ? "OperationResolved, another" : "OperationResolved", resolved.key.buffer,
            unpublish ? OperationKind::kUnpublish : OperationKind::kUpdate};
  }
  Step operator()(const AssignSources& assigned) const {
    return {"AssignSources", assigned.key.buffer, OperationKind::kUpdate};
  }
  Step operator()(const RootKnown&) const { return {"RootKnown", seen.callers_}; }
  Step operator()(const OperationFinished& finished) const {
    return {NameOfEnd(finished), finished.key.buffer, finished.kind};
  }
  Step operator()(const PublicationRefused& refused) const {
    return {"PublicationRefused", refused.buffer};
  }
  template <typename Other>
  Step operator()(const Other&) const {
    return {"", seen.callers_};
  }

  // In another generation of the group a number names another operation.
  template <typename Message>
  Step NewGeneration(absl::string_view name, const Message& message) const {
    const GroupGeneration reported = message.group_generation;
    if (std::exchange(seen.generation_, reported) != reported) seen.resolved_.reset();
    return {name, seen.callers_};
  }
};

// Nothing: it is in no table and moves no contract.
struct ObservedSession::StepOf {
  ObservedSession& seen;
  using Answer = std::optional<Step>;

  Answer operator()(const event::Publish& verb) const { return Step{"verb Publish", verb.buffer}; }
  Answer operator()(const event::Unpublish& verb) const {
    return Step{"verb Unpublish", verb.buffer};
  }
  Answer operator()(const event::Update& verb) const { return Step{"verb Update", verb.buffer}; }
  Answer operator()(const event::Apply& verb) const { return Step{"verb Update", verb.buffer}; }
  Answer operator()(const event::Reset& verb) const { return Step{"verb Reset", verb.buffer}; }
  Answer operator()(const event::CancelUpdate& verb) const {
    return Step{"the caller cancels", verb.buffer, OperationKind::kUpdate};
  }

  Answer operator()(const event::ServerSaid& said) const {
    return std::visit(MessageOf{seen}, said.message);
  }
  Answer operator()(const event::AdmissionAsked& asked) const {
    seen.readers_[asked.transfer] = asked.buffer;
    return std::nullopt;
  }
  Answer operator()(const event::ReaderReleased& released) const {
    const auto reader = seen.readers_.extract(released.transfer);
    if (reader.empty()) return OfTheCallers();
    return Step{"the last reader lets go", reader.mapped()};
  }

  Answer operator()(const event::FirstWrite& write) const {
    seen.observer_->FirstWrite(write.buffer);
    return std::nullopt;
  }
  Answer operator()(const event::FillProgressed& e) const { return OfAFill("progress", e); }
  Answer operator()(const event::FillCompleted& e) const {
    return OfAFill("the fill is complete", e);
  }
  Answer operator()(const event::FillFailed& e) const { return OfAFill("the fill fails", e); }
  Answer operator()(const event::FillStopped& e) const {
    return OfAFill("the fill has stopped", e);
  }
  Answer operator()(const event::SourceFailed& e) const { return OfAFill("a source fails", e); }
  Answer operator()(const event::SourceSuspected& e) const {
    return OfAFill("a source is suspected", e);
  }

  Answer operator()(const event::Sealed& sealed) const { return Step{"sealed", sealed.buffer}; }
  Answer operator()(const event::OffloadAllocated& made) const { return Step{"", made.copy}; }
  Answer operator()(const event::Leave&) const { return OfTheCallers(); }
  Answer operator()(const event::StreamClosed&) const { return OfTheCallers(); }
  Answer operator()(const event::Tick&) const { return OfTheCallers(); }
  template <typename Other>
  Answer operator()(const Other&) const {
    return std::nullopt;
  }

  template <typename Event>
  static Step OfAFill(absl::string_view name, const Event& event) {
    return {name, event.buffer, OperationKind::kUpdate};
  }
  Step OfTheCallers() const { return {"", seen.callers_}; }
};

ObservedSession::ObservedSession(SessionOptions options, SessionLimits limits,
                                 TransitionCoverage* coverage)
    : WorkerSession(std::move(options), limits) {
  if (coverage != nullptr) observer_.emplace(this, coverage);
}

SessionAnswer ObservedSession::Handle(SessionEvent event, absl::Time now) {
  if (!observer_.has_value()) return WorkerSession::Handle(std::move(event), now);
  const std::optional<Step> step = std::visit(StepOf{*this}, event);
  const bool registers = std::holds_alternative<event::RegisterBuffer>(event);
  SessionObserver::Before before;
  if (step.has_value()) before = observer_->Look(*step);
  SessionAnswer answer = WorkerSession::Handle(std::move(event), now);
  if (!answer.status.ok()) return answer;  // a verb that is refused is no step
  if (step.has_value()) observer_->Saw(*step, before);
  if (registers) {
    callers_ = answer.buffer;
    observer_->Registered(callers_);
  }
  return answer;
}

absl::Status ObservedSession::CanRebind(BufferId buffer) {
  const absl::Status can = WorkerSession::CanRebind(buffer);
  if (!observer_.has_value() || !can.ok()) return can;
  const Step step{"verb Rebind", buffer};
  observer_->Saw(step, observer_->Look(step));
  return can;
}

std::optional<SessionOutput> ObservedSession::PollOutput() {
  auto output = WorkerSession::PollOutput();
  if (observer_.has_value()) observer_->Said(output.has_value() ? &*output : nullptr);
  return output;
}

}  // namespace th
