#include "th/transfer/same_host/stream_copy.h"

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

}  // namespace th::same_host
