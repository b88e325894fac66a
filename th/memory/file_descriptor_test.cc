#include "th/memory/file_descriptor.h"

#include <cerrno>
#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

class FileDescriptorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/fd-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  std::string folder_;
};

TEST_F(FileDescriptorTest, ReadsBackWhatWasWritten) {
  {
    ASSERT_OK_AND_ASSIGN(const FileDescriptor file, FileDescriptor::Create(folder_ + "/a"));
    EXPECT_OK(file.Write("hello world", 11));
    EXPECT_OK(file.Sync());
  }
  ASSERT_OK_AND_ASSIGN(const FileDescriptor file, FileDescriptor::OpenForReading(folder_ + "/a"));
  char text[6] = {};
  EXPECT_OK(file.ReadAt(6, text, 5));
  EXPECT_STREQ(text, "world");
  EXPECT_EQ(*file.Size(), 11u);
}

TEST_F(FileDescriptorTest, ReadBeyondTheEndNamesFileAndByte) {
  { ASSERT_OK_AND_ASSIGN(const FileDescriptor file, FileDescriptor::Create(folder_ + "/a")); }
  ASSERT_OK_AND_ASSIGN(const FileDescriptor file, FileDescriptor::OpenForReading(folder_ + "/a"));
  char byte;
  EXPECT_THAT(file.ReadAt(0, &byte, 1),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/a ends at byte 0")));
}

TEST_F(FileDescriptorTest, MissingFileIsNotFoundByPath) {
  EXPECT_THAT(FileDescriptor::OpenForReading(folder_ + "/none"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none")));
}

TEST_F(FileDescriptorTest, ExistingFileIsNotOverwritten) {
  { ASSERT_OK_AND_ASSIGN(const FileDescriptor file, FileDescriptor::Create(folder_ + "/a")); }
  EXPECT_THAT(FileDescriptor::Create(folder_ + "/a"),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("/a")));
}

TEST_F(FileDescriptorTest, FolderHasNoSize) {
  ASSERT_OK_AND_ASSIGN(const FileDescriptor folder, FileDescriptor::OpenFolder(folder_));
  EXPECT_THAT(folder.Size(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no regular file")));
}

TEST(FileErrorTest, FullDiskIsResourceExhausted) {
  EXPECT_THAT(FileError("write", "/models/a", ENOSPC),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("No space left")));
}

}  // namespace
}  // namespace th
