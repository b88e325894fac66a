#include "th/coordination/file_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

constexpr int kCrashed = 7;

DurableState StateWithHighWater(uint64_t sequence) {
  DurableState state;
  state.models[{"r1", "qwen3"}].high_water = VersionSequence(sequence);
  return state;
}

class FileStoreTest : public ::testing::Test {
 protected:
  FileStoreTest()
      : directory_(absl::StrCat(::testing::TempDir(), "/",
                                ::testing::UnitTest::GetInstance()->current_test_info()->name(),
                                "-", getpid())) {
    std::filesystem::remove_all(directory_);
  }
  ~FileStoreTest() override { std::filesystem::remove_all(directory_); }

  std::string StateFile() const { return absl::StrCat(directory_, "/state"); }
  std::string ReadStateFile() const {
    std::ifstream file(StateFile(), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  void WriteStateFile(const std::string& content) const {
    std::ofstream(StateFile(), std::ios::binary) << content;
  }
  // By a clock that stands before all epochs: the first one is 1.
  static FileStoreOptions Early(FileStoreOptions options = {}) {
    options.now = [] { return absl::UnixEpoch(); };
    return options;
  }
  // The state that a server that starts now would find. Each call raises the epoch.
  OpenedState Reopened() const {
    absl::StatusOr<std::unique_ptr<FileStore>> store = FileStore::Open(directory_, Early());
    EXPECT_OK(store);
    return store.ok() ? (*store)->opened() : OpenedState{};
  }

  const std::string directory_;
};

TEST_F(FileStoreTest, FirstOpeningCreatesTheDirectoryAndBeginsTheFirstEpoch) {
  ASSERT_OK_AND_ASSIGN(const auto store, FileStore::Open(directory_ + "/a/b", Early()));
  EXPECT_EQ(store->opened().epoch, Epoch(1));
  EXPECT_FALSE(store->opened().started_before);
  EXPECT_TRUE(store->opened().durable.models.empty());
}

TEST_F(FileStoreTest, EveryOpeningRaisesTheEpochEvenWithoutAWrite) {
  EXPECT_EQ(Reopened().epoch, Epoch(1));
  EXPECT_EQ(Reopened().epoch, Epoch(2));
  EXPECT_EQ(Reopened().epoch, Epoch(3));
}

TEST_F(FileStoreTest, AnEpochIsNeverBelowTheSecondsSinceTheStartOf2026) {
  const FileStoreOptions later{.now = [] {
    return absl::FromCivil(absl::CivilMinute(2026, 1, 1, 0, 5), absl::UTCTimeZone());
  }};
  {
    ASSERT_OK_AND_ASSIGN(const auto fresh, FileStore::Open(directory_, later));
    EXPECT_EQ(fresh->opened().epoch, Epoch(300));
  }
  EXPECT_EQ(Reopened().epoch, Epoch(301)) << "a clock that goes back";
}

TEST_F(FileStoreTest, AStateKeepsItsClusterAndKeyAndHasOneMoreEpochAtEveryOpening) {
  const StateIdentity first = Reopened().identity;
  EXPECT_NE(first.cluster, ClusterId());
  EXPECT_NE(first.key, ClusterKey{});
  ASSERT_EQ(first.epoch_ids.size(), 1u);
  const StateIdentity second = Reopened().identity;
  EXPECT_EQ(second.cluster, first.cluster);
  EXPECT_EQ(second.key, first.key);
  ASSERT_EQ(second.epoch_ids.size(), 2u);
  EXPECT_EQ(second.epoch_ids[0], first.epoch_id());
  EXPECT_NE(second.epoch_id(), first.epoch_id());
  EXPECT_EQ(second.of_this_process, 1u);
}

TEST_F(FileStoreTest, AnotherStateIsAnotherCluster) {
  const StateIdentity first = Reopened().identity;
  std::filesystem::remove(StateFile());
  const StateIdentity other = Reopened().identity;
  EXPECT_NE(other.cluster, first.cluster);
  EXPECT_NE(other.key, first.key);
}

TEST_F(FileStoreTest, AEpochAboveWhatWasHeardIsDurableWithItsState) {
  {
    ASSERT_OK_AND_ASSIGN(const auto store, FileStore::Open(directory_, Early()));
    ASSERT_OK(store->BeginAbove(Epoch(40), StateWithHighWater(5)));
    EXPECT_EQ(store->opened().epoch, Epoch(41));
    EXPECT_EQ(store->opened().identity.of_this_process, 2u);
    EXPECT_TRUE(store->opened().started_before);
    ASSERT_OK(store->BeginAbove(Epoch(3), StateWithHighWater(5)));
    EXPECT_EQ(store->opened().epoch, Epoch(42));
  }
  const OpenedState opened = Reopened();
  EXPECT_EQ(opened.epoch, Epoch(43));
  EXPECT_EQ(opened.durable, StateWithHighWater(5));
  EXPECT_EQ(opened.identity.epoch_ids.size(), 4u);
}

TEST_F(FileStoreTest, WhatWasWrittenIsFoundAgain) {
  {
    ASSERT_OK_AND_ASSIGN(const auto store, FileStore::Open(directory_));
    ASSERT_OK(store->Write(StateWithHighWater(1)));
    ASSERT_OK(store->Write(StateWithHighWater(2)));
  }
  const OpenedState opened = Reopened();
  EXPECT_TRUE(opened.started_before);
  EXPECT_EQ(opened.durable, StateWithHighWater(2));
}

TEST_F(FileStoreTest, ASecondServerIsRefusedWithPathAndProcess) {
  ASSERT_OK_AND_ASSIGN(const auto first, FileStore::Open(directory_));
  EXPECT_THAT(FileStore::Open(directory_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(directory_), HasSubstr(absl::StrCat("process ", getpid())),
                             HasSubstr("--state-dir"))));
}

TEST_F(FileStoreTest, ASecondServerDoesNotDisturbTheFirst) {
  {
    ASSERT_OK_AND_ASSIGN(const auto first, FileStore::Open(directory_, Early()));
    ASSERT_FALSE(FileStore::Open(directory_).ok());
    ASSERT_OK(first->Write(StateWithHighWater(5)));
  }
  const OpenedState opened = Reopened();
  EXPECT_EQ(opened.durable, StateWithHighWater(5));
  EXPECT_EQ(opened.epoch, Epoch(2));
}

TEST_F(FileStoreTest, TheLockGoesWithItsHolder) {
  ASSERT_OK_AND_ASSIGN(auto first, FileStore::Open(directory_));
  first.reset();
  EXPECT_OK(FileStore::Open(directory_));
}

TEST_F(FileStoreTest, ADamagedFileIsAnErrorAndStaysAsItIs) {
  Reopened();
  std::string damaged = ReadStateFile();
  damaged.back() = '!';
  WriteStateFile(damaged);
  EXPECT_THAT(
      FileStore::Open(directory_),
      StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(StateFile()), HasSubstr("checksum"),
                                                  HasSubstr("restore it from a backup"))));
  EXPECT_EQ(ReadStateFile(), damaged);
}

