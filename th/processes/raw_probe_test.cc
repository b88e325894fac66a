#include "th/processes/raw_probe.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::IsEmpty;
using testing::StatusIs;

MemoryStream StreamOf(std::vector<std::string>& parts) {
  std::vector<iovec> pieces;
  for (std::string& part : parts)
    pieces.push_back({.iov_base = part.data(), .iov_len = part.size()});
  return MemoryStream(std::move(pieces));
}

std::string TextOf(const std::vector<iovec>& pieces) {
  std::string text;
  for (const iovec& piece : pieces) text.append(static_cast<char*>(piece.iov_base), piece.iov_len);
  return text;
}

TEST(MemoryStreamTest, GivesAnyRangeOfItsPieces) {
  std::vector<std::string> parts = {"abc", "", "de", "f"};
  const MemoryStream stream = StreamOf(parts);
  EXPECT_EQ(stream.bytes(), 6u);
  const std::string all = "abcdef";
  for (uint64_t begin = 0; begin <= 6; ++begin) {
    for (uint64_t end = begin; end <= 6; ++end) {
      EXPECT_EQ(TextOf(stream.Range(begin, end)), all.substr(begin, end - begin))
          << begin << " " << end;
    }
  }
  EXPECT_THAT(MemoryStream({}).Range(0, 0), IsEmpty());
}

// Larger than socket buffers and a call, in uneven pieces.
std::vector<std::string> Pieces(char fill) {
  std::vector<std::string> pieces;
  for (int i = 0; i < 700; ++i)
    pieces.emplace_back(1000 + 31 * i, fill == 0 ? static_cast<char>(i) : fill);
  return pieces;
}

class RawProbeTest : public ::testing::TestWithParam<ProbeShape> {};

TEST_P(RawProbeTest, EveryReaderReceivesAllBytesInTheirPlace) {
  std::vector<std::string> content = Pieces(0);
  const MemoryStream source = StreamOf(content);
  ASSERT_OK_AND_ASSIGN(auto sender, RawProbeSender::Start(&source, GetParam()));
  std::vector<std::vector<std::string>> received(GetParam().readers, Pieces('?'));
  std::vector<std::thread> readers;
  for (auto& to : received) {
    readers.emplace_back([&to, port = sender->port()] {
      EXPECT_OK(ReadRawProbe(StreamOf(to), port, GetParam().connections));
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_OK(sender->Await());
  for (const auto& to : received) EXPECT_EQ(to, content);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RawProbeTest,
                         ::testing::Values(ProbeShape{1, 1}, ProbeShape{1, 3}, ProbeShape{3, 2}));

TEST(RawProbeTest, RefusesAShapeOfNothingOrTooMuch) {
  const MemoryStream nothing({});
  for (const ProbeShape shape : {ProbeShape{0, 1}, ProbeShape{1, 0}, ProbeShape{100, 100}}) {
    EXPECT_THAT(RawProbeSender::Start(&nothing, shape),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(ReadRawProbe(nothing, 1, 0), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(RawProbeTest, EndsWhenNobodyCame) {
  const MemoryStream nothing({});
  ASSERT_OK_AND_ASSIGN(auto sender, RawProbeSender::Start(&nothing, {}));
  sender.reset();
}

TEST(RawProbeTest, AReaderWithoutASenderIsToldSo) {
  const MemoryStream nothing({});
  ASSERT_OK_AND_ASSIGN(auto sender, RawProbeSender::Start(&nothing, {}));
  const uint16_t port = sender->port();
  sender.reset();
  EXPECT_THAT(ReadRawProbe(nothing, port, 1), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace th
