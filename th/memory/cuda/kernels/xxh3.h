// XXH3 with 128 bits and seed 0, as the format of xxHash defines it: the parts of which
// leaf_checksum.h makes the sum of a leaf. On a GPU and on the host the same source;
// leaf_checksum_test.cc compares it with the xxHash library.
#ifndef TH_MEMORY_CUDA_KERNELS_XXH3_H_
#define TH_MEMORY_CUDA_KERNELS_XXH3_H_

#include <cstdint>

#include "th/memory/cuda/kernels/arguments.h"
#include "th/memory/cuda/kernels/execution_space.h"
#include "th/memory/cuda/kernels/words.h"

namespace th::kernels::xxh3 {

// Long inputs are hashed in stripes; eight accumulators are scrambled after each block of stripes.
inline constexpr uint32_t kStripeBytes = 64;
inline constexpr uint32_t kStripesPerBlock = 16;
inline constexpr uint32_t kBlockBytes = kStripeBytes * kStripesPerBlock;
// The longest input of the short form.
inline constexpr uint32_t kShortBytes = 240;

inline constexpr uint64_t kPrime32_1 = 0x9E3779B1;
inline constexpr uint64_t kPrime32_2 = 0x85EBCA77;
inline constexpr uint64_t kPrime32_3 = 0xC2B2AE3D;
inline constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87;
inline constexpr uint64_t kPrime64_2 = 0xC2B2AE3D27D4EB4F;
inline constexpr uint64_t kPrime64_3 = 0x165667B19E3779F9;
inline constexpr uint64_t kPrime64_4 = 0x85EBCA77C2B2AE63;
inline constexpr uint64_t kPrime64_5 = 0x27D4EB2F165667C5;

// The format's 192 bytes of key material, as little-endian words.
TH_KERNEL_TABLE uint64_t kSecret[24] = {
    // clang-format off
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
    // clang-format on
};

// Where in the secret the keys of the long form begin.
inline constexpr uint32_t kScrambleKeys = 128;
inline constexpr uint32_t kLastStripeKeys = 121;
inline constexpr uint32_t kLowKeys = 11;
inline constexpr uint32_t kHighKeys = 117;

// Eight bytes of the secret from any offset.
TH_KERNEL uint64_t Secret(uint32_t offset) {
  const uint32_t skipped = offset % 8;
  const uint64_t low = kSecret[offset / 8];
  if (skipped == 0) return low;
  return low >> (8 * skipped) | kSecret[offset / 8 + 1] << (64 - 8 * skipped);
}

TH_KERNEL Checksum128 Multiply(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
  return {a * b, __umul64hi(a, b)};
#else
  __extension__ using Wide = unsigned __int128;
  const Wide product = Wide{a} * b;
  return {static_cast<uint64_t>(product), static_cast<uint64_t>(product >> 64)};
#endif
}

TH_KERNEL uint64_t MultiplyAndFold(uint64_t a, uint64_t b) {
  const Checksum128 product = Multiply(a, b);
  return product.low ^ product.high;
}

TH_KERNEL uint32_t SwapBytes(uint32_t x) {
  return x << 24 | (x & 0xff00) << 8 | (x >> 8 & 0xff00) | x >> 24;
}

TH_KERNEL uint64_t SwapBytes(uint64_t x) {
  return uint64_t{SwapBytes(static_cast<uint32_t>(x))} << 32 |
         SwapBytes(static_cast<uint32_t>(x >> 32));
}

TH_KERNEL uint64_t Avalanche(uint64_t x) {
  x ^= x >> 37;
  x *= 0x165667919E3779F9;
  return x ^ x >> 32;
}

// The one of the 64-bit hash, which the shortest inputs take.
TH_KERNEL uint64_t AvalancheOfShortest(uint64_t x) {
  x ^= x >> 33;
  x *= kPrime64_2;
  x ^= x >> 29;
  x *= kPrime64_3;
  return x ^ x >> 32;
}

// ---- 0 to 240 bytes, by one lane ----

template <typename Warp>
struct ShortInput {
  const Warp& warp;
  uint64_t address;
  uint32_t bytes;

