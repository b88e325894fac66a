#include "th/worker/version_folders.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/command_line/stop_signals.h"
#include "th/worker/saved_model.h"

namespace th {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

const ModelKey kOurs{"r1", "m"};

VersionInfo Version(uint32_t number) {
  return {.sequence = VersionSequence::Of(Epoch(1), number),
          .label = *VersionLabel::Parse(absl::StrCat("a/", number))};
}

class VersionFoldersTest : public ::testing::Test {
 protected:
  VersionFoldersTest()
      : into_(absl::StrCat(::testing::TempDir(), "/folders-",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name())),
        folders_(into_, kOurs),
        stop_(99) {
    fs::remove_all(into_);
    fs::create_directories(into_);
    stop_.HoldOff();
  }

  void Save(uint32_t number, const ModelKey& key = kOurs) {
    ASSERT_OK_AND_ASSIGN(
        ShardLayout layout,
        ShardLayout::Build({.tensors = {{.name = "table", .dtype = DType::kU8, .shape = {3}}}}));
    ASSERT_OK_AND_ASSIGN(const ModelMemory model, ModelMemory::Allocate({layout}));
    ASSERT_OK(SaveModel(model, Version(number), key, folders_.PathOf(Version(number)), &stop_));
  }
  std::string At(uint32_t number) const { return folders_.PathOf(Version(number)); }
  std::vector<std::string> Left() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(into_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  const std::string into_;
  const VersionFolders folders_;
  StopSignals stop_;
};

TEST_F(VersionFoldersTest, TheNewestStayByTheirNumbersAndNotAsTexts) {
  for (const uint32_t number : {8, 9, 10, 11}) Save(number);
  EXPECT_THAT(folders_.RemoveOlder(2, At(11)), ElementsAre(At(9), At(8)));
  EXPECT_THAT(Left(), UnorderedElementsAre("1.10-a_10", "1.11-a_11"));
  EXPECT_THAT(folders_.RemoveOlder(2, At(11)), IsEmpty());
}

TEST_F(VersionFoldersTest, TheCurrentOneStaysThoughItIsOlder) {
  for (const uint32_t number : {1, 2, 3}) Save(number);
  EXPECT_THAT(folders_.RemoveOlder(1, At(1)), UnorderedElementsAre(At(2), At(3)));
  EXPECT_THAT(Left(), ElementsAre("1.1-a_1"));
}

TEST_F(VersionFoldersTest, WithoutACurrentVersionTheNewestStay) {
  for (const uint32_t number : {1, 2, 3}) Save(number);
  EXPECT_THAT(folders_.RemoveOlder(1, ""), ElementsAre(At(2), At(1)));
  EXPECT_THAT(Left(), ElementsAre("1.3-a_3"));
  EXPECT_THAT(folders_.RemoveOlder(0, ""), IsEmpty());
}

TEST_F(VersionFoldersTest, WhatWasWithdrawnGoesBeforeWhatIsOlder) {
  const VersionFolders folders(into_, kOurs, [](VersionSequence sequence) {
    return sequence == Version(3).sequence || sequence == Version(2).sequence;
  });
  for (const uint32_t number : {1, 2, 3, 4}) Save(number);
  EXPECT_THAT(folders.RemoveOlder(3, At(4)), ElementsAre(At(2)));
  EXPECT_THAT(folders.RemoveOlder(2, At(4)), ElementsAre(At(3)));
  EXPECT_THAT(Left(), UnorderedElementsAre("1.1-a_1", "1.4-a_4"));
}

TEST_F(VersionFoldersTest, ItIsAskedOfNoMoreVersionsThanItTakesToFindThoseThatStay) {
  std::vector<VersionSequence> asked;
  const VersionFolders folders(into_, kOurs, [&asked](VersionSequence sequence) {
    asked.push_back(sequence);
    return sequence == Version(4).sequence;
  });
  for (const uint32_t number : {1, 2, 3, 4, 5}) Save(number);
  (void)folders.RemoveOlder(2, At(5));
  EXPECT_THAT(asked, ElementsAre(Version(4).sequence, Version(3).sequence));
  asked.clear();
  (void)folders.RemoveOlder(1, At(5));
  EXPECT_THAT(asked, IsEmpty());
}

TEST_F(VersionFoldersTest, WhatIsAnotherModelsOrHasOtherFilesStays) {
  Save(1, {"r1", "other"});
  Save(2);
  std::ofstream(At(2) + "/config.json") << "{}";
  fs::create_directory(into_ + "/1.3-empty");
  fs::create_directory(into_ + "/notes");
  Save(4);
  EXPECT_THAT(folders_.RemoveOlder(1, At(4)), IsEmpty());
}

TEST_F(VersionFoldersTest, WhatAnotherFollowerWritesStaysAndPushesNothingOut) {
  Save(1);
  Save(2);
  Save(3);
  const std::string unfinished = At(3) + ".unfinished-a1b2c3";  // all its files are there already
  fs::rename(At(3), unfinished);
  EXPECT_THAT(folders_.RemoveOlder(2, At(2)), IsEmpty());
  EXPECT_TRUE(fs::exists(unfinished));
  EXPECT_TRUE(fs::exists(At(1)));
}

TEST_F(VersionFoldersTest, LeftoversOfVersionsGoAndNoOthers) {
  const std::string left = At(1) + ".unfinished-a1b2c3", other = into_ + "/x.unfinished-a1b2c3";
  fs::create_directory(left);
  fs::create_directory(other);
  Save(2);
  EXPECT_THAT(folders_.RemoveUnfinished(), ElementsAre(left));
  EXPECT_TRUE(fs::exists(other));
  EXPECT_TRUE(fs::exists(At(2)));
}

}  // namespace
}  // namespace th
