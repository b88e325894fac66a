// Which shard a streaming reader means: by its layout, like that of a rank, or the only one.
#ifndef TH_CLIENT_SHARD_CHOICE_H_
#define TH_CLIENT_SHARD_CHOICE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "th/protocol/catalog.h"
#include "th/weights/digest.h"
#include "th/weights/version.h"

namespace th {

struct ShardChoice {
  std::string form;
  std::string group;  // empty: the only shard that `version` has
  uint32_t rank = 0;
  VersionSequence version;
};

// The layout of that shard, from what the server lists of one model. NOT_FOUND naming the groups
// that have buffers of the form; INVALID_ARGUMENT when there is more than one shard and none
// chosen.
absl::StatusOr<Digest> ChooseShard(const CatalogModel& model, const ShardChoice& choice);

}  // namespace th

#endif  // TH_CLIENT_SHARD_CHOICE_H_
