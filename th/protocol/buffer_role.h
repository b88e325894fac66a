// The role of a registered buffer: what its group uses it for, and so what may be done with it.
#ifndef TH_PROTOCOL_BUFFER_ROLE_H_
#define TH_PROTOCOL_BUFFER_ROLE_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace th {

// A buffer keeps its role while it is registered, and all ranks of a group give a buffer of one
// name the same role. The values are those of the wire.
enum class BufferRole : uint8_t {
  // The caller's own memory: it is published, updated and unpublished by the caller.
  kPrimary = 1,
  // A temporary copy in host memory of a retained version that its group moves away from. It exists
  // until OffloadReleased.
  kOffload = 2,
  // A temporary copy in host memory by which the group brings a version into its site, until
  // OffloadReleased.
  kSiteCopy = 3,
  // Spare host memory that holds the version to which another buffer of the worker moves next. It
  // never counts as a copy that keeps a retained version.
  kStaged = 4,
  // A streaming reader's: what it receives is handed on and not kept, so it is never a source and
  // never a copy.
  kStreaming = 5,
};

// True when the buffer is a copy under the worker's offload limit.
constexpr bool IsHostCopy(BufferRole role) {
  return role == BufferRole::kOffload || role == BufferRole::kSiteCopy;
}

// True when the session made the buffer, and its caller knows nothing of it.
constexpr bool IsTemporary(BufferRole role) {
  return IsHostCopy(role) || role == BufferRole::kStaged;
}

// True when each buffer of this role has a name that no other has before or after it.
constexpr bool HasNameOfItsOwn(BufferRole role) {
  return IsHostCopy(role) || role == BufferRole::kStreaming;
}

// A noun for error messages: "an offloaded copy".
absl::string_view BufferRoleName(BufferRole role);
// One word for listings: "primary", "offload", "seed", "staged" or "streaming".
absl::string_view BufferRoleKey(BufferRole role);

}  // namespace th

#endif  // TH_PROTOCOL_BUFFER_ROLE_H_