TEST_F(FileStoreTest, AnEmptyFileIsNoFreshStart) {
  Reopened();
  WriteStateFile("");
  EXPECT_THAT(FileStore::Open(directory_), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(FileStoreTest, ALeftOverNewFileIsIgnored) {
  Reopened();
  std::ofstream(directory_ + "/state.new") << "half a";
  EXPECT_EQ(Reopened().epoch, Epoch(2));
}

TEST_F(FileStoreTest, ADirectoryThatCannotBeCreatedIsNamed) {
  std::filesystem::create_directories(directory_);
  std::ofstream(directory_ + "/file") << "x";
  EXPECT_THAT(FileStore::Open(directory_ + "/file/below").status().message(),
              HasSubstr(directory_ + "/file/below"));
}

TEST_F(FileStoreTest, ASymbolicLinkInPlaceOfTheNewFileIsNotFollowed) {
  Reopened();
  std::filesystem::create_symlink(directory_ + "/elsewhere", directory_ + "/state.new");
  EXPECT_FALSE(FileStore::Open(directory_).ok());
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/elsewhere"));
}

TEST_F(FileStoreTest, OnlyTheOwnerMayRead) {
  Reopened();
  struct stat info;
  ASSERT_EQ(stat(StateFile().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

// A crash before each step, in a process of its own: the next server finds the old state or the
// new.
class CrashTest : public FileStoreTest, public ::testing::WithParamInterface<WriteStep> {
 protected:
  void OpenWriteAndCrash() const {
    bool armed = false;
    auto store = FileStore::Open(directory_, Early({.before_step = [&](WriteStep step) {
                                   if (armed && step == GetParam()) _exit(kCrashed);
                                   return absl::OkStatus();
                                 }}));
    armed = true;
    if (store.ok()) (*store)->Write(StateWithHighWater(2)).IgnoreError();
    _exit(0);
  }
};

TEST_P(CrashTest, LeavesTheOldOrTheNewState) {
  {
    ASSERT_OK_AND_ASSIGN(const auto store, FileStore::Open(directory_, Early()));
    ASSERT_OK(store->Write(StateWithHighWater(1)));
  }
  ASSERT_EXIT(OpenWriteAndCrash(), ::testing::ExitedWithCode(kCrashed), "");
  const OpenedState opened = Reopened();
  const DurableState expected = StateWithHighWater(GetParam() == WriteStep::kSyncDirectory ? 2 : 1);
  EXPECT_EQ(opened.durable, expected);
  EXPECT_EQ(opened.epoch, Epoch(3));
}

// The disk fails at each step: the error comes out, the state before it stays in force.
class FailingDiskTest : public FileStoreTest, public ::testing::WithParamInterface<WriteStep> {
 protected:
  FileStoreOptions Failing(bool& armed) const {
    return Early({.before_step = [&armed](WriteStep step) {
      return armed && step == GetParam() ? absl::ErrnoToStatus(ENOSPC, "cannot write")
                                         : absl::OkStatus();
    }});
  }
};

TEST_P(FailingDiskTest, WriteReportsItAndALaterOneWorks) {
  bool armed = false;
  ASSERT_OK_AND_ASSIGN(const auto store, FileStore::Open(directory_, Failing(armed)));
  ASSERT_OK(store->Write(StateWithHighWater(1)));
  armed = true;
  EXPECT_THAT(store->Write(StateWithHighWater(2)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("No space left")));
  armed = false;
  EXPECT_OK(store->Write(StateWithHighWater(3)));
}

TEST_P(FailingDiskTest, NoEpochBeginsWithoutADurableEpoch) {
  Reopened();
  bool armed = true;
  EXPECT_THAT(FileStore::Open(directory_, Failing(armed)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(Reopened().epoch, AnyOf(Eq(Epoch(2)), Eq(Epoch(3))));
}

std::string StepName(const ::testing::TestParamInfo<WriteStep>& info) {
  static constexpr const char* kNames[] = {"Create", "Write", "Sync", "Rename", "SyncDirectory"};
  return kNames[static_cast<int>(info.param)];
}

const auto kEveryStep = ::testing::Values(WriteStep::kCreate, WriteStep::kWrite, WriteStep::kSync,
                                          WriteStep::kRename, WriteStep::kSyncDirectory);
INSTANTIATE_TEST_SUITE_P(Steps, CrashTest, kEveryStep, StepName);
INSTANTIATE_TEST_SUITE_P(Steps, FailingDiskTest, kEveryStep, StepName);

TEST_F(FileStoreTest, WhatCouldNotBeReadAgainIsNotWritten) {
  ASSERT_OK_AND_ASSIGN(auto store, FileStore::Open(directory_, {.max_bytes = 1000}));
  ASSERT_OK(store->Write(StateWithHighWater(1)));
  DurableState large = StateWithHighWater(2);
  large.models[{std::string(1000, 'r'), "m"}] = {};
  EXPECT_THAT(store->Write(large),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("takes 1000")));
  store.reset();
  EXPECT_EQ(Reopened().durable, StateWithHighWater(1));
}

TEST_F(FileStoreTest, AFailedWriteLeavesNoNewFileBehind) {
  bool armed = false;
  ASSERT_OK_AND_ASSIGN(const auto store,
                       FileStore::Open(directory_, {.before_step = [&](WriteStep step) {
                                         return armed && step == WriteStep::kSync
                                                    ? absl::ErrnoToStatus(ENOSPC, "cannot sync")
                                                    : absl::OkStatus();
                                       }}));
  armed = true;
  ASSERT_FALSE(store->Write(StateWithHighWater(1)).ok());
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/state.new"));
}

}  // namespace
}  // namespace th
