#include "th/protocol/buffer_role.h"

namespace th {

absl::string_view BufferRoleName(BufferRole role) {
  switch (role) {
    case BufferRole::kPrimary:
      return "the caller's buffer";
    case BufferRole::kOffload:
      return "an offloaded copy";
    case BufferRole::kSiteCopy:
      return "a copy that seeds its site";
    case BufferRole::kStaged:
      return "a staged copy";
    case BufferRole::kStreaming:
      return "a streaming reader's buffer";
  }
  return "of no known role";
}

absl::string_view BufferRoleKey(BufferRole role) {
  switch (role) {
    case BufferRole::kPrimary:
      return "primary";
    case BufferRole::kOffload:
      return "offload";
    case BufferRole::kSiteCopy:
      return "seed";
    case BufferRole::kStaged:
      return "staged";
    case BufferRole::kStreaming:
      return "streaming";
  }
  return "unknown";
}

}  // namespace th
