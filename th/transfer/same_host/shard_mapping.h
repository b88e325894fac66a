// The offer of a source to a reader of its host that uses a shard where it lies, and how the reader
// maps it: which ranges of shared memory, where it takes a lease on each, and which bytes of the
// shard lie where in them.
//
//   source                                         reader
//   TH_ASSIGN_OR_RETURN(offer, OfferShard(...))
//   offer.Encode()                   ── Mapping ─► TH_ASSIGN_OR_RETURN(offer, Decode(words));
//                                                  TH_ASSIGN_OR_RETURN(shard, MapShard(pid,
//                                                  offer));
//                                                  // now look at the buffer's control block
#ifndef TH_TRANSFER_SAME_HOST_SHARD_MAPPING_H_
#define TH_TRANSFER_SAME_HOST_SHARD_MAPPING_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "th/memory/shared_memory.h"
#include "th/transfer/mapped_shard.h"
#include "th/transfer/same_host/mapped_memory.h"
#include "th/transfer/stream/remote_memory.h"

namespace th::same_host {

// The most ranges and runs of one shard: they go into one frame.
inline constexpr size_t kMaxMappedRanges = 64;
inline constexpr size_t kMaxMappedRuns = 65'536;

struct ShardOffer {
  struct Range {
    OfferedRange memory;
    uint64_t lease = 0;  // its number
  };
  struct Run {
    uint64_t stream_offset = 0;
    uint64_t bytes = 0;
    uint64_t range = 0;   // index into `ranges`
    uint64_t offset = 0;  // in that range
  };
  // The file of the leases.
  uint64_t lease_file_descriptor = 0;
  uint64_t lease_inode = 0;
  std::vector<Range> ranges;
  std::vector<Run> runs;  // by their place in the stream

  std::string Encode() const;
  // INVALID_ARGUMENT: counts beyond the limits, a run outside its range, or before the one before.
  static absl::StatusOr<ShardOffer> Decode(absl::string_view words);
};

// An offer, and what keeps its ranges as they are until the reader has its leases.
struct PinnedOffer {
  ShardOffer offer;
  std::vector<std::shared_ptr<const void>> pins;
};
// Errors of OfferToReaders; RESOURCE_EXHAUSTED: it lies in more ranges or runs than there may be.
absl::StatusOr<PinnedOffer> OfferShard(absl::Span<const stream::ServedMemory::Run> runs,
                                       uint64_t limit_bytes);

// Takes a lease on every range and maps it. Errors of ReaderLease::Take; UNAVAILABLE: a range
// cannot be mapped any more.
absl::StatusOr<std::shared_ptr<const MappedShard>> MapShard(pid_t owner, const ShardOffer& offer);

}  // namespace th::same_host

#endif  // TH_TRANSFER_SAME_HOST_SHARD_MAPPING_H_
