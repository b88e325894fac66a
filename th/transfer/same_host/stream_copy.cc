#include "th/transfer/same_host/stream_copy.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

namespace th::same_host {
namespace {

// Stores go past the caches by lines of this size.
constexpr size_t kLine = 64;

// A range of a copy, as offsets.
struct Range {
  size_t begin = 0;
  size_t end = 0;
};

#ifdef __x86_64__

// Shorter copies go through the cache: their incomplete lines cost more than streaming saves.
constexpr size_t kMinBytes = 4096;

// The part of a copy to `to` that is streamed: whole lines.
Range StreamedPart(const char* to, size_t bytes) {
  if (bytes < kMinBytes) return {};
  const size_t begin = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  return {begin, begin + (bytes - begin) / kLine * kLine};
}

// Copies one line past the caches, and where kKeeps to `kept` as well, from one read.
template <bool kKeeps>
void StreamLine(char* to, char* kept, const char* from) {
  const auto* const source = reinterpret_cast<const __m128i*>(from);
  auto* const target = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
  const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
  _mm_stream_si128(target, a);
  _mm_stream_si128(target + 1, b);
  _mm_stream_si128(target + 2, c);
  _mm_stream_si128(target + 3, d);
  if constexpr (kKeeps) {
    auto* const copy = reinterpret_cast<__m128i*>(kept);
    _mm_storeu_si128(copy, a);
    _mm_storeu_si128(copy + 1, b);
    _mm_storeu_si128(copy + 2, c);
    _mm_storeu_si128(copy + 3, d);
  }
}

// Makes streamed stores visible before any later store; nothing else orders them.
void Fence() { _mm_sfence(); }

#else

Range StreamedPart(const char* /*to*/, size_t /*bytes*/) { return {}; }

template <bool kKeeps>
void StreamLine(char* /*to*/, char* /*kept*/, const char* /*from*/) {}

void Fence() {}

#endif

// Copies to `to` and to `kept`, each byte from one read of `from`. `to` is complete after a Fence.
void StreamCopyAndKeep(char* to, char* kept, const char* from, size_t bytes) {
  const Range streamed = StreamedPart(to, bytes);
  const auto copy = [&](size_t begin, size_t end) {
    std::memcpy(kept + begin, from + begin, end - begin);
    // Without this a compiler might copy from `from` again, which another process may change.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::memcpy(to + begin, kept + begin, end - begin);
  };
  copy(0, streamed.begin);
  for (size_t at = streamed.begin; at < streamed.end; at += kLine) {
    StreamLine<true>(to + at, kept + at, from + at);
  }
  copy(streamed.end, bytes);
}

// Goes through pieces of memory.
class Cursor {
 public:
  explicit Cursor(absl::Span<const iovec> pieces) : pieces_(pieces) {}
  // The bytes that lie side by side from here on; 0 at the end.
  size_t Contiguous() {
    while (piece_ < pieces_.size() && offset_ == pieces_[piece_].iov_len) ++piece_, offset_ = 0;
    return piece_ == pieces_.size() ? 0 : pieces_[piece_].iov_len - offset_;
  }
  // The next `bytes`, not more than Contiguous has just said.
  char* Take(size_t bytes) {
    char* const begin = static_cast<char*>(pieces_[piece_].iov_base) + offset_;
    offset_ += bytes;
    return begin;
  }

 private:
  const absl::Span<const iovec> pieces_;
  size_t piece_ = 0;
  size_t offset_ = 0;  // in pieces_[piece_]
};

}  // namespace

void StreamCopy(char* to, const char* from, size_t bytes) {
  const Range streamed = StreamedPart(to, bytes);
  std::memcpy(to, from, streamed.begin);
  for (size_t at = streamed.begin; at < streamed.end; at += kLine) {
    StreamLine<false>(to + at, /*kept=*/nullptr, from + at);
  }
  if (streamed.end > 0) Fence();
  std::memcpy(to + streamed.end, from + streamed.end, bytes - streamed.end);
}

void StreamCopyPieces(absl::Span<const iovec> from, absl::Span<const iovec> into) {
  Cursor source(from), target(into);
  while (const size_t bytes = std::min(source.Contiguous(), target.Contiguous())) {
    StreamCopy(target.Take(bytes), source.Take(bytes), bytes);
  }
}

SegmentChecksum StreamCopyAndChecksum(absl::Span<const iovec> from, absl::Span<const iovec> into,
                                      SegmentHasher* hasher) {
  // The buffer holds one leaf, so that it stays in the first cache with the lines that come and go;
  // while a larger one is summed the memory is idle for longer.
  alignas(kLine) char buffer[kLeafBytes];
  size_t filled = 0;
  Cursor source(from), target(into);
  while (const size_t bytes =
             std::min({source.Contiguous(), target.Contiguous(), sizeof(buffer) - filled})) {
    StreamCopyAndKeep(target.Take(bytes), buffer + filled, source.Take(bytes), bytes);
    filled += bytes;
    if (filled < sizeof(buffer)) continue;
    hasher->Update(buffer, filled);
    filled = 0;
  }
  hasher->Update(buffer, filled);
  Fence();
  return hasher->Finish();
}

}  // namespace th::same_host
