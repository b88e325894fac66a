// The sum of a leaf by one warp, and of many leaves by many warps. Equal to SumOfLeaf of
// th/weights/checksum.h.
//
// Lane i of 32 takes column i % 4 of the stripes i / 4 and i / 4 + 8 of each block; a block's
// shares are added up over the lanes of a column, after which each lane has its column's
// accumulators.
#ifndef TH_MEMORY_CUDA_KERNELS_LEAF_CHECKSUM_H_
#define TH_MEMORY_CUDA_KERNELS_LEAF_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

#include "th/memory/cuda/kernels/arguments.h"
#include "th/memory/cuda/kernels/execution_space.h"
#include "th/memory/cuda/kernels/words.h"
#include "th/memory/cuda/kernels/xxh3.h"

namespace th::kernels {

inline constexpr uint32_t kColumns = 4;
inline constexpr uint32_t kStripesAtOnce = kWarpLanes / kColumns;
inline constexpr uint32_t kSharesPerBlock = xxh3::kStripesPerBlock / kStripesAtOnce;
// A leaf's bytes in reads of 16 by each lane.
inline constexpr uint32_t kReadsPerLeaf = kLeafBytes / (kWarpLanes * sizeof(Pair));

TH_KERNEL uint32_t ColumnOf(uint32_t lane) { return lane % kColumns; }
TH_KERNEL uint32_t StripeOf(uint32_t lane) { return lane / kColumns; }

// The keys that a lane needs for every leaf.
struct LaneKeys {
  Pair stripes[kSharesPerBlock];
  Pair scramble;
  Pair last_stripe;
  Pair low;
  Pair high;
};

TH_KERNEL LaneKeys KeysOf(uint32_t lane) {
  const uint32_t column = 16 * ColumnOf(lane);
  LaneKeys keys;
  for (uint32_t i = 0; i < kSharesPerBlock; ++i) {
    keys.stripes[i] = xxh3::Keys(8 * (StripeOf(lane) + i * kStripesAtOnce) + column);
  }
  keys.scramble = xxh3::Keys(xxh3::kScrambleKeys + column);
  keys.last_stripe = xxh3::Keys(xxh3::kLastStripeKeys + column);
  keys.low = xxh3::Keys(xxh3::kLowKeys + column);
  keys.high = xxh3::Keys(xxh3::kHighKeys + column);
  return keys;
}

template <typename Warp>
using AllKeys = typename Warp::template Lanes<LaneKeys>;
template <typename Warp>
using Accumulators = typename Warp::template Lanes<Pair>;

// Adds the shares of all lanes to the accumulators of their columns.
template <typename Warp>
TH_KERNEL void AddShares(const Warp& warp, Accumulators<Warp>& shares,
                         Accumulators<Warp>* accumulators) {
  warp.SumOverStripes(&shares);
  warp.ForEachLane([&](uint32_t lane) {
    (*accumulators)[lane] = xxh3::Add((*accumulators)[lane], shares[lane]);
  });
}

template <typename Warp>
TH_KERNEL void ScrambleAll(const Warp& warp, const AllKeys<Warp>& keys,
                           Accumulators<Warp>* accumulators) {
  warp.ForEachLane([&](uint32_t lane) {
    (*accumulators)[lane] = xxh3::Scramble((*accumulators)[lane], keys[lane].scramble);
  });
}

// The first `stripes` stripes of a block at `address`.
template <typename Warp>
TH_KERNEL void AddBlock(const Warp& warp, const AllKeys<Warp>& keys, uint64_t address,
                        uint32_t stripes, Bounds bounds, Accumulators<Warp>* accumulators) {
  Accumulators<Warp> shares;
  warp.ForEachLane([&](uint32_t lane) {
    Pair share = {0, 0};
    TH_UNROLL for (uint32_t i = 0; i < kSharesPerBlock; ++i) {
      const uint32_t stripe = StripeOf(lane) + i * kStripesAtOnce;
      if (stripe < stripes) {
        const Pair words =
            ReadPair(warp, address + stripe * xxh3::kStripeBytes + 16 * ColumnOf(lane), bounds);
        share = xxh3::Add(share, xxh3::Share(words, keys[lane].stripes[i]));
      }
    }
    shares[lane] = share;
  });
  AddShares(warp, shares, accumulators);
}

// The last 64 bytes, which may overlap the stripe before.
template <typename Warp>
TH_KERNEL void AddLastStripe(const Warp& warp, const AllKeys<Warp>& keys, Bounds bounds,
                             Accumulators<Warp>* accumulators) {
  warp.ForEachLane([&](uint32_t lane) {
    const uint64_t address = bounds.end - xxh3::kStripeBytes + 16 * ColumnOf(lane);
    const Pair words = ReadPair(warp, address, bounds);
    (*accumulators)[lane] =
        xxh3::Add((*accumulators)[lane], xxh3::Share(words, keys[lane].last_stripe));
  });
}

template <typename Warp>
TH_KERNEL Checksum128 MergeAll(const Warp& warp, const AllKeys<Warp>& keys, uint32_t bytes,
                               Accumulators<Warp>& accumulators) {
  Accumulators<Warp> halves;  // `even` for the low one, `odd` for the high one
  warp.ForEachLane([&](uint32_t lane) {
    halves[lane] = {xxh3::Merge(accumulators[lane], keys[lane].low),
                    xxh3::Merge(accumulators[lane], keys[lane].high)};
  });
  warp.SumOverColumns(&halves);
  return {xxh3::Avalanche(halves[0].even + bytes * xxh3::kPrime64_1),
          xxh3::Avalanche(halves[0].odd + ~(bytes * xxh3::kPrime64_2))};
}

// A whole leaf at a multiple of 16: all reads are under way before the first is needed.
template <typename Warp>
TH_KERNEL void AddWholeLeaf(const Warp& warp, const AllKeys<Warp>& keys, uint64_t address,
                            Accumulators<Warp>* accumulators) {
  struct Words {
    Pair of_lane[kReadsPerLeaf];
  };
  typename Warp::template Lanes<Words> words;
  warp.ForEachLane([&](uint32_t lane) {
    TH_UNROLL for (uint32_t i = 0; i < kReadsPerLeaf; ++i) {
      words[lane].of_lane[i] =
          warp.template Read<Pair>(address + (i * kWarpLanes + lane) * sizeof(Pair));
    }
  });
  TH_UNROLL for (uint32_t block = 0; block < kLeafBytes / xxh3::kBlockBytes; ++block) {
    if (block > 0) ScrambleAll(warp, keys, accumulators);
    Accumulators<Warp> shares;
    const bool is_last = block + 1 == kLeafBytes / xxh3::kBlockBytes;
    warp.ForEachLane([&](uint32_t lane) {
      const Pair* read = &words[lane].of_lane[block * kSharesPerBlock];
      shares[lane] = xxh3::Share(read[0], keys[lane].stripes[0]);
      // The leaf's last stripe has keys of its own.
      const bool last_stripe = is_last && StripeOf(lane) == kStripesAtOnce - 1;
      const Pair second = last_stripe ? keys[lane].last_stripe : keys[lane].stripes[1];
      shares[lane] = xxh3::Add(shares[lane], xxh3::Share(read[1], second));
    });
    AddShares(warp, shares, accumulators);
  }
}

// The sum of `bytes` bytes, at most kLeafBytes. Every lane has it.
template <typename Warp>
TH_KERNEL Checksum128 ChecksumLeaf(const Warp& warp, const AllKeys<Warp>& keys, uint64_t address,
                                   uint32_t bytes) {
  if (bytes <= xxh3::kShortBytes) return xxh3::OfShort<Warp>({warp, address, bytes});
  Accumulators<Warp> accumulators;
  warp.ForEachLane(
      [&](uint32_t lane) { accumulators[lane] = xxh3::FirstAccumulators(ColumnOf(lane)); });
  if (bytes == kLeafBytes && address % sizeof(Pair) == 0) {
    AddWholeLeaf(warp, keys, address, &accumulators);
    return MergeAll(warp, keys, bytes, accumulators);
  }
  const Bounds bounds = {address, address + bytes};
  const uint32_t whole_blocks = (bytes - 1) / xxh3::kBlockBytes;
  for (uint32_t block = 0; block < whole_blocks; ++block) {
    AddBlock(warp, keys, address + block * xxh3::kBlockBytes, xxh3::kStripesPerBlock, bounds,
             &accumulators);
    ScrambleAll(warp, keys, &accumulators);
  }
  const uint32_t rest = bytes - 1 - whole_blocks * xxh3::kBlockBytes;
  AddBlock(warp, keys, address + whole_blocks * xxh3::kBlockBytes, rest / xxh3::kStripeBytes,
           bounds, &accumulators);
  AddLastStripe(warp, keys, bounds, &accumulators);
  return MergeAll(warp, keys, bytes, accumulators);
}

// The run that leaf `leaf` lies in.
template <typename Warp>
TH_KERNEL LeafRun FindRun(const Warp& warp, const LeafChecksumsArguments& arguments,
                          uint64_t leaf) {
  uint64_t low = 0;
  uint64_t high = arguments.run_count;
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    const uint64_t first = warp.template Read<uint64_t>(arguments.runs + middle * sizeof(LeafRun) +
                                                        offsetof(LeafRun, first_leaf));
    if (first <= leaf) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return warp.template ReadStruct<LeafRun>(arguments.runs + low * sizeof(LeafRun));
}

// The kernel: warp `index` of `count` takes every count-th leaf.
template <typename Warp>
TH_KERNEL void ChecksumLeaves(const Warp& warp, const LeafChecksumsArguments& arguments,
                              uint64_t index, uint64_t count) {
  AllKeys<Warp> keys;
  warp.ForEachLane([&](uint32_t lane) { keys[lane] = KeysOf(lane); });
  for (uint64_t leaf = index; leaf < arguments.leaf_count; leaf += count) {
    const LeafRun run = FindRun(warp, arguments, leaf);
    const uint64_t offset = (leaf - run.first_leaf) * kLeafBytes;
    const uint64_t left = run.bytes - offset;
    const auto bytes = static_cast<uint32_t>(left < kLeafBytes ? left : kLeafBytes);
    const Checksum128 checksum = ChecksumLeaf(warp, keys, run.address + offset, bytes);
    warp.OnFirstLane([&] {
      warp.Write(arguments.checksums + leaf * sizeof(Checksum128), checksum.low);
      warp.Write(arguments.checksums + leaf * sizeof(Checksum128) + 8, checksum.high);
    });
  }
}

}  // namespace th::kernels

#endif  // TH_MEMORY_CUDA_KERNELS_LEAF_CHECKSUM_H_
