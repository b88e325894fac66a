#include "th/weights/checksum.h"

#include <algorithm>
#include <array>

#include "th/weights/xxh3_avx2.h"
#include "xxhash.h"

namespace th {
namespace {

using LittleEndian = std::array<uint8_t, sizeof(SegmentChecksum)>;

// Sums that are encoded and hashed at once: the leaves of 512 KiB.
constexpr size_t kChecksumsAtOnce = 64;

LittleEndian ToLittleEndian(SegmentChecksum checksum) {
  LittleEndian bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(absl::Uint128Low64(checksum >> (8 * i)));
  }
  return bytes;
}

SegmentChecksum ToChecksum(XXH128_hash_t hash) {
  return absl::MakeUint128(hash.high64, hash.low64);
}

bool HasAvx2() {
  static const bool has = th_xxh3_avx2_usable() != 0;
  return has;
}

SegmentChecksum Xxh3(const void* data, size_t bytes) {
  if (!HasAvx2()) return ToChecksum(XXH3_128bits(data, bytes));
  XXH128_hash_t hash;
  th_xxh3_avx2_sum(data, bytes, &hash);
  return ToChecksum(hash);
}

void Append(XXH3_state_t* state, const void* data, size_t bytes) {
  if (HasAvx2()) return th_xxh3_avx2_update(state, data, bytes);
  XXH3_128bits_update(state, data, bytes);
}

SegmentChecksum ChecksumOf(const XXH3_state_t* state) {
  return ToChecksum(XXH3_128bits_digest(state));
}

}  // namespace

struct SegmentHasher::State {
  void EndLeaf() {
    AppendLeaf(ChecksumOf(&leaf));
    leaf_bytes = 0;
  }
  void AppendLeaf(SegmentChecksum checksum) {
    const LittleEndian encoded = ToLittleEndian(checksum);
    Append(&leaves, encoded.data(), encoded.size());
  }

  XXH3_state_t leaves;    // over the sums of the leaves that have ended
  XXH3_state_t leaf;      // the leaf that has begun; valid where leaf_bytes > 0
  size_t leaf_bytes = 0;  // of the leaf that has begun, below kLeafBytes
};

SegmentHasher::SegmentHasher() : state_(std::make_unique<State>()) { Reset(); }
SegmentHasher::~SegmentHasher() = default;

void SegmentHasher::Reset() {
  XXH3_128bits_reset(&state_->leaves);
  state_->leaf_bytes = 0;
}

void SegmentHasher::Update(const void* data, size_t bytes) {
  const char* rest = static_cast<const char*>(data);
  while (bytes > 0) {
    const size_t taken = std::min(bytes, kLeafBytes - state_->leaf_bytes);
    if (taken == kLeafBytes) {
      state_->AppendLeaf(Xxh3(rest, taken));
    } else {
      if (state_->leaf_bytes == 0) XXH3_128bits_reset(&state_->leaf);
      Append(&state_->leaf, rest, taken);
      state_->leaf_bytes += taken;
      if (state_->leaf_bytes == kLeafBytes) state_->EndLeaf();
    }
    rest += taken;
    bytes -= taken;
  }
}

SegmentChecksum SegmentHasher::Finish() {
  if (state_->leaf_bytes > 0) state_->EndLeaf();
  const SegmentChecksum checksum = ChecksumOf(&state_->leaves);
  Reset();
  return checksum;
}

SegmentChecksum ChecksumBytes(const void* data, size_t bytes) {
  if (bytes > kChecksumsAtOnce * kLeafBytes) {
    SegmentHasher hasher;
    hasher.Update(data, bytes);
    return hasher.Finish();
  }
  // The common sizes need no state, whose making would cost as much as summing a small segment.
  std::array<SegmentChecksum, kChecksumsAtOnce> leaves;
  size_t count = 0;
  for (size_t at = 0; at < bytes; at += kLeafBytes) {
    leaves[count++] =
        ChecksumOfLeaf(static_cast<const char*>(data) + at, std::min(kLeafBytes, bytes - at));
  }
  return ChecksumOfLeaves(absl::MakeConstSpan(leaves.data(), count));
}

SegmentChecksum ChecksumPieces(absl::Span<const iovec> pieces, ChecksumAlgorithm checksum) {
  if (checksum == ChecksumAlgorithm::kNone) return 0;
  if (pieces.size() == 1) return ChecksumBytes(pieces[0].iov_base, pieces[0].iov_len);
  SegmentHasher hasher;
  for (const iovec& piece : pieces) hasher.Update(piece.iov_base, piece.iov_len);
  return hasher.Finish();
}

SegmentChecksum ChecksumOfLeaf(const void* data, size_t bytes) { return Xxh3(data, bytes); }

SegmentChecksum ChecksumOfLeaves(absl::Span<const SegmentChecksum> leaves) {
  std::array<LittleEndian, kChecksumsAtOnce> encoded;
  if (leaves.size() <= encoded.size()) {
    std::transform(leaves.begin(), leaves.end(), encoded.begin(), ToLittleEndian);
    return Xxh3(encoded.data(), leaves.size() * sizeof(LittleEndian));
  }
  // The state lies on the heap, which keeps its alignment of 64 bytes under the address sanitizer
  // too.
  const auto state = std::make_unique<XXH3_state_t>();
  XXH3_128bits_reset(state.get());
  for (const SegmentChecksum leaf : leaves) {
    encoded[0] = ToLittleEndian(leaf);
    Append(state.get(), encoded.data(), sizeof(LittleEndian));
  }
  return ChecksumOf(state.get());
}

Digest RootOfChecksums(absl::Span<const SegmentChecksum> checksums) {
  std::array<LittleEndian, kChecksumsAtOnce> encoded;
  DigestBuilder builder;
  while (!checksums.empty()) {
    const absl::Span<const SegmentChecksum> part = checksums.subspan(0, kChecksumsAtOnce);
    std::transform(part.begin(), part.end(), encoded.begin(), ToLittleEndian);
    builder.Update(encoded.data(), part.size() * sizeof(LittleEndian));
    checksums.remove_prefix(part.size());
  }
  return builder.Finish();
}

}  // namespace th
