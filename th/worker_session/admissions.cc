#include "th/worker_session/admissions.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "tools/mutation/mutation.h"

namespace th::session {
namespace {

absl::Status CheckClaims(const State& state, BufferId buffer, const Capability& capability) {
  const CapabilityClaims& claims = capability.claims;
  const Epoch epoch = state.membership.epoch;
  if (state.ending() || !state.link.ever_joined) {
    return absl::UnavailableError("this worker is not a member now");
  }
  if (claims.epoch > epoch) {
    return absl::UnavailableError(absl::StrCat("the capability is of epoch ", claims.epoch.value,
                                               ", which this worker, in ", epoch.value,
                                               ", has not joined yet"));
  }
  if (TH_MUTATE(kAdmitOldEpochs, claims.epoch < epoch, false)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the capability is of epoch ", claims.epoch.value, ", which ended; now is ", epoch.value));
  }
  TH_RETURN_IF_ERROR(VerifyCapability(state.membership.key, capability));
  const BufferAddress here{state.membership.worker, buffer};
  if (claims.source != here) {
    return absl::PermissionDeniedError("the capability is for another buffer");
  }
  return absl::OkStatus();
}

// Published here, and the server's answer with its name is on the way.
bool WaitsForItsName(const Buffer& buffer) {
  return buffer.contract.state() == BufferState::kPublished &&
         buffer.contract.version() == VersionSequence();
}

void Decide(State& state, TransferId transfer, absl::Status status, BufferGeneration generation) {
  state.Emit(AdmissionDecided{transfer, std::move(status), generation});
}

void Admit(State& state, Buffer& buffer, const HeldAdmission& asked, absl::Time now) {
  absl::Status admitted =
      buffer.contract.Admit(asked.transfer, asked.version, asked.generation, now);
  if (admitted.ok()) {
    state.transfers[asked.transfer] = buffer.id;
    buffer.read_since_publish = true;
  }
  Decide(state, asked.transfer, std::move(admitted), buffer.contract.generation());
}

void Hold(State& state, const HeldAdmission& asked) {
  if (state.held_admissions.size() >= kMaxHeldAdmissions) {
    Decide(state, asked.transfer,
           absl::UnavailableError("too many readers wait for the version's name"),
           asked.generation);
    return;
  }
  state.held_admissions.push_back(asked);
}

}  // namespace

void AskAdmission(State& state, TransferId transfer, BufferId buffer_id,
                  const Capability& capability, BufferGeneration generation, absl::Time now) {
  absl::Status claims = CheckClaims(state, buffer_id, capability);
  if (!claims.ok()) return Decide(state, transfer, std::move(claims), BufferGeneration());
  Buffer* buffer = state.FindBuffer(buffer_id);
  if (buffer == nullptr) {
    return Decide(state, transfer, absl::NotFoundError("no such buffer"), BufferGeneration());
  }
  if (buffer->role == BufferRole::kStreaming) {
    return Decide(state, transfer,
                  absl::UnavailableError("a streaming reader keeps nothing, so it serves nobody"),
                  buffer->contract.generation());
  }
  if (state.transfers.contains(transfer)) {
    return Decide(state, transfer, absl::AlreadyExistsError("the transfer is admitted already"),
                  buffer->contract.generation());
  }
  const HeldAdmission asked{transfer, buffer_id, capability.claims.version, generation,
                            now + kHoldAdmission};
  if (WaitsForItsName(*buffer)) {
    Hold(state, asked);
  } else {
    Admit(state, *buffer, asked, now);
  }
}

void DecideHeldAdmissions(State& state, absl::Time now) {
  std::vector<HeldAdmission> waiting;
  for (const HeldAdmission& asked : std::exchange(state.held_admissions, {})) {
    Buffer* buffer = state.FindBuffer(asked.buffer);
    if (buffer != nullptr && WaitsForItsName(*buffer) && now < asked.until) {
      waiting.push_back(asked);
    } else if (buffer == nullptr) {
      Decide(state, asked.transfer, absl::NotFoundError("no such buffer"), asked.generation);
    } else {
      Admit(state, *buffer, asked, now);
    }
  }
  state.held_admissions = std::move(waiting);
}

absl::Time NextAdmissionDeadline(const State& state) {
  absl::Time next = absl::InfiniteFuture();
  for (const HeldAdmission& asked : state.held_admissions) next = std::min(next, asked.until);
  return next;
}

void RefuseHeldAdmissions(State& state, const absl::Status& why) {
  for (const HeldAdmission& asked : std::exchange(state.held_admissions, {})) {
    Decide(state, asked.transfer, absl::UnavailableError(why.message()), asked.generation);
  }
}

void NoteReaderBytes(State& state, TransferId transfer, absl::Time now) {
  const auto found = state.transfers.find(transfer);
  if (found == state.transfers.end()) return;
  if (Buffer* buffer = state.FindBuffer(found->second)) {
    buffer->contract.ReaderTookBytes(transfer, now);
  }
}

Buffer* ReleaseReader(State& state, TransferId transfer) {
  std::erase_if(state.held_admissions,
                [&](const HeldAdmission& asked) { return asked.transfer == transfer; });
  const auto found = state.transfers.find(transfer);
  if (found == state.transfers.end()) return nullptr;
  Buffer* buffer = state.FindBuffer(found->second);
  state.transfers.erase(found);
  if (buffer != nullptr) buffer->contract.Release(transfer);
  return buffer;
}

}  // namespace th::session
