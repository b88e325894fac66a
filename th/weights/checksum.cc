#include "th/weights/checksum.h"

#include <algorithm>
#include <array>

#include "th/weights/xxh3_avx2.h"
#include "xxhash.h"

namespace th {
namespace {

using LittleEndian = std::array<uint8_t, sizeof(SegmentSum)>;

LittleEndian ToLittleEndian(SegmentSum sum) {
  LittleEndian bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(sum >> (8 * i));
  return bytes;
}

bool HasAvx2() {
  static const bool has = th_xxh3_avx2_usable() != 0;
  return has;
}

}  // namespace

struct SegmentHasher::State {
  XXH3_state_t xxh3;
};

SegmentHasher::SegmentHasher() : state_(std::make_unique<State>()) { Reset(); }
SegmentHasher::~SegmentHasher() = default;

void SegmentHasher::Reset() { XXH3_64bits_reset(&state_->xxh3); }

void SegmentHasher::Update(const void* data, size_t bytes) {
  if (HasAvx2()) return th_xxh3_avx2_update(&state_->xxh3, data, bytes);
  XXH3_64bits_update(&state_->xxh3, data, bytes);
}

SegmentSum SegmentHasher::Finish() const { return XXH3_64bits_digest(&state_->xxh3); }

SegmentSum SumBytes(const void* data, size_t bytes) {
  return HasAvx2() ? th_xxh3_avx2_sum(data, bytes) : XXH3_64bits(data, bytes);
}

Digest RootOfSums(absl::Span<const SegmentSum> sums) {
  constexpr size_t kSumsAtOnce = 1024;
  std::array<LittleEndian, kSumsAtOnce> encoded;
  DigestBuilder builder;
  while (!sums.empty()) {
    const absl::Span<const SegmentSum> part = sums.subspan(0, kSumsAtOnce);
    std::transform(part.begin(), part.end(), encoded.begin(), ToLittleEndian);
    builder.Update(encoded.data(), part.size() * sizeof(LittleEndian));
    sums.remove_prefix(part.size());
  }
  return builder.Finish();
}

}  // namespace th
