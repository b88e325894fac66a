#include "th/mutability_contract/mutability_contract.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/mutation/mutation.h"

namespace th {
namespace {

// The text that a refusal adds for the state: what to do about it.
absl::string_view WayOut(BufferState state) {
  switch (state) {
    case BufferState::kWritable:
      return "nothing is published";
    case BufferState::kPublished:
      return "unpublish it first";
    case BufferState::kDraining:
      return "readers are still letting go of it; wait for the verb in progress";
    case BufferState::kFilling:
      return "an update is filling it; wait for its end";
    case BufferState::kUndefined:
      return "an update failed after its first write; update it again, or reset it";
  }
  return "";
}

bool ServesReaders(BufferState state) {
  return state == BufferState::kPublished || state == BufferState::kFilling ||
         state == BufferState::kUndefined ||
         TH_MUTATE(kAdmitWhileDraining, false, state == BufferState::kDraining);
}

}  // namespace

std::string MutabilityContract::Describe() const {
  std::string text(BufferStateName(state_));
  if (version_ != VersionSequence()) absl::StrAppend(&text, " ", version_.ToString());
  absl::StrAppend(&text, ", generation ", generation_.value);
  if (!readers_.empty()) absl::StrAppend(&text, ", ", readers_.size(), " readers");
  return text;
}

absl::Status MutabilityContract::Publish(VersionSequence version) {
  const auto* step = FindBufferTransition(state_, BufferEvent::kPublish, BufferCondition::kAlways);
  if (step == nullptr) return Refuse(BufferEvent::kPublish);
  version_ = version;
  Enter(*step);
  return absl::OkStatus();
}

absl::Status MutabilityContract::SetPublishedVersion(VersionSequence version) {
  if (state_ != BufferState::kPublished) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot name a version of a buffer that is ", BufferStateName(state_)));
  }
  if (version_ == version) return absl::OkStatus();
  if (version_ != VersionSequence()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the buffer is published as ", version_.ToString(), " already, not ", version.ToString()));
  }
  version_ = version;
  return absl::OkStatus();
}

absl::Status MutabilityContract::Unpublish(absl::Time now, absl::Duration drain_timeout) {
  const auto* step =
      FindBufferTransition(state_, BufferEvent::kUnpublish, BufferCondition::kAlways);
  if (step == nullptr) return Refuse(BufferEvent::kUnpublish);
  Enter(*step);
  BeginDrain(now + drain_timeout, AfterDrain::kWritable);
  return absl::OkStatus();
}

absl::Status MutabilityContract::CanUnpublish() const {
  const auto* step =
      FindBufferTransition(state_, BufferEvent::kUnpublish, BufferCondition::kAlways);
  return step == nullptr ? Refuse(BufferEvent::kUnpublish) : absl::OkStatus();
}

absl::Status MutabilityContract::BeginUpdate(VersionSequence version, absl::Time now,
                                             absl::Duration drain_timeout) {
  const BufferCondition condition =
      !readers_.empty() && version_ == version && state_ == BufferState::kUndefined
          ? BufferCondition::kReadersOfSameVersion
          : ReadersCondition();
  const auto* step = FindBufferTransition(state_, BufferEvent::kBeginUpdate, condition);
  if (step == nullptr) return Refuse(BufferEvent::kBeginUpdate);
  before_fill_ = {state_, version_};
  Enter(*step);
  if (state_ == BufferState::kFilling) {
    BeginFill(version);
  } else {
    next_version_ = version;
    BeginDrain(now + drain_timeout, AfterDrain::kFill);
  }
  return absl::OkStatus();
}

absl::Status MutabilityContract::FirstWrite() {
  if (state_ != BufferState::kFilling) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot write into a buffer that is ", BufferStateName(state_)));
  }
  wrote_ = true;
  return absl::OkStatus();
}

absl::Status MutabilityContract::FillComplete() {
  const auto* step = FindBufferTransition(state_, BufferEvent::kFilled, BufferCondition::kAlways);
  if (step == nullptr) return Refuse(BufferEvent::kFilled);
  Enter(*step);
  return absl::OkStatus();
}

absl::Status MutabilityContract::FillFailed() {
  const auto* step = FindBufferTransition(state_, BufferEvent::kFillFailed, FillFailedCondition());
  if (step == nullptr) return Refuse(BufferEvent::kFillFailed);
  Enter(*step);
  if (!wrote_) version_ = before_fill_.version;
  return absl::OkStatus();
}

absl::Status MutabilityContract::Reset() {
  const auto* step = FindBufferTransition(state_, BufferEvent::kReset, ReadersCondition());
  if (step == nullptr) return Refuse(BufferEvent::kReset);
  Enter(*step);
  if (state_ == BufferState::kDraining) {
    BeginDrain(absl::InfinitePast(), AfterDrain::kWritable);
  } else {
    version_ = VersionSequence();
  }
  return absl::OkStatus();
}

