#include "th/transfer/stream/frames.h"

#include <cstring>
#include <string>
#include <variant>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/weights/shard_layout.h"

namespace th::stream {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

// Parses the bytes of one frame.
template <typename T>
T RoundTrip(const std::string& bytes) {
  FrameParser parser;
  parser.Append(bytes);
  absl::StatusOr<std::optional<Frame>> frame = parser.Next();
  EXPECT_OK(frame.status());
  EXPECT_TRUE(frame.ok() && frame->has_value() && std::holds_alternative<T>(**frame));
  return std::get<T>(**frame);
}

RawHeader RawOf(const std::string& bytes) {
  RawHeader raw;
  std::memcpy(raw.data(), bytes.data(), raw.size());
  return raw;
}

TEST(FramesTest, HelloCarriesVersionsAndFeatures) {
  const Hello hello{{.min_version = 2, .max_version = 9, .features = 77, .software = "x 1"}};
  const Hello got = RoundTrip<Hello>(Encode(hello));
  EXPECT_EQ(got.hello.min_version, 2);
  EXPECT_EQ(got.hello.max_version, 9);
  EXPECT_EQ(got.hello.features, 77);
  EXPECT_EQ(got.hello.software, "x 1");
}

TEST(FramesTest, OpenCarriesCapabilityAndLayout) {
  Open open{.joins = true, .generation = BufferGeneration(12)};
  open.nonce.fill(3);
  open.capability.claims = {.reader = WorkerId(1),
                            .source = {WorkerId(2), BufferId(3)},
                            .version = VersionSequence(4),
                            .epoch = Epoch(5),
                            .assignment = AssignmentId(6)};
  open.capability.mac.fill(9);
  open.layout.bytes.fill(8);
  const Open got = RoundTrip<Open>(Encode(open));
  EXPECT_TRUE(got.joins);
  EXPECT_EQ(got.nonce, open.nonce);
  EXPECT_EQ(got.capability, open.capability);
  EXPECT_EQ(got.generation, open.generation);
  EXPECT_EQ(got.layout, open.layout);
}

TEST(FramesTest, RefusedCarriesCodeAndWords) {
  const Refused got = RoundTrip<Refused>(Encode(Refused{absl::PermissionDeniedError("no")}));
  EXPECT_EQ(got.status, absl::PermissionDeniedError("no"));
}

TEST(FramesTest, AskCarriesItsRange) {
  const SegmentRange range{SegmentIndex(3), SegmentIndex(1'000'000'000'000)};
  EXPECT_EQ(RoundTrip<Ask>(Encode(Ask{range})).range, range);
}

TEST(FramesTest, AdmittedSaysWhereTheControlBlockIsWhereMemoryIsRead) {
  const Admitted plain = RoundTrip<Admitted>(Encode(Admitted{BufferGeneration(5), std::nullopt}));
  EXPECT_EQ(plain.generation, BufferGeneration(5));
  EXPECT_FALSE(plain.control.has_value());
  const Admitted read = RoundTrip<Admitted>(
      Encode(Admitted{BufferGeneration(5),
                      ControlPlace{.address = 0x7f0012345678, .life = ~0ull, .key = 0xfffffffe}}));
  ASSERT_TRUE(read.control.has_value());
  EXPECT_EQ(read.control->address, 0x7f0012345678);
  EXPECT_EQ(read.control->life, ~0ull);
  EXPECT_EQ(read.control->key, 0xfffffffe);
}

TEST(FramesTest, MemoryAndLandedCarryWhatTheySay) {
  const std::string words(kMaxControlBodyBytes, '\xff');
  EXPECT_EQ(RoundTrip<Memory>(Encode(Memory{words})).words, words);
  const Landed landed = RoundTrip<Landed>(Encode(Landed{SegmentIndex(7), 262'144}));
  EXPECT_EQ(landed.segment, SegmentIndex(7));
  EXPECT_EQ(landed.bytes, 262'144);
}

// Header and body as a reader takes them: the parser of requests refuses both.
absl::StatusOr<Frame> DecodeWhole(const std::string& bytes) {
  absl::StatusOr<FrameHeader> header = DecodeHeader(RawOf(bytes));
  if (!header.ok()) return header.status();
  return DecodeFrame(*header, absl::string_view(bytes).substr(kFrameHeaderBytes));
}

TEST(FramesTest, LocatedCarriesAsManyPiecesAsASegmentMayHaveHere) {
  Located located{.segment = SegmentIndex(3),
                  .checksum = absl::MakeUint128(5, 6),
                  .generation = BufferGeneration(7),
                  .pieces = {}};
  for (uint64_t i = 0; i < kMaxLocatedPieces; ++i)
    located.pieces.push_back({~i, static_cast<uint32_t>(i), ~static_cast<uint32_t>(i)});
  const auto got = DecodeWhole(Encode(located));
  ASSERT_OK(got.status());
  const auto& decoded = std::get<Located>(*got);
  EXPECT_EQ(decoded.segment, located.segment);
  EXPECT_EQ(decoded.checksum, located.checksum);
  EXPECT_EQ(decoded.generation, located.generation);
  EXPECT_EQ(decoded.pieces, located.pieces);
  located.pieces.push_back({1, 1});
  EXPECT_THAT(DecodeWhole(Encode(located)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a body of")));
}

TEST(FramesTest, LocatedThatIsCutOrLongerThanASegmentIsRefused) {
  const std::string whole = Encode(Located{.segment = SegmentIndex(3), .pieces = {{64, 9}}});
  RawHeader raw = RawOf(whole);
  raw[4] = 15;  // the length of the body
  absl::StatusOr<FrameHeader> header = DecodeHeader(raw);
  ASSERT_OK(header.status());
  EXPECT_THAT(DecodeFrame(*header, whole.substr(kFrameHeaderBytes, 15)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("within a piece")));
  EXPECT_THAT(DecodeWhole(Encode(Located{.pieces = {{64, kMaxSegmentBytes + 1}}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("longer than any segment")));
}

TEST(FramesTest, PlacesInMemoryAreNoRequest) {
  FrameParser parser;
  parser.Append(Encode(Located{.segment = SegmentIndex(3), .pieces = {{64, 9}}}));
  EXPECT_THAT(parser.Next(), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(FramesTest, SumsCarryTheListOfARange) {
  const SegmentRange range{SegmentIndex(3), SegmentIndex(1'000'000'000'000)};
  EXPECT_EQ(RoundTrip<AskChecksums>(Encode(AskChecksums{range})).range, range);
  Checksums checksums{.first = SegmentIndex(3), .generation = BufferGeneration(7)};
  for (uint64_t i = 0; i < kMaxChecksumsInFrame; ++i)
    checksums.checksums.push_back(absl::MakeUint128(~i, i));
  const Checksums got = RoundTrip<Checksums>(Encode(checksums));
  EXPECT_EQ(got.first, checksums.first);
  EXPECT_EQ(got.generation, checksums.generation);
  EXPECT_EQ(got.checksums, checksums.checksums);
}

TEST(FramesTest, SumsThatAreNotWhatTheySayAreRefused) {
  const Checksums checksums{.first = SegmentIndex(3), .checksums = {1, 2}};
  for (const uint8_t count : {0, 3}) {
    std::string bytes = Encode(checksums);
    bytes[16] = static_cast<char>(count);
    FrameParser parser;
    parser.Append(bytes);
    EXPECT_FALSE(parser.Next().ok()) << int{count};
  }
}

TEST(FramesTest, SegmentHeaderCarriesSumAndGeneration) {
  const SegmentHeader header{SegmentIndex(5), 4096,
                             absl::MakeUint128(0xfedcba9876543210, 0x123456789abcdef0),
                             BufferGeneration(7)};
  ASSERT_OK_AND_ASSIGN(const FrameHeader decoded, DecodeHeader(EncodeSegmentHeader(header)));
  ASSERT_OK_AND_ASSIGN(const Frame frame, DecodeFrame(decoded, ""));
  const SegmentHeader& got = std::get<SegmentHeader>(frame);
  EXPECT_EQ(got.segment, header.segment);
  EXPECT_EQ(got.bytes, header.bytes);
  EXPECT_EQ(got.checksum, header.checksum);
  EXPECT_EQ(got.generation, header.generation);
}

TEST(FramesTest, CloseCarriesItsReason) {
  EXPECT_EQ(RoundTrip<Close>(Encode(Close{"enough"})).why, "enough");
}

TEST(FramesTest, LongTextsAreCut) {
  EXPECT_EQ(RoundTrip<Close>(Encode(Close{std::string(5000, 'x')})).why.size(), kMaxTextBytes);
}

TEST(FramesTest, FramesThatArriveByteByByteAreWholeInTheEnd) {
  const std::string bytes = Encode(Hello{OwnHello()}) + Encode(Close{"bye"});
  FrameParser parser;
  std::vector<Frame> frames;
  for (const char byte : bytes) {
    parser.Append(absl::string_view(&byte, 1));
    ASSERT_OK_AND_ASSIGN(std::optional<Frame> frame, parser.Next());
    if (frame.has_value()) frames.push_back(*frame);
  }
  ASSERT_EQ(frames.size(), 2);
  EXPECT_TRUE(std::holds_alternative<Hello>(frames[0]));
  EXPECT_EQ(std::get<Close>(frames[1]).why, "bye");
}

// A peer of a later version: a longer Open, and a frame that we do not know.
TEST(FramesTest, WhatALaterVersionAddsIsBorne) {
  std::string open = Encode(Open{});
  open += "more";
  open[4] = static_cast<char>(open.size() - kFrameHeaderBytes);
  RoundTrip<Open>(open);
  std::string unknown = Encode(Close{"later"});
  unknown[0] = 99;
  unknown[1] = kMayBeSkipped;
  RoundTrip<Skipped>(unknown);
}

TEST(FramesTest, FinishMayBeSkippedByASourceThatDoesNotKnowIt) {
  const std::string finish = Encode(Finish{});
  EXPECT_EQ(finish[1], kMayBeSkipped);
  RoundTrip<Finish>(finish);
}

struct HostileCase {
  const char* name;
  std::string bytes;
  const char* message;
};
class HostileFrameTest : public ::testing::TestWithParam<HostileCase> {};

TEST_P(HostileFrameTest, IsRefusedWithAMessage) {
  FrameParser parser;
  parser.Append(GetParam().bytes);
  EXPECT_THAT(parser.Next().status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(GetParam().message)));
}

std::string With(std::string frame, size_t at, uint8_t byte) {
  frame[at] = static_cast<char>(byte);
  return frame;
}
std::string SegmentBytes(uint32_t bytes) {
  const RawHeader raw = EncodeSegmentHeader({SegmentIndex(0), bytes, 0, BufferGeneration(0)});
  return std::string(reinterpret_cast<const char*>(raw.data()), raw.size());
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileFrameTest,
    ::testing::Values(
        HostileCase{"unknown_type", With(Encode(Alive{}), 0, 99), "unknown type 99"},
        HostileCase{"type_zero", std::string(kFrameHeaderBytes, '\0'), "unknown type 0"},
        HostileCase{"reserved_bytes", With(Encode(Alive{}), 2, 1), "reserved"},
        HostileCase{"huge_control_body", With(Encode(Alive{}), 6, 1), "a body of 65536 bytes"},
        HostileCase{"huge_unknown_body", With(With(With(Encode(Alive{}), 0, 99), 1, 1), 7, 1),
                    "a body of 16777216 bytes"},
        HostileCase{"wrong_magic", With(Encode(Hello{}), 8, 0), "does not speak"},
        HostileCase{"http", "GET / HTTP/1.1\r\nHost: example.com\r\nAccept: */*\r\n\r\n",
                    "bad data frame"},
        HostileCase{"short_open", With(Encode(Open{}), 4, 20), "Open is too short"},
        HostileCase{"empty_ask", Encode(Ask{{SegmentIndex(4), SegmentIndex(4)}}), "empty range"},
        HostileCase{"backward_ask", Encode(Ask{{SegmentIndex(5), SegmentIndex(4)}}), "empty range"},
        HostileCase{"segment", SegmentBytes(10), "only requests"},
        HostileCase{"huge_segment", SegmentBytes(kMaxSegmentBytes + 1), "a body of"}),
    [](const auto& info) { return info.param.name; });

TEST(FramesTest, RefusalWithACodeThatIsNoErrorIsStillARefusal) {
  std::string frame = Encode(Refused{absl::InternalError("x")});
  for (const uint8_t code : {0, 17, 200}) {
    EXPECT_EQ(RoundTrip<Refused>(With(frame, 8, code)).status.code(), absl::StatusCode::kUnknown);
  }
}

TEST(FramesTest, HeaderEncodesToTheSameBytesAgain) {
  const RawHeader raw = RawOf(Encode(Ask{{SegmentIndex(1), SegmentIndex(2)}}));
  ASSERT_OK_AND_ASSIGN(const FrameHeader header, DecodeHeader(raw));
  EXPECT_EQ(EncodeHeader(header), raw);
}

}  // namespace
}  // namespace th::stream
