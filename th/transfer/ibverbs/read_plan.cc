#include "th/transfer/ibverbs/read_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace th::ibverbs {
namespace {

// At least one READ in so many asks for a completion, so that places of the send queue become free.
// A completion costs the processor an event.
constexpr uint32_t kSignalEvery = 16;

// Bytes that lie together at both ends.
struct Move {
  KeyedRange from;
  uint64_t into = 0;
  uint32_t into_key = 0;

  bool operator<(const Move& other) const {
    return std::tie(from.key, from.address) < std::tie(other.from.key, other.from.address);
  }
};

std::vector<Move> MovesOf(absl::Span<const KeyedRange> from, absl::Span<const KeyedRange> into) {
  std::vector<Move> moves;
  moves.reserve(std::max(from.size(), into.size()));
  size_t source = 0, piece = 0;
  uint64_t source_offset = 0, piece_offset = 0;
  while (source < from.size() && piece < into.size()) {
    const KeyedRange& remote = from[source];
    const KeyedRange& local = into[piece];
    const uint64_t bytes = std::min(remote.bytes - source_offset, local.bytes - piece_offset);
    if (bytes > 0) {
      moves.push_back({.from = {remote.address + source_offset, bytes, remote.key},
                       .into = local.address + piece_offset,
                       .into_key = local.key});
    }
    source_offset += bytes;
    piece_offset += bytes;
    if (source_offset == remote.bytes) {
      ++source;
      source_offset = 0;
    }
    if (piece_offset == local.bytes) {
      ++piece;
      piece_offset = 0;
    }
  }
  return moves;
}

// Which gaps may be read along: the shorter ones, and as many of `bytes` as `left` says.
struct GapAllowance {
  uint64_t bytes = 0;
  size_t left = 0;

  bool Allows(uint64_t gap) const { return gap < bytes || (gap == bytes && left > 0); }
  void Take(uint64_t gap) {
    if (gap == bytes) --left;
  }
};

// The most gaps that `limits` allow, the shortest first.
GapAllowance GapsOf(const std::vector<Move>& moves, const ReadLimits& limits) {
  const GapAllowance all{.bytes = uint64_t{limits.max_gap_bytes} + 1, .left = 0};
  if (limits.bytes_per_gap_byte == 0) return all;
  std::vector<uint64_t> gaps;
  uint64_t wanted = 0, sum = 0;
  for (size_t i = 0; i < moves.size(); ++i) {
    wanted += moves[i].from.bytes;
    if (i == 0 || moves[i].from.key != moves[i - 1].from.key) continue;
    const uint64_t end = moves[i - 1].from.address + moves[i - 1].from.bytes;
    const uint64_t gap = moves[i].from.address - end;
    if (moves[i].from.address <= end || gap > limits.max_gap_bytes) continue;
    gaps.push_back(gap);
    sum += gap;
  }
  uint64_t budget = wanted / limits.bytes_per_gap_byte;
  if (sum <= budget) return all;
  std::sort(gaps.begin(), gaps.end());
  GapAllowance allowance;
  for (const uint64_t gap : gaps) {
    if (gap != allowance.bytes) allowance = {.bytes = gap, .left = 0};
    if (gap > budget) break;
    budget -= gap;
    ++allowance.left;
  }
  return allowance;
}

class Planner {
 public:
  Planner(const ReadLimits& limits, GapAllowance gaps, const KeyedRange& discard)
      : limits_(limits), gaps_(gaps), discard_(discard) {}

  void Add(const Move& move) {
    for (uint64_t done = 0; done < move.from.bytes;) {
      const KeyedRange from = {move.from.address + done, move.from.bytes - done, move.from.key};
      if (!Joins(from)) {
        plan_.reads.push_back({.from = {from.address, 0, from.key},
                               .first_piece = plan_.pieces.size(),
                               .piece_count = 0});
      }
      PlannedRead& read = plan_.reads.back();
      const uint64_t gap = from.address - read.from.address - read.from.bytes;
      if (gap > 0) {
        Append({discard_.address, gap, discard_.key});
        gaps_.Take(gap);
        plan_.gap_bytes += gap;
      }
      const uint64_t bytes = std::min(from.bytes, limits_.max_bytes - read.from.bytes);
      Append({move.into + done, bytes, move.into_key});
      done += bytes;
    }
  }
  ReadPlan Take() { return std::move(plan_); }

 private:
  // True when the READ that was planned last can grow to `from`.
  bool Joins(const KeyedRange& from) const {
    if (plan_.reads.empty()) return false;
    const PlannedRead& last = plan_.reads.back();
    const uint64_t end = last.from.address + last.from.bytes;
    if (from.key != last.from.key || from.address < end) return false;
    const uint64_t gap = from.address - end;
    return (gap == 0 || gaps_.Allows(gap)) && last.from.bytes + gap < limits_.max_bytes &&
           last.piece_count + (gap > 0 ? 2 : 1) <= limits_.max_pieces;
  }

  void Append(const KeyedRange& piece) {
    PlannedRead& read = plan_.reads.back();
    read.from.bytes += piece.bytes;
    if (read.piece_count > 0) {
      KeyedRange& last = plan_.pieces.back();
      if (last.key == piece.key && last.address + last.bytes == piece.address) {
        last.bytes += piece.bytes;
        return;
      }
    }
    plan_.pieces.push_back(piece);
    ++read.piece_count;
  }

  const ReadLimits& limits_;
  GapAllowance gaps_;
  const KeyedRange& discard_;
  ReadPlan plan_;
};

}  // namespace

ReadPlan PlanReads(absl::Span<const KeyedRange> from, absl::Span<const KeyedRange> into,
                   const ReadLimits& limits, const KeyedRange& discard) {
  std::vector<Move> moves = MovesOf(from, into);
  // Moves are planned in the order in which they lie at the peer: a layout goes by names, an
  // allocator by time.
  if (!std::is_sorted(moves.begin(), moves.end())) std::sort(moves.begin(), moves.end());
  Planner planner(limits, GapsOf(moves, limits), discard);
  for (const Move& move : moves) planner.Add(move);
  return planner.Take();
}

std::vector<KeyedRange> Slice(absl::Span<const KeyedRange> ranges, uint64_t offset,
                              uint64_t bytes) {
  std::vector<KeyedRange> slice;
  for (const KeyedRange& range : ranges) {
    if (bytes == 0) break;
    if (offset >= range.bytes) {
      offset -= range.bytes;
      continue;
    }
    const uint64_t taken = std::min(bytes, range.bytes - offset);
    slice.push_back({range.address + offset, taken, range.key});
    bytes -= taken;
    offset = 0;
  }
  return slice;
}

SignalPlan::SignalPlan(uint32_t depth) : every_(std::clamp(depth / 4, 1U, kSignalEvery)) {}

bool SignalPlan::Next(bool last_of_batch) {
  const bool signalled = last_of_batch || ++unsignalled_ >= every_;
  if (signalled) unsignalled_ = 0;
  return signalled;
}

}  // namespace th::ibverbs
