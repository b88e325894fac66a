#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/memory/checkpoint_folder.h"
#include "th/memory/checkpoint_writer.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/checkpoint-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  std::string In(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  void WriteText(const std::string& name, const std::string& text) const {
    std::ofstream(In(name), std::ios::binary) << text;
  }
  // The entries of the folder that are left.
  std::vector<std::string> Left() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }
  std::string folder_;
};

CheckpointTensor Floats(const std::string& name, const std::vector<float>& values) {
  CheckpointTensor tensor;
  tensor.spec.name = name;
  tensor.spec.dtype = DType::kF32;
  tensor.spec.shape = {static_cast<int64_t>(values.size())};
  tensor.spec.bytes = values.size() * sizeof(float);
  tensor.data = values.data();
  return tensor;
}

TEST_F(CheckpointTest, WhatAKilledProcessLeftIsRemoved) {
  const std::string left = In("m.unfinished-a1B2c3");
  std::filesystem::create_directories(left + "/more");
  EXPECT_TRUE(RemoveIfUnfinished(left));
  EXPECT_FALSE(std::filesystem::exists(left));
}

TEST_F(CheckpointTest, WhatIsBeingWrittenOrIsNoLeftoverStays) {
  const std::vector<float> a(1000, 1);
  int seen = 0;
  const auto look = [&] {
    for (const std::string& name : Left()) {
      ++seen;
      EXPECT_FALSE(RemoveIfUnfinished(In(name))) << name;
    }
    return false;
  };
  ASSERT_OK(WriteCheckpoint(In("m"), {Floats("a", a)}, {.cancelled = look}));
  EXPECT_GT(seen, 0);
  EXPECT_FALSE(RemoveIfUnfinished(In("m")));
  std::filesystem::create_directory(In("m.unfinished-toolong"));
  EXPECT_FALSE(RemoveIfUnfinished(In("m.unfinished-toolong")));
  EXPECT_OK(CheckpointFolder::Open(In("m")));
}

TEST_F(CheckpointTest, OneFileReadsBack) {
  const std::vector<float> a = {1, 2, 3};
  const std::vector<float> b = {4};
  ASSERT_OK(WriteCheckpoint(In("m"), {Floats("b", b), Floats("a", a)}, {}));
  ASSERT_OK_AND_ASSIGN(const CheckpointFolder folder, CheckpointFolder::Open(In("m")));
  ASSERT_EQ(folder.tensors().size(), 2u);
  EXPECT_EQ(folder.tensors()[0].name, "a");
  EXPECT_EQ(folder.bytes(), 16u);
  std::vector<float> read(3);
  ASSERT_OK(folder.Read("a", read.data()));
  EXPECT_EQ(read, a);
}

TEST_F(CheckpointTest, SeveralFilesReadBackThroughTheirIndex) {
  const std::vector<float> a = {1, 2, 3}, b = {4, 5}, c = {6};
  ASSERT_OK(WriteCheckpoint(In("m"), {Floats("a", a), Floats("b", b), Floats("c", c)},
                            {.max_file_bytes = 12}));
  EXPECT_TRUE(std::filesystem::exists(In("m/model-00002-of-00002.safetensors")));
  ASSERT_OK_AND_ASSIGN(const CheckpointFolder folder, CheckpointFolder::Open(In("m")));
  EXPECT_EQ(folder.tensors().size(), 3u);
  std::vector<float> read(2);
  ASSERT_OK(folder.Read("b", read.data()));
  EXPECT_EQ(read, b);
}

TEST_F(CheckpointTest, TiedNamesComeBackAsAliases) {
  const std::vector<float> a = {1, 2, 3};
  CheckpointTensor tied = Floats("tied", a);
  tied.spec.alias_of = "a";
  ASSERT_OK(WriteCheckpoint(In("m"), {Floats("a", a), tied}, {}));
  ASSERT_OK_AND_ASSIGN(const CheckpointFolder folder, CheckpointFolder::Open(In("m")));
  ASSERT_EQ(folder.tensors().size(), 2u);
  EXPECT_EQ(folder.tensors()[1].alias_of, "a");
  EXPECT_EQ(folder.bytes(), 12u);
  std::vector<float> read(3);
  ASSERT_OK(folder.Read("tied", read.data()));
  EXPECT_EQ(read, a);
}

