#include "th/server/event_log.h"

#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/server/event_log_lines.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::th::testing::StatusIs;

LoggedEvent Event(uint64_t number, const std::string& what = "step-5 (#7.2) after 1.2s") {
  LoggedEvent logged{.epoch = Epoch(7)};
  logged.event = {.number = number,
                  .id = EventId::Of(Epoch(7), 12),
                  .kind = EventKind::kUpdateMoved,
                  .at = absl::FromUnixMillis(1'700'000'000'125),
                  .key = {"r1", "m"},
                  .who = "rollout-1",
                  .what = what};
  return logged;
}

TEST(EventLogLinesTest, ALineIsReadBackAsItWas) {
  const LoggedEvent event = Event(3, "said \"no\"\nand went");
  const std::string line = EventLogLine(event);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  ASSERT_OK_AND_ASSIGN(const LoggedEvent read, ParseEventLogLine(line));
  EXPECT_EQ(read.epoch, event.epoch);
  EXPECT_EQ(read.event.number, 3u);
  EXPECT_EQ(read.event.id, event.event.id);
  EXPECT_EQ(read.event.kind, event.event.kind);
  EXPECT_EQ(read.event.at, event.event.at);
  EXPECT_EQ(read.event.key, event.event.key);
  EXPECT_EQ(read.event.who, event.event.who);
  EXPECT_EQ(read.event.what, event.event.what);
}

TEST(EventLogLinesTest, AKindOfANewerServerKeepsItsName) {
  ASSERT_OK_AND_ASSIGN(
      const LoggedEvent read,
      ParseEventLogLine(
          R"({"time":"2026-11-26T18:30:00.125Z","kind":"moon rose","what":"in the east"})"));
  EXPECT_EQ(read.event.kind, EventKind::kNone);
  EXPECT_EQ(read.event.what, "moon rose: in the east");
}

TEST(EventLogLinesTest, WhatIsNoLineIsRefused) {
  const std::string line = EventLogLine(Event(1));
  for (const std::string& bad :
       {std::string(), std::string("{"), std::string("[1]"), std::string("{}"),
        line.substr(0, line.size() / 2), std::string(R"({"kind":"published","time":"yesterday"})"),
        std::string(R"({"kind":7,"time":"2026-11-26T18:30:00Z"})")}) {
    EXPECT_THAT(ParseEventLogLine(bad), StatusIs(absl::StatusCode::kInvalidArgument)) << bad;
  }
}

class EventLogTest : public ::testing::Test {
 protected:
  EventLogTest() {
    std::filesystem::remove(path_);
    std::filesystem::remove(before_);
  }
  std::unique_ptr<EventLog> Open(uint64_t limit_bytes = kLeastEventLogBytes) {
    absl::StatusOr<std::unique_ptr<EventLog>> log = EventLog::Open(path_, limit_bytes);
    EXPECT_OK(log);
    return log.ok() ? *std::move(log) : nullptr;
  }
  static std::string TextOf(const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  // Returns once there is something in the file.
  void AwaitText() {
    const absl::Time give_up = absl::Now() + absl::Seconds(30);
    while (TextOf(path_).empty() && absl::Now() < give_up) std::this_thread::yield();
    ASSERT_FALSE(TextOf(path_).empty());
  }
  // The numbers of the events in a file; fails the test at a line that is none.
  static std::vector<uint64_t> NumbersIn(const std::string& path) {
    std::vector<uint64_t> numbers;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      const auto event = ParseEventLogLine(line);
      EXPECT_OK(event) << line;
      if (event.ok()) numbers.push_back(event->event.number);
    }
    return numbers;
  }

  const std::string path_ = ::testing::TempDir() + "/events";
  const std::string before_ = path_ + ".1";
};

TEST_F(EventLogTest, TheNextServerAppends) {
  Open()->Append(Event(1));
  Open()->Append(Event(2));
  EXPECT_EQ(NumbersIn(path_), (std::vector<uint64_t>{1, 2}));
}

TEST_F(EventLogTest, TwoFilesStayWithinTheLimitAndHoldTheNewest) {
  constexpr uint64_t kEvents = 12'000;  // of 1.5 KiB each at least half: some times the limit
  const std::string what(600, 'x');
  {
    const std::unique_ptr<EventLog> log = Open();
    for (uint64_t number = 1; number <= kEvents; ++number) log->Append(Event(number, what));
  }
  const std::vector<uint64_t> older = NumbersIn(before_), newer = NumbersIn(path_);
  ASSERT_FALSE(older.empty());
  ASSERT_FALSE(newer.empty());
  EXPECT_EQ(newer.back(), kEvents);
  EXPECT_EQ(older.back() + 1, newer.front());
  EXPECT_EQ(older.back() - older.front() + 1, older.size());
  EXPECT_LE(std::filesystem::file_size(path_), kLeastEventLogBytes / 2);
  EXPECT_LE(std::filesystem::file_size(before_), kLeastEventLogBytes / 2);
}