absl::Status MutabilityContract::CanRebind() const {
  const bool owned = state_ == BufferState::kWritable || state_ == BufferState::kUndefined;
  if (owned && readers_.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cannot rebind a buffer that is ", BufferStateName(state_), ", with ",
                   readers_.size(), " readers: ", owned ? "reset it first" : WayOut(state_)));
}

absl::Status MutabilityContract::Admit(TransferId transfer, VersionSequence version,
                                       BufferGeneration generation, absl::Time now) {
  if (!ServesReaders(state_) || version_ == VersionSequence()) {
    return absl::UnavailableError(absl::StrCat("the buffer serves nothing now: ", Describe()));
  }
  if (version != version_) {
    return absl::AbortedError(
        absl::StrCat("the buffer holds ", version_.ToString(), ", not ", version.ToString()));
  }
  if (generation != generation_) {
    return absl::AbortedError(absl::StrCat("the buffer is in generation ", generation_.value,
                                           ", not ", generation.value));
  }
  if (readers_.size() >= kMaxReadersInFlight) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the buffer serves ", readers_.size(), " readers already"));
  }
  if (!readers_.emplace(transfer, Reader{.version = version, .last_bytes = now}).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("transfer ", transfer.value, " is admitted already"));
  }
  return absl::OkStatus();
}

void MutabilityContract::ReaderTookBytes(TransferId transfer, absl::Time now) {
  const auto reader = readers_.find(transfer);
  if (reader != readers_.end()) reader->second.last_bytes = now;
}

void MutabilityContract::Release(TransferId transfer) { readers_.erase(transfer); }

MutabilityContract::DrainStep MutabilityContract::Advance(absl::Time now) {
  DrainStep step;
  for (auto& [transfer, reader] : readers_) {
    if (reader.being_cut || !CutsNow(reader, now)) continue;
    reader.being_cut = true;
    step.to_cut.push_back(transfer);
  }
  if (state_ != BufferState::kDraining) return step;
  cut_ += static_cast<uint32_t>(step.to_cut.size());
  step.cut = cut_;
  if (!TH_MUTATE(kDrainWithoutWaiting, readers_.empty(), true)) return step;
  step.drained = true;
  const bool fill = after_drain_ == AfterDrain::kFill;
  Enter(*FindBufferTransition(state_, BufferEvent::kDrained,
                              fill ? BufferCondition::kForUpdate : BufferCondition::kForUnpublish));
  if (fill) {
    BeginFill(next_version_);
  } else {
    version_ = VersionSequence();
  }
  return step;
}

bool MutabilityContract::IsOfAbandonedFill(const Reader& reader) const {
  return TH_MUTATE(kKeepReadersOfAnAbandonedFill, reader.version != version_, false);
}

bool MutabilityContract::CutsNow(const Reader& reader, absl::Time now) const {
  if (IsOfAbandonedFill(reader)) return true;
  const bool silent = now - reader.last_bytes >= kSilentReader;
  return state_ == BufferState::kDraining && (silent || now >= drain_deadline_);
}

absl::Time MutabilityContract::NextDeadline() const {
  const bool draining = state_ == BufferState::kDraining;
  if (draining && readers_.empty()) return absl::InfinitePast();
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [transfer, reader] : readers_) {
    if (reader.being_cut) continue;
    if (IsOfAbandonedFill(reader)) return absl::InfinitePast();
    if (draining) next = std::min({next, drain_deadline_, reader.last_bytes + kSilentReader});
  }
  return next;
}

absl::Status MutabilityContract::Refuse(BufferEvent event) const {
  return absl::FailedPreconditionError(absl::StrCat(
      BufferEventName(event), " is refused: the buffer is ", Describe(), "; ", WayOut(state_)));
}

void MutabilityContract::Enter(const BufferTransition& transition) {
  state_ = transition.to;
  if (transition.new_generation) generation_ = generation_.Next();
}

void MutabilityContract::BeginDrain(absl::Time deadline, AfterDrain after) {
  drain_deadline_ = deadline;
  after_drain_ = after;
  cut_ = 0;
}

void MutabilityContract::BeginFill(VersionSequence version) {
  version_ = version;
  wrote_ = false;
}

BufferCondition MutabilityContract::ReadersCondition() const {
  return readers_.empty() ? BufferCondition::kNoReader : BufferCondition::kReaders;
}

BufferCondition MutabilityContract::FillFailedCondition() const {
  if (wrote_) return BufferCondition::kWrote;
  switch (before_fill_.state) {
    case BufferState::kPublished:
      return BufferCondition::kUntouchedPublished;
    case BufferState::kUndefined:
      return BufferCondition::kUntouchedUndefined;
    default:
      return BufferCondition::kUntouchedWritable;
  }
}

}  // namespace th
