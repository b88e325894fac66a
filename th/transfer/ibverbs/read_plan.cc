#include "th/transfer/ibverbs/read_plan.h"

#include <algorithm>

namespace th::ibverbs {
namespace {

// At most one READ in so many asks for a completion; each costs the processor an event.
constexpr uint32_t kSignalEvery = 16;

}  // namespace

ReadPlan PlanReads(absl::Span<const KeyedRange> from, absl::Span<const KeyedRange> into,
                   const ReadLimits& limits) {
  ReadPlan plan;
  PlannedRead* open = nullptr;  // the READ that grows
  size_t source = 0, piece = 0;
  uint64_t source_offset = 0, piece_offset = 0;
  while (source < from.size() && piece < into.size()) {
    const KeyedRange& remote = from[source];
    const KeyedRange& local = into[piece];
    const uint64_t remote_address = remote.address + source_offset;
    const bool follows = open != nullptr && open->from.key == remote.key &&
                         open->from.address + open->from.bytes == remote_address &&
                         open->from.bytes < limits.max_bytes &&
                         open->piece_count < limits.max_pieces;
    const uint64_t room = follows ? limits.max_bytes - open->from.bytes : limits.max_bytes;
    const uint64_t bytes =
        std::min({remote.bytes - source_offset, local.bytes - piece_offset, room});
    if (bytes > 0) {
      if (!follows) {
        plan.reads.push_back({.from = {remote_address, 0, remote.key},
                              .first_piece = plan.pieces.size(),
                              .piece_count = 0});
        open = &plan.reads.back();
      }
      open->from.bytes += bytes;
      KeyedRange* const last = open->piece_count > 0 ? &plan.pieces.back() : nullptr;
      if (last != nullptr && last->key == local.key &&
          last->address + last->bytes == local.address + piece_offset) {
        last->bytes += bytes;
      } else {
        plan.pieces.push_back({local.address + piece_offset, bytes, local.key});
        ++open->piece_count;
      }
      source_offset += bytes;
      piece_offset += bytes;
    }
    if (source_offset == remote.bytes) {
      ++source;
      source_offset = 0;
    }
    if (piece_offset == local.bytes) {
      ++piece;
      piece_offset = 0;
    }
  }
  return plan;
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
