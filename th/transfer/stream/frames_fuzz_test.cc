#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <variant>

#include "testing/fuzz/fuzz_target.h"
#include "th/transfer/stream/frames.h"

namespace th::stream {
namespace {

// More frames than this in one input are looked at in part only.
constexpr int kMaxFrames = 64;

// A frame that was accepted keeps its meaning when it is sent on.
void CheckRoundTrip(const Frame& frame) {
  const std::string again = std::visit(
      [](const auto& value) -> std::string {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, Skipped> || std::is_same_v<T, SegmentHeader>) {
          return "";
        } else {
          return Encode(value);
        }
      },
      frame);
  if (again.empty()) return;
  FrameParser parser;
  parser.Append(again);
  const absl::StatusOr<std::optional<Frame>> parsed = parser.Next();
  FUZZ_CHECK(parsed.ok() && parsed->has_value());
  FUZZ_CHECK((*parsed)->index() == frame.index());
}

void ParseAll(absl::string_view input, size_t chunk) {
  FrameParser parser;
  int frames = 0;
  for (size_t at = 0; at < input.size() && frames < kMaxFrames; at += chunk) {
    parser.Append(input.substr(at, chunk));
    while (true) {
      const absl::StatusOr<std::optional<Frame>> frame = parser.Next();
      if (!frame.ok()) return;
      if (!frame->has_value()) break;
      CheckRoundTrip(**frame);
      if (const auto* ask = std::get_if<Ask>(&**frame)) FUZZ_CHECK(!ask->range.empty());
      if (++frames >= kMaxFrames) return;
    }
  }
}

// Decodes as a reader does: a header, then the body that it names, Located among them.
void DecodeAll(absl::string_view input) {
  for (int frames = 0; input.size() >= kFrameHeaderBytes && frames < kMaxFrames; ++frames) {
    RawHeader raw;
    std::memcpy(raw.data(), input.data(), raw.size());
    const absl::StatusOr<FrameHeader> header = DecodeHeader(raw);
    if (!header.ok() || header->type == FrameType::kSegment) return;
    input.remove_prefix(kFrameHeaderBytes);
    if (input.size() < header->body_bytes) return;
    const absl::StatusOr<Frame> frame = DecodeFrame(*header, input.substr(0, header->body_bytes));
    input.remove_prefix(header->body_bytes);
    if (!frame.ok()) return;
    const auto* located = std::get_if<Located>(&*frame);
    if (located == nullptr) continue;
    FUZZ_CHECK(located->pieces.size() <= kMaxLocatedPieces);
    const std::string again = Encode(*located);
    std::memcpy(raw.data(), again.data(), raw.size());
    const absl::StatusOr<Frame> decoded =
        DecodeFrame(*DecodeHeader(raw), absl::string_view(again).substr(kFrameHeaderBytes));
    FUZZ_CHECK(decoded.ok() && std::get<Located>(*decoded).pieces == located->pieces);
  }
}

}  // namespace
}  // namespace th::stream

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input = th::testing::AsText(data, size);
  th::stream::ParseAll(input, size == 0 ? 1 : size);
  th::stream::ParseAll(input, 7);
  th::stream::DecodeAll(input);
  return 0;
}