  TH_KERNEL uint64_t Word(uint32_t offset) const {
    return ReadWord(warp, address + offset, {address, address + bytes});
  }
  TH_KERNEL uint64_t Mix16(uint32_t offset, uint32_t keys) const {
    return MultiplyAndFold(Word(offset) ^ Secret(keys), Word(offset + 8) ^ Secret(keys + 8));
  }
  // Mixes the 16 bytes at `a` and the 16 at `b` into `sum`.
  TH_KERNEL void Mix32(uint32_t a, uint32_t b, uint32_t keys, Checksum128* checksum) const {
    checksum->low += Mix16(a, keys);
    checksum->low ^= Word(b) + Word(b + 8);
    checksum->high += Mix16(b, keys + 16);
    checksum->high ^= Word(a) + Word(a + 8);
  }
};

TH_KERNEL Checksum128 OfNothing() {
  return {AvalancheOfShortest(Secret(64) ^ Secret(72)),
          AvalancheOfShortest(Secret(80) ^ Secret(88))};
}

template <typename Warp>
TH_KERNEL Checksum128 Of1To3(const ShortInput<Warp>& in) {
  const auto byte = [&](uint32_t offset) {
    return uint32_t{in.warp.template Read<uint8_t>(in.address + offset)};
  };
  const uint32_t low =
      byte(0) << 16 | byte(in.bytes / 2) << 24 | byte(in.bytes - 1) | in.bytes << 8;
  const uint32_t swapped = SwapBytes(low);
  const uint32_t high = swapped << 13 | swapped >> 19;
  const uint64_t low_key = (Secret(0) & 0xffffffff) ^ Secret(0) >> 32;
  const uint64_t high_key = (Secret(8) & 0xffffffff) ^ Secret(8) >> 32;
  return {AvalancheOfShortest(low ^ low_key), AvalancheOfShortest(high ^ high_key)};
}

template <typename Warp>
TH_KERNEL Checksum128 Of4To8(const ShortInput<Warp>& in) {
  const uint64_t low = ReadHalfWord(in.warp, in.address);
  const uint64_t high = ReadHalfWord(in.warp, in.address + in.bytes - 4);
  const uint64_t keyed = (low + (high << 32)) ^ Secret(16) ^ Secret(24);
  Checksum128 checksum = Multiply(keyed, kPrime64_1 + (in.bytes << 2));
  checksum.high += checksum.low << 1;
  checksum.low ^= checksum.high >> 3;
  checksum.low ^= checksum.low >> 35;
  checksum.low *= 0x9FB21C651E98DF25;
  checksum.low ^= checksum.low >> 28;
  checksum.high = Avalanche(checksum.high);
  return checksum;
}

template <typename Warp>
TH_KERNEL Checksum128 Of9To16(const ShortInput<Warp>& in) {
  const uint64_t low = in.Word(0);
  uint64_t high = in.Word(in.bytes - 8);
  Checksum128 checksum = Multiply(low ^ high ^ Secret(32) ^ Secret(40), kPrime64_1);
  checksum.low += uint64_t{in.bytes - 1} << 54;
  high ^= Secret(48) ^ Secret(56);
  checksum.high += high + (high & 0xffffffff) * (kPrime32_2 - 1);
  checksum.low ^= SwapBytes(checksum.high);
  Checksum128 result = Multiply(checksum.low, kPrime64_2);
  result.high += checksum.high * kPrime64_2;
  return {Avalanche(result.low), Avalanche(result.high)};
}

TH_KERNEL Checksum128 EndOfMiddle(Checksum128 checksum, uint32_t bytes) {
  const uint64_t low = checksum.low + checksum.high;
  const uint64_t high = checksum.low * kPrime64_1 + checksum.high * kPrime64_4 + bytes * kPrime64_2;
  return {Avalanche(low), 0 - Avalanche(high)};
}

template <typename Warp>
TH_KERNEL Checksum128 Of17To128(const ShortInput<Warp>& in) {
  Checksum128 checksum = {in.bytes * kPrime64_1, 0};
  for (uint32_t i = (in.bytes - 1) / 32; i > 0; --i) {
    in.Mix32(16 * i, in.bytes - 16 * (i + 1), 32 * i, &checksum);
  }
  in.Mix32(0, in.bytes - 16, 0, &checksum);
  return EndOfMiddle(checksum, in.bytes);
}

template <typename Warp>
TH_KERNEL Checksum128 Of129To240(const ShortInput<Warp>& in) {
  Checksum128 checksum = {in.bytes * kPrime64_1, 0};
  for (uint32_t at = 0; at < 128; at += 32) in.Mix32(at, at + 16, at, &checksum);
  checksum = {Avalanche(checksum.low), Avalanche(checksum.high)};
  for (uint32_t at = 128; at + 32 <= in.bytes; at += 32) {
    in.Mix32(at, at + 16, 3 + at - 128, &checksum);
  }
  in.Mix32(in.bytes - 16, in.bytes - 32, 103, &checksum);
  return EndOfMiddle(checksum, in.bytes);
}

template <typename Warp>
TH_KERNEL Checksum128 OfShort(const ShortInput<Warp>& in) {
  if (in.bytes == 0) return OfNothing();
  if (in.bytes <= 3) return Of1To3(in);
  if (in.bytes <= 8) return Of4To8(in);
  if (in.bytes <= 16) return Of9To16(in);
  if (in.bytes <= 128) return Of17To128(in);
  return Of129To240(in);
}

// ---- longer inputs, by all lanes ----
// A stripe is four columns of two words. Within a block the stripes' shares of a column are only
// added up, so lanes take them in any order.

// Returns what 16 bytes of a stripe add to the two accumulators of their column.
TH_KERNEL Pair Share(Pair words, Pair keys) {
  const uint64_t even = words.even ^ keys.even;
  const uint64_t odd = words.odd ^ keys.odd;
  return {words.odd + (even & 0xffffffff) * (even >> 32),
          words.even + (odd & 0xffffffff) * (odd >> 32)};
}

TH_KERNEL Pair Add(Pair a, Pair b) { return {a.even + b.even, a.odd + b.odd}; }

TH_KERNEL Pair FirstAccumulators(uint32_t column) {
  switch (column) {
    case 0:
      return {kPrime32_3, kPrime64_1};
    case 1:
      return {kPrime64_2, kPrime64_3};
    case 2:
      return {kPrime64_4, kPrime32_2};
    default:
      return {kPrime64_5, kPrime32_1};
  }
}

TH_KERNEL Pair Keys(uint32_t offset) { return {Secret(offset), Secret(offset + 8)}; }

TH_KERNEL Pair Scramble(Pair accumulators, Pair keys) {
  const auto scramble = [](uint64_t x, uint64_t key) { return (x ^ x >> 47 ^ key) * kPrime32_1; };
  return {scramble(accumulators.even, keys.even), scramble(accumulators.odd, keys.odd)};
}

// A column's share of one half of the result.
TH_KERNEL uint64_t Merge(Pair accumulators, Pair keys) {
  return MultiplyAndFold(accumulators.even ^ keys.even, accumulators.odd ^ keys.odd);
}

}  // namespace th::kernels::xxh3

#endif  // TH_MEMORY_CUDA_KERNELS_XXH3_H_
