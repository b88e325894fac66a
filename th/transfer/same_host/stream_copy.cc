#include "th/transfer/same_host/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

namespace th::same_host {

#ifdef __x86_64__
namespace {

constexpr size_t kLine = 64;
constexpr size_t kStep = sizeof(__m128i);
// Below it the ends and the fence cost more than the cache does.
constexpr size_t kMinBytes = 4096;

}  // namespace

void StreamCopy(char* to, const char* from, size_t bytes) {
  if (bytes < kMinBytes) {
    std::memcpy(to, from, bytes);
    return;
  }
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  const size_t lines = (bytes - head) / kLine * kLine;
  for (size_t at = head; at < head + lines; at += kLine) {
    const auto* const source = reinterpret_cast<const __m128i*>(from + at);
    auto* const target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  static_assert(4 * kStep == kLine);
  _mm_sfence();  // streamed stores are ordered by nothing else
  std::memcpy(to + head + lines, from + head + lines, bytes - head - lines);
}

#else

void StreamCopy(char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); }

#endif

namespace {

// The bytes that are summed at a time: whole leaves, which is fastest, and little enough that
// buffer, source and destination stay in the first cache.
constexpr size_t kChecksummedBytes = 2 * kLeafBytes;

// Goes through pieces of memory.
class Cursor {
 public:
  explicit Cursor(absl::Span<const iovec> pieces) : pieces_(pieces) {}
  // The next bytes that lie side by side, at most `most`; none at the end.
  iovec Next(size_t most) {
    while (piece_ < pieces_.size() && offset_ == pieces_[piece_].iov_len) ++piece_, offset_ = 0;
    if (piece_ == pieces_.size()) return {};
    const iovec& piece = pieces_[piece_];
    const size_t bytes = std::min(most, piece.iov_len - offset_);
    char* const begin = static_cast<char*>(piece.iov_base) + offset_;
    offset_ += bytes;
    return {begin, bytes};
  }

 private:
  const absl::Span<const iovec> pieces_;
  size_t piece_ = 0;
  size_t offset_ = 0;  // in it
};

}  // namespace

void StreamCopyPieces(absl::Span<const iovec> from, absl::Span<const iovec> into) {
  Cursor source(from);
  for (const iovec& piece : into) {
    for (size_t done = 0; done < piece.iov_len;) {
      const iovec part = source.Next(piece.iov_len - done);
      StreamCopy(static_cast<char*>(piece.iov_base) + done, static_cast<const char*>(part.iov_base),
                 part.iov_len);
      done += part.iov_len;
    }
  }
}

SegmentChecksum StreamCopyAndChecksum(absl::Span<const iovec> from, absl::Span<const iovec> into,
                                      SegmentHasher* hasher) {
  alignas(64) char buffer[kChecksummedBytes];
  Cursor source(from), target(into);
  while (true) {
    size_t filled = 0;
    while (filled < kChecksummedBytes) {
      const iovec part = source.Next(kChecksummedBytes - filled);
      if (part.iov_len == 0) break;
      std::memcpy(buffer + filled, part.iov_base, part.iov_len);
      filled += part.iov_len;
    }
    if (filled == 0) return hasher->Finish();
    hasher->Update(buffer, filled);
    for (size_t done = 0; done < filled;) {
      const iovec part = target.Next(filled - done);
      StreamCopy(static_cast<char*>(part.iov_base), buffer + done, part.iov_len);
      done += part.iov_len;
    }
  }
}

}  // namespace th::same_host
