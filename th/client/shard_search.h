// The first step of Receive and Attach: which shard is meant, and its tensors.
#ifndef TH_CLIENT_SHARD_SEARCH_H_
#define TH_CLIENT_SHARD_SEARCH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "th/protocol/messages.h"
#include "th/weights/digest.h"
#include "th/weights/shard_layout.h"

namespace th {

// As the caller's options have it.
struct ShardChoice {
  std::string form;
  std::optional<Digest> layout;
  std::string group;
  uint32_t rank = 0;
};

struct ShardToRead {
  NotAvailableReason not_available = NotAvailableReason::kNone;  // set: there is no shard to read
  std::shared_ptr<const ShardLayout> layout;                     // shared with the client's cache
};

// The error that the other ranks of the group hear, which may have found something meanwhile.
inline absl::Status NothingFound() {
  return absl::AbortedError("found nothing to receive when it began; ask again");
}

}  // namespace th

#endif  // TH_CLIENT_SHARD_SEARCH_H_
