#include "th/transfer/same_host/shard_mapping.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "th/memory/reader_lease.h"
#include "th/status/status_macros.h"

namespace th::same_host {
namespace {

struct Head {
  uint64_t lease_file_descriptor = 0;
  uint64_t lease_inode = 0;
  uint64_t ranges = 0;
  uint64_t runs = 0;
};
static_assert(sizeof(Head) + kMaxMappedRanges * sizeof(ShardOffer::Range) +
                      kMaxMappedRuns * sizeof(ShardOffer::Run) <=
                  stream::kMaxMappingBytes,
              "the largest offer fits into a frame");

template <typename T>
void Append(const T& value, std::string* words) {
  words->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T Take(absl::string_view* words) {
  T value;
  std::memcpy(&value, words->data(), sizeof(value));
  words->remove_prefix(sizeof(value));
  return value;
}

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("bad offer of a mapping: ", what));
}

absl::Status CheckRuns(const ShardOffer& offer) {
  uint64_t end = 0;
  for (const ShardOffer::Run& run : offer.runs) {
    if (run.range >= offer.ranges.size()) return Bad("a run in a range that it does not name");
    const uint64_t room = offer.ranges[run.range].memory.bytes;
    if (run.offset > room || run.bytes > room - run.offset) return Bad("a run outside its range");
    if (run.stream_offset < end || run.bytes > UINT64_MAX - run.stream_offset) {
      return Bad("runs that overlap");
    }
    end = run.stream_offset + run.bytes;
  }
  return absl::OkStatus();
}

absl::Status TooScattered(absl::string_view what, size_t most) {
  return absl::ResourceExhaustedError(absl::StrCat("its tensors lie in more than ", most, " ", what,
                                                   ": put them side by side in one arena"));
}

// The range's index in the offer, which gets it where it is new.
absl::StatusOr<uint64_t> IndexOf(const SharedMemoryRange& range, ShardOffer* offer) {
  const auto found =
      std::find_if(offer->ranges.begin(), offer->ranges.end(),
                   [&](const ShardOffer::Range& each) { return each.memory.id == range.id; });
  const auto index = static_cast<uint64_t>(found - offer->ranges.begin());
  if (found != offer->ranges.end()) return index;
  if (index == kMaxMappedRanges) return TooScattered("arenas", kMaxMappedRanges);
  offer->lease_file_descriptor = static_cast<uint64_t>(range.lease.file_descriptor);
  offer->lease_inode = range.lease.inode;
  offer->ranges.push_back(
      {.memory = {.address = reinterpret_cast<uintptr_t>(range.address),
                  .bytes = range.bytes,
                  .id = range.id,
                  .inode = range.inode,
                  .file_descriptor = static_cast<uint64_t>(range.file_descriptor)},
       .lease = range.lease.number});
  return index;
}

// The owner of a mapped shard's ranges. The mappings end before the leases: whoever holds no lease
// has nothing mapped.
struct Held {
  std::vector<std::unique_ptr<ReaderLease>> leases;
  std::vector<std::shared_ptr<const MappedRange>> ranges;
};

}  // namespace

std::string ShardOffer::Encode() const {
  std::string words;
  Append(Head{.lease_file_descriptor = lease_file_descriptor,
              .lease_inode = lease_inode,
              .ranges = ranges.size(),
              .runs = runs.size()},
         &words);
  for (const Range& range : ranges) Append(range, &words);
  for (const Run& run : runs) Append(run, &words);
  return words;
}

absl::StatusOr<ShardOffer> ShardOffer::Decode(absl::string_view words) {
  if (words.size() < sizeof(Head)) return Bad("too short");
  const Head head = Take<Head>(&words);
  if (head.ranges > kMaxMappedRanges || head.runs > kMaxMappedRuns) {
    return Bad("more ranges or runs than there may be");
  }
  if (words.size() < head.ranges * sizeof(Range) + head.runs * sizeof(Run)) return Bad("too short");
  ShardOffer offer{.lease_file_descriptor = head.lease_file_descriptor,
                   .lease_inode = head.lease_inode,
                   .ranges = {},
                   .runs = {}};
  for (uint64_t i = 0; i < head.ranges; ++i) offer.ranges.push_back(Take<Range>(&words));
  for (uint64_t i = 0; i < head.runs; ++i) offer.runs.push_back(Take<Run>(&words));
  TH_RETURN_IF_ERROR(CheckRuns(offer));
  return offer;
}

absl::StatusOr<PinnedOffer> OfferShard(absl::Span<const stream::ServedMemory::Run> runs,
                                       uint64_t limit_bytes) {
  PinnedOffer pinned;
  SharedMemoryRange range;  // of the run before: most shards lie in one
  uint64_t index = 0;
  for (const stream::ServedMemory::Run& run : runs) {
    // Arenas may lie side by side too, so that a run goes on in the next one.
    for (uint64_t done = 0; done < run.memory.iov_len;) {
      const auto* const begin = static_cast<const std::byte*>(run.memory.iov_base) + done;
      if (begin < range.address || begin >= range.address + range.bytes) {
        TH_ASSIGN_OR_RETURN(OfferedToReaders offered, OfferToReaders(begin, 1, limit_bytes));
        range = offered.range;
        TH_ASSIGN_OR_RETURN(index, IndexOf(range, &pinned.offer));
        if (pinned.pins.size() <= index) pinned.pins.push_back(std::move(offered.pin));
      }
      if (pinned.offer.runs.size() == kMaxMappedRuns) return TooScattered("runs", kMaxMappedRuns);
      const auto offset = static_cast<uint64_t>(begin - range.address);
      const uint64_t bytes = std::min<uint64_t>(run.memory.iov_len - done, range.bytes - offset);
      pinned.offer.runs.push_back({.stream_offset = run.stream_offset + done,
                                   .bytes = bytes,
                                   .range = index,
                                   .offset = offset});
      done += bytes;
    }
  }
  return pinned;
}

absl::StatusOr<std::shared_ptr<const MappedShard>> MapShard(pid_t owner, const ShardOffer& offer) {
  auto held = std::make_shared<Held>();
  for (const ShardOffer::Range& range : offer.ranges) {
    TH_ASSIGN_OR_RETURN(
        std::unique_ptr<ReaderLease> lease,
        ReaderLease::Take(owner, {.file_descriptor = static_cast<int>(offer.lease_file_descriptor),
                                  .inode = offer.lease_inode,
                                  .number = range.lease}));
    held->leases.push_back(std::move(lease));
    held->ranges.push_back(MapOffered(owner, range.memory));
    if (held->ranges.back() == nullptr) {
      return absl::UnavailableError("an arena of the source cannot be mapped (any more)");
    }
  }
  std::vector<MappedShard::Run> runs;
  runs.reserve(offer.runs.size());
  for (const ShardOffer::Run& run : offer.runs) {
    runs.push_back({.stream_offset = run.stream_offset,
                    .bytes = run.bytes,
                    .data = held->ranges[run.range]->data() + run.offset});
  }
  return std::make_shared<const MappedShard>(std::move(runs), std::move(held));
}

}  // namespace th::same_host
