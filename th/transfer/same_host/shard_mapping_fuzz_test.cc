#include <string>

#include "testing/fuzz/fuzz_target.h"
#include "th/transfer/same_host/shard_mapping.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using th::same_host::ShardOffer;
  const auto offer = ShardOffer::Decode(th::testing::AsText(data, size));
  if (!offer.ok()) return 0;
  uint64_t end = 0;
  for (const ShardOffer::Run& run : offer->runs) {
    FUZZ_CHECK(run.range < offer->ranges.size());
    FUZZ_CHECK(run.offset + run.bytes <= offer->ranges[run.range].memory.bytes);
    FUZZ_CHECK(run.stream_offset >= end);
    end = run.stream_offset + run.bytes;
  }
  // An offer that was accepted keeps its meaning when it is sent on.
  const std::string again = offer->Encode();
  FUZZ_CHECK(ShardOffer::Decode(again)->Encode() == again);
  return 0;
}
