#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "testing/fuzz/fuzz_target.h"
#include "th/weights/shard_layout.h"

namespace th::testing {
namespace {

// More segments than this are looked at in part only.
constexpr uint64_t kMaxVisitedSegments = 64;

void CheckSegments(const ShardLayout& layout) {
  const uint64_t count = layout.segment_count();
  FUZZ_CHECK(layout.BytesOf(SegmentIndex(0), SegmentIndex(count)) == layout.bytes());
  for (uint64_t i = 0; i < std::min(count, kMaxVisitedSegments); ++i) {
    uint64_t bytes = 0;
    for (const SegmentPiece& piece : layout.PiecesOf(SegmentIndex(i))) {
      FUZZ_CHECK(piece.bytes > 0);
      FUZZ_CHECK(piece.offset + piece.bytes <= layout.storages()[piece.storage].bytes);
      bytes += piece.bytes;
    }
    FUZZ_CHECK(bytes == layout.SegmentLength(SegmentIndex(i)));
  }
}

}  // namespace
}  // namespace th::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input = th::testing::AsText(data, size);
  const absl::StatusOr<th::ShardLayout> layout = th::ShardLayout::Decode(input);
  if (!layout.ok()) {
    FUZZ_CHECK(layout.status().code() == absl::StatusCode::kInvalidArgument);
    return 0;
  }
  FUZZ_CHECK(layout->Encode() == input);
  th::testing::CheckSegments(*layout);
  return 0;
}
