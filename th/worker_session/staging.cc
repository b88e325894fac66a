#include "th/worker_session/staging.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/worker_session/buffers.h"
#include "th/worker_session/operation.h"
#include "th/worker_session/operations.h"
#include "th/worker_session/update.h"

namespace th::session {
namespace {

using CopyEntry = std::pair<const BufferId, HostCopy>;

// The staged copy of `original`. Null: nothing was ever staged for it.
template <typename Copies>
auto FindCopyIn(Copies& copies, BufferId original) -> decltype(&*copies.begin()) {
  for (auto& entry : copies) {
    const StagedCopy* staged = entry.second.staged();
    if (staged != nullptr && staged->original == original) return &entry;
  }
  return nullptr;
}

CopyEntry* FindCopy(State& state, BufferId original) {
  return FindCopyIn(state.host_copies, original);
}

// Held, and not to be released. Null: none.
const HostCopy* FindHeld(const State& state, BufferId original) {
  const CopyEntry* copy = FindCopyIn(state.host_copies, original);
  const bool held = copy != nullptr && copy->second.phase == CopyPhase::kHeld;
  return held && !copy->second.release_wanted ? &copy->second : nullptr;
}

absl::Status CanStage(State& state, const Buffer& original, const UpdateRequest& request) {
  TH_RETURN_IF_ERROR(CanBegin(state, original, request.timeout));
  if (FindUpdate(original) != nullptr) {
    return absl::FailedPreconditionError("an update of the buffer is in progress");
  }
  const CopyEntry* copy = FindCopy(state, original.id);
  if (copy != nullptr && copy->second.phase == CopyPhase::kFilling) {
    return absl::FailedPreconditionError("a version is being staged already");
  }
  return absl::OkStatus();
}

absl::StatusOr<BufferId> EnsureCopy(State& state, const Buffer& original, absl::Time now) {
  if (const CopyEntry* copy = FindCopy(state, original.id)) return copy->first;
  return AddCopyBuffer(state, original, BufferRole::kStaged, absl::StrCat(original.name, ".staged"),
                       {.part = StagedCopy{.original = original.id}}, now);
}

// Why there is nothing to apply.
absl::Status NothingHeld(State& state, BufferId original) {
  const CopyEntry* copy = FindCopy(state, original);
  if (copy != nullptr && !copy->second.staged()->lost.ok()) return copy->second.staged()->lost;
  return absl::FailedPreconditionError("nothing is staged; stage a version first");
}

}  // namespace

absl::StatusOr<BufferId> BeginStage(State& state, Buffer& original, CallId call,
                                    UpdateRequest request, absl::Time now) {
  const absl::Status can = CanStage(state, original, request);
  if (!can.ok()) return RefuseVerb(state, ErrorCode::kUpdateRefused, can);
  const absl::StatusOr<BufferId> copy = EnsureCopy(state, original, now);
  if (!copy.ok()) return RefuseVerb(state, ErrorCode::kUpdateRefused, copy.status());
  request.on_retention = OnRetention::kDrop;  // a staged copy keeps nothing that is retained
  Buffer& buffer = *state.FindBuffer(*copy);
  TH_RETURN_IF_ERROR(BeginUpdate(state, buffer, call, std::move(request), now));
  HostCopy& filling = state.host_copies.at(*copy);
  filling.phase = CopyPhase::kFilling;
  filling.release_wanted = false;
  filling.staged()->lost = absl::OkStatus();
  Pump(state, buffer, now);
  return *copy;
}

absl::Status BeginApply(State& state, Buffer& original, CallId call, UpdateRequest request,
                        absl::Time now) {
  const HostCopy* held = FindHeld(state, original.id);
  if (held == nullptr) {
    return RefuseVerb(state, ErrorCode::kUpdateRefused, NothingHeld(state, original.id));
  }
  request.selector = held->version.sequence;
  TH_RETURN_IF_ERROR(BeginUpdate(state, original, call, std::move(request), now));
  FindUpdate(original)->update().applies = held->version;
  return absl::OkStatus();
}

void DiscardStaged(State& state, BufferId original, absl::Time now) {
  CopyEntry* entry = FindCopy(state, original);
  if (entry == nullptr) return;
  entry->second.release_wanted = true;
  Buffer& buffer = *state.FindBuffer(entry->first);
  if (Operation* update = FindUpdate(buffer)) {
    Conclude(*update, {.status = absl::CancelledError("what is staged was discarded")});
    Pump(state, buffer, now);
  }
}

void CancelUpdate(State& state, BufferId original, absl::Time now) {
  const CopyEntry* copy = FindCopy(state, original);
  const bool stages = copy != nullptr && copy->second.phase == CopyPhase::kFilling;
  if (stages) DiscardStaged(state, original, now);
  Buffer* buffer = state.FindBuffer(original);
  Operation* update = buffer == nullptr ? nullptr : FindUpdate(*buffer);
  if (update == nullptr) return;
  CopyFirst& first = update->update().copy;
  if (first.waits()) {
    first.cancelled = true;
    return;
  }
  Conclude(*update, {.status = CancelledByCaller()});
  Pump(state, *buffer, now);
}

VersionInfo StagedVersion(const State& state, BufferId original) {
  const HostCopy* held = FindHeld(state, original);
  return held == nullptr ? VersionInfo() : held->version;
}

}  // namespace th::session
