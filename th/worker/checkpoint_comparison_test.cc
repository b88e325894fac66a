#include "th/worker/checkpoint_comparison.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/memory/checkpoint_writer.h"
#include "th/weights/checksum.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::StatusIs;

struct Content {
  std::string name;
  std::string bytes;
};

CheckpointFolder Folder(const std::string& name, const std::vector<Content>& contents) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::filesystem::remove_all(path);
  std::vector<CheckpointTensor> tensors;
  for (const Content& content : contents) {
    tensors.push_back({.spec = {.name = content.name,
                                .dtype = DType::kU8,
                                .shape = {static_cast<int64_t>(content.bytes.size())},
                                .bytes = content.bytes.size()},
                       .data = content.bytes.data()});
  }
  EXPECT_OK(WriteCheckpoint(path, tensors, {}));
  absl::StatusOr<CheckpointFolder> folder = CheckpointFolder::Open(path);
  EXPECT_OK(folder);
  return *std::move(folder);
}

ChecksummedModel Checksummed(const std::vector<Content>& contents) {
  absl::StatusOr<ChecksummedModel> checksummed = ChecksumFolder(Folder("summed", contents));
  EXPECT_OK(checksummed);
  return *std::move(checksummed);
}

TEST(DifferencesTest, AreNoneBetweenEqualModels) {
  const ChecksummedModel model = Checksummed({{"a", "xx"}, {"b", "yyy"}});
  EXPECT_THAT(Differences(model, "A", model, "B"), IsEmpty());
}

TEST(DifferencesTest, NameEveryTensorThatIsMissingOrDiffers) {
  const ChecksummedModel left =
      Checksummed({{"a", "xx"}, {"b", "yyy"}, {"c", "z"}, {"shape", "12"}});
  const ChecksummedModel right =
      Checksummed({{"a", "xx"}, {"b", "yyZ"}, {"d", "z"}, {"shape", "123"}});
  EXPECT_THAT(
      Differences(left, "LEFT", right, "RIGHT"),
      ElementsAre(HasSubstr("\"b\" differs: other bytes"), HasSubstr("\"c\" is only in LEFT"),
                  HasSubstr("\"shape\" differs: U8[2] and U8[3]"),
                  HasSubstr("\"d\" is only in RIGHT")));
}

TEST(DifferencesTest, AreCutOffWithTheirNumber) {
  ChecksummedModel model;
  for (int i = 0; i < 50; ++i) model[std::to_string(i)] = {};
  const std::vector<std::string> differences = Differences(model, "A", {}, "B");
  EXPECT_THAT(differences, SizeIs(kMaxDifferences + 1));
  EXPECT_EQ(differences.back(), "and 30 more");
}

TEST(ChecksumMemoryTest, AgreesWithTheSameBytesOnDisk) {
  std::string bytes = "abc";
  Tensor tensor{TensorSpec{.name = "a", .dtype = DType::kU8, .shape = {3}, .bytes = 3}};
  tensor.data = bytes.data();
  EXPECT_THAT(Differences(ChecksumMemory({tensor}), "memory", Checksummed({{"a", "abc"}}), "disk"),
              IsEmpty());
}

class RootOfShardTest : public ::testing::Test {
 protected:
  // 10,000 bytes are three segments of 4 KiB.
  static std::string Bytes(char seed) {
    std::string bytes(10'000, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(seed + i * 31 / 7);
    return bytes;
  }
  static ShardLayout Layout(std::vector<TensorSpec> tensors) {
    absl::StatusOr<ShardLayout> layout =
        ShardLayout::Build({.tensors = std::move(tensors), .segment_bytes = kMinSegmentBytes});
    EXPECT_OK(layout);
    return *std::move(layout);
  }
  static Digest RootOf(const std::string& stream) {
    std::vector<SegmentChecksum> checksums;
    for (size_t at = 0; at < stream.size(); at += kMinSegmentBytes) {
      const std::string segment = stream.substr(at, kMinSegmentBytes);
      checksums.push_back(ChecksumBytes(segment.data(), segment.size()));
    }
    return RootOfChecksums(checksums);
  }
  static TensorSpec Part(std::string name, int64_t all, int64_t begin, int64_t count) {
    TensorSpec spec{.name = std::move(name), .dtype = DType::kU8, .shape = {count}};
    spec.global_shape = {all};
    spec.slice_begin = {begin};
    return spec;
  }
};

TEST_F(RootOfShardTest, IsThatOfTheStreamAcrossTensors) {
  const CheckpointFolder folder = Folder("root", {{"a", Bytes('a')}, {"b", Bytes('b')}});
  const ShardLayout layout = Layout({Part("a", 10'000, 0, 10'000), Part("b", 10'000, 0, 10'000)});
  ASSERT_OK_AND_ASSIGN(const Digest root, RootOfShard(folder, layout));
  EXPECT_EQ(root, RootOf(Bytes('a') + Bytes('b')));
}

TEST_F(RootOfShardTest, IsThatOfTheSliceAlone) {
  const CheckpointFolder folder = Folder("slice", {{"a", Bytes('a')}});
  ASSERT_OK_AND_ASSIGN(const Digest root,
                       RootOfShard(folder, Layout({Part("a", 10'000, 5'000, 5'000)})));
  EXPECT_EQ(root, RootOf(Bytes('a').substr(5'000)));
}

TEST_F(RootOfShardTest, ChangesWithOneByte) {
  std::string bytes = Bytes('a');
  const ShardLayout layout = Layout({Part("a", 10'000, 0, 10'000)});
  bytes[9'999] ^= 1;
  ASSERT_OK_AND_ASSIGN(const Digest root, RootOfShard(Folder("flipped", {{"a", bytes}}), layout));
  EXPECT_NE(root, RootOf(Bytes('a')));
}

TEST_F(RootOfShardTest, NamesATensorThatIsMissingOrOfAnotherShape) {
  const CheckpointFolder folder = Folder("other", {{"a", Bytes('a')}});
  EXPECT_THAT(RootOfShard(folder, Layout({Part("z", 4, 0, 4)})),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no tensor \"z\"")));
  EXPECT_THAT(RootOfShard(folder, Layout({Part("a", 4, 0, 4)})),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("U8[10000] in the folder and U8[4]")));
}

}  // namespace
}  // namespace th