TEST_F(EventLogTest, HalfALineOfAKilledServerIsEnded) {
  std::ofstream(path_) << R"({"time":"2026-11-)";
  Open()->Append(Event(1));
  EXPECT_THAT(TextOf(path_), HasSubstr("{\"time\":\"2026-11-\n{\"time\":\"2023-11-14"));
}

TEST_F(EventLogTest, ASecondServerIsRefused) {
  const std::unique_ptr<EventLog> log = Open();
  EXPECT_THAT(EventLog::Open(path_, kLeastEventLogBytes),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(path_)));
}

TEST_F(EventLogTest, ItsFolderIsMade) {
  const std::string folder = ::testing::TempDir() + "/made/for/events";
  std::filesystem::remove_all(folder);
  EXPECT_OK(EventLog::Open(folder + "/events", kLeastEventLogBytes));
  EXPECT_TRUE(std::filesystem::exists(folder + "/events"));
}

TEST_F(EventLogTest, AFileThatCannotBeWrittenIsNamed) {
  const std::string file = ::testing::TempDir() + "/file", path = file + "/events";
  std::ofstream{file};
  EXPECT_THAT(EventLog::Open(path, kLeastEventLogBytes).status().message(),
              AllOf(HasSubstr(path), HasSubstr("let this user write into the folder")));
  EXPECT_THAT(EventLog::Open(path_, kLeastEventLogBytes - 1),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(EventLogTest, AFileThatSomebodyMovesOrRemovesIsBegunAnew) {
  const std::string moved = path_ + ".moved";
  std::unique_ptr<EventLog> log = Open();
  log->Append(Event(1));
  AwaitText();
  ASSERT_EQ(std::rename(path_.c_str(), moved.c_str()), 0);
  log->Append(Event(2));
  AwaitText();
  ASSERT_EQ(std::remove(path_.c_str()), 0);
  log->Append(Event(3));
  log.reset();
  EXPECT_EQ(NumbersIn(moved), std::vector<uint64_t>{1});
  EXPECT_EQ(NumbersIn(path_), std::vector<uint64_t>{3});
}

TEST_F(EventLogTest, AFolderThatIsAwayForAWhileCostsWhatHappensMeanwhile) {
  const std::string folder = ::testing::TempDir() + "/folder", away = folder + ".away";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<EventLog> log,
                       EventLog::Open(folder + "/events", kLeastEventLogBytes));
  std::filesystem::rename(folder, away);
  log->Append(Event(1));
  const absl::Time give_up = absl::Now() + absl::Seconds(30);
  while (log->lost() == 0 && absl::Now() < give_up) std::this_thread::yield();
  EXPECT_EQ(log->lost(), 1u);
  std::filesystem::rename(away, folder);
  log->Append(Event(2));
  log.reset();
  EXPECT_THAT(TextOf(folder + "/events"),
              AllOf(HasSubstr("events lost: 1 could not be written"), HasSubstr("\"number\":2")));
}

TEST_F(EventLogTest, WhatADiskCannotTakeIsCountedAndServedOn) {
  signal(SIGXFSZ, SIG_IGN);  // a file at its limit fails to grow, like one on a full disk
  rlimit whole{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &whole), 0);
  std::unique_ptr<EventLog> log = Open();
  const rlimit none{.rlim_cur = 16, .rlim_max = whole.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  log->Append(Event(1));
  log->Append(Event(2));
  const absl::Time give_up = absl::Now() + absl::Seconds(30);
  while (log->lost() < 2 && absl::Now() < give_up) std::this_thread::yield();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &whole), 0);
  EXPECT_EQ(log->lost(), 2u);
  EXPECT_EQ(TextOf(path_), "");  // no half a line either
  log->Append(Event(3));
  log.reset();
  EXPECT_EQ(NumbersIn(path_), (std::vector<uint64_t>{0, 3}));
  EXPECT_THAT(TextOf(path_), HasSubstr("events lost: 2 could not be written"));
}

}  // namespace
}  // namespace th