TEST_F(CheckpointTest, EmptyExistingFolderIsReplaced) {
  const std::vector<float> a = {1};
  std::filesystem::create_directory(In("m"));
  EXPECT_OK(WriteCheckpoint(In("m") + "/", {Floats("a", a)}, {}));
  EXPECT_TRUE(std::filesystem::exists(In("m/model.safetensors")));
}

TEST_F(CheckpointTest, FolderWithContentIsRefusedAndUntouched) {
  const std::vector<float> a = {1};
  std::filesystem::create_directory(In("m"));
  WriteText("m/precious", "x");
  EXPECT_THAT(WriteCheckpoint(In("m"), {Floats("a", a)}, {}),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("not empty")));
  EXPECT_TRUE(std::filesystem::exists(In("m/precious")));
  EXPECT_THAT(Left(), ::testing::ElementsAre("m"));
}

TEST_F(CheckpointTest, CheckpointLargerThanTheDiskNamesNeedAndLeavesNothing) {
  const std::vector<float> a = {1};
  CheckpointTensor huge = Floats("a", a);
  huge.spec.shape = {int64_t{1} << 50};
  huge.spec.bytes = uint64_t{1} << 52;
  EXPECT_THAT(
      WriteCheckpoint(In("m"), {huge}, {}),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("are free; nothing was left")));
  EXPECT_TRUE(Left().empty());
}

TEST_F(CheckpointTest, MissingFolderIsNotFound) {
  EXPECT_THAT(CheckpointFolder::Open(In("none")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none")));
}

TEST_F(CheckpointTest, FolderWithoutSafetensorsSaysWhatIsExpected) {
  EXPECT_THAT(CheckpointFolder::Open(folder_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("model.safetensors.index.json")));
}

TEST_F(CheckpointTest, SeveralFilesWithoutIndexAreRefused) {
  const std::vector<float> a = {1};
  ASSERT_OK(WriteCheckpoint(In("m"), {Floats("a", a)}, {}));
  std::filesystem::copy(In("m/model.safetensors"), In("m/other.safetensors"));
  EXPECT_THAT(CheckpointFolder::Open(In("m")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("add the index")));
}

TEST_F(CheckpointTest, OneFileOfSeveralCanBeNamed) {
  const std::vector<float> a = {1};
  ASSERT_OK(WriteCheckpoint(In("m"), {Floats("a", a)}, {}));
  ASSERT_OK_AND_ASSIGN(const CheckpointFolder folder,
                       CheckpointFolder::Open(In("m/model.safetensors")));
  EXPECT_EQ(folder.tensors().size(), 1u);
}

TEST_F(CheckpointTest, IndexThatNamesAMissingFileNamesIt) {
  std::filesystem::create_directory(In("m"));
  WriteText("m/model.safetensors.index.json", R"({"weight_map":{"a":"gone.safetensors"}})");
  EXPECT_THAT(CheckpointFolder::Open(In("m")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("gone.safetensors")));
}

TEST_F(CheckpointTest, FileCutOffAfterItWasOpenedIsDataLoss) {
  const std::vector<float> a(1000, 1.0f);
  ASSERT_OK(WriteCheckpoint(In("m"), {Floats("a", a)}, {}));
  ASSERT_OK_AND_ASSIGN(const CheckpointFolder folder, CheckpointFolder::Open(In("m")));
  std::filesystem::resize_file(In("m/model.safetensors"), 200);
  std::vector<float> read(1000);
  EXPECT_THAT(folder.Read("a", read.data()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("cut off")));
}

TEST_F(CheckpointTest, TruncatedFileIsRefusedByPath) {
  WriteText("short.safetensors", "abc");
  EXPECT_THAT(CheckpointFolder::Open(In("short.safetensors")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("short.safetensors")));
}

TEST_F(CheckpointTest, UnknownTensorIsNotFound) {
  const std::vector<float> a = {1};
  ASSERT_OK(WriteCheckpoint(In("m"), {Floats("a", a)}, {}));
  ASSERT_OK_AND_ASSIGN(const CheckpointFolder folder, CheckpointFolder::Open(In("m")));
  float value;
  EXPECT_THAT(folder.Read("b", &value), StatusIs(absl::StatusCode::kNotFound, HasSubstr("b")));
}

}  // namespace
}  // namespace th
