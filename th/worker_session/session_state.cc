#include "th/worker_session/session_state.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace th::session {
namespace {

template <typename B>
auto FindUpdateIn(B& buffer) -> decltype(&buffer.operations.front()) {
  for (auto& operation : buffer.operations) {
    if (operation.kind() == OperationKind::kUpdate && !operation.detached) return &operation;
  }
  return nullptr;
}

template <typename B>
auto FindAskedUnpublishIn(B& buffer) -> decltype(&buffer.operations.front()) {
  for (auto& operation : buffer.operations) {
    const bool unpublish = operation.kind() == OperationKind::kUnpublish;
    if (unpublish && !operation.detached && !HasBegunToDrain(operation)) return &operation;
  }
  return nullptr;
}

}  // namespace

std::string WithJoinAgain(std::string text) {
  if (!absl::StrContains(text, "join again")) absl::StrAppend(&text, "; join again");
  return text;
}

absl::Status State::CheckMembership() const {
  if (!ending()) return absl::OkStatus();
  const absl::string_view why = end_status.ok() ? "the worker left" : end_status.message();
  return absl::FailedPreconditionError(
      WithJoinAgain(absl::StrCat("this membership is over: ", why)));
}

Buffer* State::FindBuffer(BufferId id) {
  const auto found = buffers.find(id);
  return found == buffers.end() ? nullptr : &found->second;
}

const Buffer* State::FindBuffer(BufferId id) const {
  const auto found = buffers.find(id);
  return found == buffers.end() ? nullptr : &found->second;
}

HostCopy* State::FindHostCopy(BufferId id) {
  const auto found = host_copies.find(id);
  return found == host_copies.end() ? nullptr : &found->second;
}

const HostCopy* State::FindHostCopy(BufferId id) const {
  const auto found = host_copies.find(id);
  return found == host_copies.end() ? nullptr : &found->second;
}

void State::Send(WorkerMessage message, absl::Time now) {
  if (!joined()) return;
  link.last_sent = now;
  Emit(SendToServer{std::move(message)});
}

void State::ReportServing(Buffer& buffer) {
  const ServingChanged current{buffer.id, buffer.contract.state(), buffer.contract.version(),
                               buffer.contract.generation()};
  if (buffer.serving_reported == current) return;
  buffer.serving_reported = current;
  Emit(current);
}

ErrorText State::Error(ErrorCode code) const {
  ErrorText text;
  text.code = code;
  text.key = options.key;
  text.rank = options.name;
  return text;
}

bool WaitsForSeal(const Buffer& buffer, absl::Time now) {
  const MutabilityContract& contract = buffer.contract;
  return contract.state() == BufferState::kDraining && contract.readers_in_flight() == 0 &&
         buffer.publisher && buffer.read_since_publish && !buffer.root.has_value() &&
         buffer.layout->checksum() != ChecksumAlgorithm::kNone && now < buffer.seal_by;
}

Operation* FindOperation(Buffer& buffer, OperationNumber number) {
  for (Operation& operation : buffer.operations) {
    if (!operation.orphaned && operation.key.number == number) return &operation;
  }
  return nullptr;
}

Operation* FindUpdate(Buffer& buffer) { return FindUpdateIn(buffer); }
const Operation* FindUpdate(const Buffer& buffer) { return FindUpdateIn(buffer); }

Operation* FindAskedUnpublish(Buffer& buffer) { return FindAskedUnpublishIn(buffer); }
const Operation* FindAskedUnpublish(const Buffer& buffer) { return FindAskedUnpublishIn(buffer); }

CopyFirst* FindCopyFirst(Operation& operation) {
  switch (operation.kind()) {
    case OperationKind::kPublish:
      return nullptr;
    case OperationKind::kUnpublish:
      return &operation.unpublish().copy;
    case OperationKind::kUpdate:
      return &operation.update().copy;
  }
  return nullptr;
}

bool WaitsForCopy(const Operation& operation) {
  switch (operation.kind()) {
    case OperationKind::kPublish:
      return false;
    case OperationKind::kUnpublish:
      return operation.unpublish().phase == UnpublishPhase::kCopying ||
             IsOffloadingOffline(operation);
    case OperationKind::kUpdate:
      return operation.update().copy.waits();
  }
  return false;
}

bool IsOffloadingOffline(const Operation& operation) {
  const UnpublishOperation* unpublish = operation.if_unpublish();
  return unpublish != nullptr && unpublish->phase == UnpublishPhase::kCopyingAlone;
}

bool HasBegunToDrain(const Operation& operation) {
  const UnpublishOperation* unpublish = operation.if_unpublish();
  return unpublish != nullptr && unpublish->phase >= UnpublishPhase::kDraining;
}

bool HasDrained(const Operation& operation) {
  const UnpublishOperation* unpublish = operation.if_unpublish();
  return unpublish != nullptr && unpublish->phase == UnpublishPhase::kDrained;
}

bool HasPending(const Buffer& buffer) {
  return std::any_of(buffer.operations.begin(), buffer.operations.end(),
                     [](const Operation& operation) { return !operation.detached; });
}

const Buffer* OriginalOf(const State& state, BufferId copy) {
  const HostCopy* found = state.FindHostCopy(copy);
  const StagedCopy* staged = found == nullptr ? nullptr : found->staged();
  return staged == nullptr ? nullptr : state.FindBuffer(staged->original);
}

bool HasRoomForCopy(const State& state, const Buffer& buffer) {
  uint64_t bytes = buffer.layout->bytes();
  for (const auto& [id, copy] : state.host_copies) {
    const bool takes_memory = copy.kept() != nullptr && copy.memory != CopyMemory::kRefused;
    if (takes_memory) bytes += state.FindBuffer(id)->layout->bytes();
  }
  return bytes <= state.options.offload_limit_bytes;
}

void KeepReceipt(Buffer& buffer, VersionSequence version, const RootReceipt& receipt) {
  std::erase_if(buffer.receipts,
                [&](const auto& kept) { return kept.first != buffer.version.sequence; });
  buffer.receipts[version] = receipt;
}

std::optional<RootReceipt> ReceiptOf(const Buffer& buffer) {
  const auto found = buffer.receipts.find(buffer.version.sequence);
  return found == buffer.receipts.end() ? std::nullopt : std::optional(found->second);
}

void ForgetVersion(Buffer& buffer) {
  buffer.version = VersionInfo();
  buffer.publisher = false;
  buffer.group_committed = false;
  buffer.root.reset();
}

}  // namespace th::session
