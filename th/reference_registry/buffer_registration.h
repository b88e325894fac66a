// Buffers and layouts: registration, re-announcement, reset, end.
#ifndef TH_REFERENCE_REGISTRY_BUFFER_REGISTRATION_H_
#define TH_REFERENCE_REGISTRY_BUFFER_REGISTRATION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "th/protocol/messages.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

// A buffer is announced for the first time or again. Its content is not looked at here
// (recovery.h).
struct AnnounceBuffer {
  WorkerId worker;
  AnnouncedBuffer announced;

  // INVALID_ARGUMENT: a bad name or form, sizes that disagree with the known layout, a form that
  // the group's other ranks do not have, a known buffer with another name, form or layout.
  // ALREADY_EXISTS: another buffer of this worker has the name. RESOURCE_EXHAUSTED naming the
  // limit.
  absl::Status CanApply(const RegistryState& state) const;
  // Asks for the layout when nobody has been asked yet.
  void Apply(Turn& turn) const;
};

// Fails the receive of a group one of whose ranks was refused its streaming buffer: the other ranks
// do not wait for it.
void FailReceiveOfGroup(Turn& turn, const Worker& refused, const AnnouncedBuffer& announced,
                        const absl::Status& why);

// Stores a layout that buffers are registered with. Any worker may send it: its digest names it.
struct StoreLayout {
  const ShardLayout* layout = nullptr;  // the message's, which outlives this

  // FAILED_PRECONDITION: no registered buffer has it, or the server has it already.
  absl::Status CanApply(const RegistryState& state) const;
  // Answers the registrations that wait for it. Removes, with an error, those whose sizes differ
  // from its own, and all of them where it exceeds max_layout_bytes.
  void Apply(Turn& turn) const;
};

// The buffer's content ended without an operation.
struct ResetContent {
  BufferAddress buffer;

  absl::Status CanApply(const RegistryState& state) const;  // NOT_FOUND
  void Apply(Turn& turn) const;
};

struct RemoveBuffer {
  BufferAddress buffer;

  absl::Status CanApply(const RegistryState& state) const;  // NOT_FOUND
  // Pending operations of its replica end, naming the rank.
  void Apply(Turn& turn) const;
};

// The effect of a rank's end on what the others of its group have published: lost (see
// LosePublication), or whole again if the member that takes the rank brings its part.
enum class OthersPublications : uint8_t { kAreLost, kStay };

// Detaches the buffer from its replica and from everything that it holds. The replica is invalid
// from here on; it goes with its last buffer. The record itself is the caller's to erase. `why` is
// as for LosePublication.
void DetachBuffer(Turn& turn, Buffer& buffer, absl::string_view why, OthersPublications others);
// Asks another worker for the layouts that `worker` was asked for and has not sent.
void AskOthersForLayouts(Turn& turn, const Worker& worker);

// The worker lives, and has not sent layouts that it was asked for within
// RegistryLimits::layout_timeout: its registrations of them end with DEADLINE_EXCEEDED, and others
// that have such buffers are asked.
void EndLayoutWaits(Turn& turn, const Worker& worker);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_BUFFER_REGISTRATION_H_
