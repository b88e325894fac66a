#include "th/worker/saved_model.h"

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/memory/checkpoint_folder.h"

namespace th {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using testing::StatusIs;

std::string Fresh(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/" + name;
  fs::remove_all(path);
  return path;
}

TEST(CheckCanSaveTest, AFileIsNoPlaceForAFolder) {
  const std::string file = ::testing::TempDir() + "/a-file";
  std::ofstream(file) << "x";
  EXPECT_THAT(CheckCanSave(file + "/inside", 1).message(), HasSubstr("a-file is no folder"));
}

TEST(CheckCanSaveTest, TakesAFolderThatIsMissingOrEmpty) {
  const std::string folder = Fresh("empty");
  EXPECT_OK(CheckCanSave(folder, 1));
  EXPECT_OK(CheckCanSave(folder + "/", 1));
  fs::create_directory(folder);
  EXPECT_OK(CheckCanSave(folder, 1));
}

TEST(CheckCanSaveTest, RefusesWhatIsThere) {
  const std::string folder = Fresh("full");
  fs::create_directory(folder);
  std::ofstream(folder + "/precious") << "x";
  EXPECT_THAT(CheckCanSave(folder, 1),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(folder)));
  EXPECT_THAT(CheckCanSave(folder + "/precious", 1), StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST(CheckCanSaveTest, RefusesAParentThatIsNotThere) {
  EXPECT_THAT(CheckCanSave("/no/such/parent/folder", 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/parent")));
}

// Modes mean nothing to a process that may override them.
class WithoutOverride {
 public:
  WithoutOverride() {
    syscall(SYS_capget, &header_, before_);
    __user_cap_data_struct without[2] = {before_[0], before_[1]};
    without[0].effective &= ~(1u << CAP_DAC_OVERRIDE);
    syscall(SYS_capset, &header_, without);
  }
  ~WithoutOverride() { syscall(SYS_capset, &header_, before_); }

 private:
  __user_cap_header_struct header_ = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct before_[2] = {};
};

TEST(CheckCanSaveTest, RefusesAParentThatNothingCanBeWrittenInto) {
  const std::string parent = Fresh("locked");
  fs::create_directory(parent);
  EXPECT_OK(CheckCanSave(parent + "/here", 1));
  EXPECT_TRUE(fs::is_empty(parent)) << "what was tried is gone";
  fs::permissions(parent, fs::perms::owner_read | fs::perms::owner_exec);
  {
    const WithoutOverride plain_user;
    EXPECT_THAT(CheckCanSave(parent + "/here", 1),
                StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(parent + "/here")));
  }
  fs::permissions(parent, fs::perms::owner_all);
}

TEST(CheckCanSaveTest, SaysHowMuchIsMissingOnAFullDisk) {
  EXPECT_THAT(CheckCanSave(Fresh("large"), std::numeric_limits<uint64_t>::max()),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("are free")));
}

TEST(SaveModelTest, WritesTensorsAliasesAndTheVersion) {
  TensorSpec head{.name = "head", .dtype = DType::kU8, .shape = {3}};
  head.alias_of = "table";
  ASSERT_OK_AND_ASSIGN(
      ShardLayout layout,
      ShardLayout::Build(
          {.tensors = {{.name = "table", .dtype = DType::kU8, .shape = {3}}, head}}));
  ASSERT_OK_AND_ASSIGN(ModelMemory model, ModelMemory::Allocate({layout}));
  memcpy(model.TensorsOfShard(0)[1].data, "abc", 3);
  VersionInfo version{.sequence = VersionSequence::Of(Epoch(1), 2),
                      .label = *VersionLabel::Parse("step-2")};
  const std::string folder = Fresh("saved");
  StopSignals stop(99);
  stop.HoldOff();
  ASSERT_OK(SaveModel(model, version, {"r1", "m"}, folder, &stop));

  ASSERT_OK_AND_ASSIGN(const CheckpointFolder read, CheckpointFolder::Open(folder));
  ASSERT_THAT(read.tensors(), SizeIs(2));
  EXPECT_EQ(read.tensors()[0].alias_of, "table");
  EXPECT_EQ(read.metadata().at("tensorhub.version"), "step-2");
  EXPECT_EQ(read.metadata().at("tensorhub.model"), "m");
  std::string bytes(3, '?');
  ASSERT_OK(read.Read("table", bytes.data()));
  EXPECT_EQ(bytes, "abc");
}

TEST(SaveModelTest, AStopBreaksItOffAndLeavesNothingBehind) {
  ASSERT_OK_AND_ASSIGN(
      ShardLayout layout,
      ShardLayout::Build({.tensors = {{.name = "table", .dtype = DType::kU8, .shape = {3}}}}));
  ASSERT_OK_AND_ASSIGN(const ModelMemory model, ModelMemory::Allocate({layout}));
  const std::string parent = Fresh("stopped");
  fs::create_directory(parent);
  StopSignals stop(99);
  stop.HoldOff();
  kill(getpid(), SIGTERM);
  stop.Wait();
  EXPECT_THAT(SaveModel(model, {}, {"r1", "m"}, parent + "/here", &stop),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(fs::is_empty(parent));
}

}  // namespace
}  // namespace th
