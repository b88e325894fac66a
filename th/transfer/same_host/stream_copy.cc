#include "th/transfer/same_host/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

namespace th::same_host {
namespace {

#ifdef __x86_64__

constexpr size_t kLine = 64;
// Below it the ends and the fence cost more than the cache does.
constexpr size_t kMinBytes = 4096;

struct Line {
  __m128i a, b, c, d;
};

Line Load(const char* from) {
  const auto* const source = reinterpret_cast<const __m128i*>(from);
  return {_mm_loadu_si128(source), _mm_loadu_si128(source + 1), _mm_loadu_si128(source + 2),
          _mm_loadu_si128(source + 3)};
}

void Store(char* to, const Line& line) {
  auto* const target = reinterpret_cast<__m128i*>(to);
  _mm_storeu_si128(target, line.a);
  _mm_storeu_si128(target + 1, line.b);
  _mm_storeu_si128(target + 2, line.c);
  _mm_storeu_si128(target + 3, line.d);
}

// Past the caches. `to` is the address of a line.
void Stream(char* to, const Line& line) {
  auto* const target = reinterpret_cast<__m128i*>(to);
  _mm_stream_si128(target, line.a);
  _mm_stream_si128(target + 1, line.b);
  _mm_stream_si128(target + 2, line.c);
  _mm_stream_si128(target + 3, line.d);
}

// Streamed stores are ordered by nothing else.
void Fence() { _mm_sfence(); }

// The whole lines of `to` that are worth to be streamed, as offsets.
struct Lines {
  size_t begin = 0;
  size_t end = 0;
};

Lines LinesOf(const char* to, size_t bytes) {
  if (bytes < kMinBytes) return {};
  const size_t begin = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  return {begin, begin + (bytes - begin) / kLine * kLine};
}

// Copies to both, each byte from one read of `from`; `to` is complete after a Fence.
void StreamCopyTwice(char* to, char* cached, const char* from, size_t bytes) {
  const Lines lines = LinesOf(to, bytes);
  const auto copy = [&](size_t begin, size_t end) {
    std::memcpy(cached + begin, from + begin, end - begin);
    std::memcpy(to + begin, cached + begin, end - begin);
  };
  copy(0, lines.begin);
  for (size_t at = lines.begin; at < lines.end; at += kLine) {
    const Line line = Load(from + at);
    Stream(to + at, line);
    Store(cached + at, line);
  }
  copy(lines.end, bytes);
}

}  // namespace

void StreamCopy(char* to, const char* from, size_t bytes) {
  const Lines lines = LinesOf(to, bytes);
  std::memcpy(to, from, lines.begin);
  for (size_t at = lines.begin; at < lines.end; at += kLine) Stream(to + at, Load(from + at));
  if (lines.end > 0) Fence();
  std::memcpy(to + lines.end, from + lines.end, bytes - lines.end);
}

#else

void Fence() {}

void StreamCopyTwice(char* to, char* cached, const char* from, size_t bytes) {
  std::memcpy(cached, from, bytes);
  std::memcpy(to, cached, bytes);
}

}  // namespace

void StreamCopy(char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); }

#endif

namespace {

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
  size_t offset_ = 0;  // in it
};

}  // namespace

void StreamCopyPieces(absl::Span<const iovec> from, absl::Span<const iovec> into) {
  Cursor source(from), target(into);
  while (const size_t bytes = std::min(source.Contiguous(), target.Contiguous())) {
    StreamCopy(target.Take(bytes), source.Take(bytes), bytes);
  }
}

SegmentChecksum StreamCopyAndChecksum(absl::Span<const iovec> from, absl::Span<const iovec> into,
                                      SegmentHasher* hasher) {
  // One leaf, which is summed at once, and little enough that buffer, source and the lines on their
  // way to the destination stay in the first cache. More, and the memory rests longer at a time.
  alignas(64) char buffer[kLeafBytes];
  size_t filled = 0;
  Cursor source(from), target(into);
  while (true) {
    const size_t bytes =
        std::min({source.Contiguous(), target.Contiguous(), sizeof(buffer) - filled});
    if (bytes > 0) {
      StreamCopyTwice(target.Take(bytes), buffer + filled, source.Take(bytes), bytes);
      filled += bytes;
      if (filled < sizeof(buffer)) continue;
    }
    hasher->Update(buffer, filled);
    filled = 0;
    if (bytes > 0) continue;
    Fence();
    return hasher->Finish();
  }
}

}  // namespace th::same_host
