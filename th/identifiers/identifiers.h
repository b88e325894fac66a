// Names and numbers that identify things across TensorHub. Strong types: an identifier of one kind
// never converts to another, and two adjacent parameters never share a raw type.
//
// Thread-safety: plain values.
#ifndef TH_IDENTIFIERS_IDENTIFIERS_H_
#define TH_IDENTIFIERS_IDENTIFIERS_H_

#include <compare>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace th {

// An unsigned number with a meaning. `Tag` keeps one meaning apart from another.
template <typename Tag, typename Raw = uint64_t>
struct StrongInt {
  Raw value = 0;

  constexpr StrongInt() = default;
  constexpr explicit StrongInt(Raw raw) : value(raw) {}
  friend constexpr auto operator<=>(StrongInt, StrongInt) = default;
  constexpr StrongInt Next() const { return StrongInt(value + 1); }
  template <typename H>
  friend H AbslHashValue(H h, StrongInt id) {
    return H::combine(std::move(h), id.value);
  }
  friend std::ostream& operator<<(std::ostream& os, StrongInt id) { return os << id.value; }
};

// The number of a server's time in office. Rises by at least one at every server start; durable.
using Epoch = StrongInt<struct EpochTag, uint32_t>;

// One incarnation of one rank's membership, given by the server at the join and strictly rising
// over all epochs (the epoch is the high half). A replaced rank gets a higher one; the lower is
// fenced.
using WorkerId = StrongInt<struct WorkerIdTag>;

// A buffer of one worker, numbered by the worker from 1. (WorkerId, BufferId) names a buffer on the
// wire.
using BufferId = StrongInt<struct BufferIdTag, uint32_t>;

// The position of a rank in its group, from 0.
using Rank = StrongInt<struct RankTag, uint32_t>;

// Counts the operations (publish, unpublish, update) on one replica, from 1. Every rank of the
// group counts them alike: this number is what makes a group transaction out of the ranks' calls.
using OperationNumber = StrongInt<struct OperationNumberTag>;

// A server-given number of one assignment of sources to one reader buffer; rising within an epoch.
using AssignmentId = StrongInt<struct AssignmentIdTag>;

// Counts the numberings of a group: a rank that is replaced, registers a buffer again or lags
// starts the next generation, in which operations are numbered from 1.
using GroupGeneration = StrongInt<struct GroupGenerationTag>;

// The generation word of a buffer: bumped before `unpublish` returns and before a fill begins.
using BufferGeneration = StrongInt<struct BufferGenerationTag>;

// Counts the roll-backs of a model. A publisher that knows an older lineage is refused.
using Lineage = StrongInt<struct LineageTag>;

// A segment of a shard, from 0 in canonical order.
using SegmentIndex = StrongInt<struct SegmentIndexTag>;

// A version's place in its model's history: strictly rising and never reused, over server restarts
// too: the epoch of the server that gave it is the high half. Zero is no version.
struct VersionSequence {
  uint64_t value = 0;

  constexpr VersionSequence() = default;
  constexpr explicit VersionSequence(uint64_t raw) : value(raw) {}
  static constexpr VersionSequence Of(Epoch epoch, uint32_t number) {
    return VersionSequence((uint64_t{epoch.value} << 32) | number);
  }
  constexpr Epoch epoch() const { return Epoch(static_cast<uint32_t>(value >> 32)); }
  constexpr uint32_t number() const { return static_cast<uint32_t>(value); }
  friend constexpr auto operator<=>(VersionSequence, VersionSequence) = default;
  template <typename H>
  friend H AbslHashValue(H h, VersionSequence v) {
    return H::combine(std::move(h), v.value);
  }
  // "2.17": epoch, then number.
  std::string ToString() const { return absl::StrCat(value >> 32, ".", value & 0xffffffffu); }
  friend std::ostream& operator<<(std::ostream& os, VersionSequence v) {
    return os << v.ToString();
  }
};

// A model of a run. Every key starts with the run: two runs with one model name never meet.
struct ModelKey {
  std::string run;
  std::string model;

  friend auto operator<=>(const ModelKey&, const ModelKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const ModelKey& k) {
    return H::combine(std::move(h), k.run, k.model);
  }
  // "run=r1 model=qwen3", as every message names it.
  std::string ToString() const { return absl::StrCat("run=", run, " model=", model); }
};

// A rank's name within its model.
struct RankName {
  std::string group;
  Rank rank;

  friend auto operator<=>(const RankName&, const RankName&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const RankName& n) {
    return H::combine(std::move(h), n.group, n.rank);
  }
  // "rollout-3/1".
  std::string ToString() const { return absl::StrCat(group, "/", rank.value); }
};

// A buffer of a worker, as the wire names it.
struct BufferAddress {
  WorkerId worker;
  BufferId buffer;

  friend constexpr auto operator<=>(const BufferAddress&, const BufferAddress&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const BufferAddress& a) {
    return H::combine(std::move(h), a.worker, a.buffer);
  }
};

}  // namespace th

#endif  // TH_IDENTIFIERS_IDENTIFIERS_H_
