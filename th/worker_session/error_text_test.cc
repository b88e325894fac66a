#include "th/worker_session/error_text.h"

#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/protocol/error_fields.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::th::testing::StatusIs;

constexpr uint64_t kGiB = uint64_t{1} << 30;

ErrorText OfUpdate(ErrorCode code) {
  ErrorText text;
  text.code = code;
  text.key = {"r1", "qwen3"};
  text.rank = RankName{"rollout-3", Rank(1)};
  text.version = "step-57";
  text.operation = OperationNumber(12);
  return text;
}

FailedSource Source(const std::string& group, const std::string& address,
                    const std::string& detail) {
  return {{group, Rank(1)}, "tcp", address, SourceFailure::kStalled, detail};
}

TEST(ErrorTextTest, GoldenStalledUpdate) {
  ErrorText text = OfUpdate(ErrorCode::kUpdateStalled);
  text.received = {static_cast<uint64_t>(3.1 * kGiB), 8 * kGiB};
  text.failed_sources = {Source("rollout-0", "10.0.0.4:4711", "closed"),
                         Source("trainer", "10.0.0.1:4711", "refused this reader"),
                         Source("rollout-1", "10.0.0.7:4711", "silent for 1.0 s")};
  text.aftermath = "buffer undefined, do not serve";
  EXPECT_EQ(Compose(text),
            "UPDATE_STALLED run=r1 model=qwen3 version=step-57 rank=rollout-3/1: 3.1 of 8.0 GiB "
            "received; source rollout-1/1 (tcp 10.0.0.7:4711) silent for 1.0 s, 2 others tried "
            "(trainer/1 refused this reader, rollout-0/1 closed); buffer undefined, do not serve; "
            "operation 12");
}

TEST(ErrorTextTest, TheEventComesLast) {
  ErrorText text = OfUpdate(ErrorCode::kUpdateDeadline);
  text.event = EventId::Of(Epoch(7), 1234);
  EXPECT_THAT(Compose(text), HasSubstr("operation 12 event=7-1234"));
}

TEST(ErrorTextTest, AStatusHasTheFieldsOfItsText) {
  ErrorText text = OfUpdate(ErrorCode::kUpdateDeadline);
  text.event = EventId::Of(Epoch(7), 1234);
  EXPECT_EQ(FieldsOf(ComposeStatus(absl::StatusCode::kDeadlineExceeded, text)),
            (ErrorFields{.word = "UPDATE_DEADLINE", .rank = "rollout-3/1", .event = "7-1234"}));
  EXPECT_EQ(FieldsOf(ComposeStatus(absl::StatusCode::kUnavailable,
                                   {.code = ErrorCode::kServerUnreachable})),
            (ErrorFields{.word = "SERVER_UNREACHABLE", .rank = "", .event = ""}));
}

TEST(ErrorTextTest, GoldenFailedUpdateWithOneSource) {
  ErrorText text = OfUpdate(ErrorCode::kUpdateFailed);
  text.received = {512 << 10, 3 << 20};
  text.failed_sources = {Source("rollout-1", "10.0.0.7:4711", "")};
  text.cause = "rank rollout-3/0: disk on fire";
  text.aftermath = "buffer unchanged, still step-56";
  EXPECT_EQ(
      Compose(text),
      "UPDATE_FAILED run=r1 model=qwen3 version=step-57 rank=rollout-3/1: 0.5 of 3.0 MiB "
      "received; source rollout-1/1 (tcp 10.0.0.7:4711) went silent; rank rollout-3/0: disk on "
      "fire; buffer unchanged, still step-56; operation 12");
}

// An error that the session gives up with says itself what the source did.
TEST(ErrorTextTest, WhatTheCauseTellsOfASourceIsToldOnce) {
  ErrorText text = OfUpdate(ErrorCode::kUpdateFailed);
  text.failed_sources = {Source("trainer", "10.0.0.1:4711", "it has no transport for that")};
  text.cause = "no holder can be attached: trainer/1: it has no transport for that";
  EXPECT_EQ(Compose(text),
            "UPDATE_FAILED run=r1 model=qwen3 version=step-57 rank=rollout-3/1: source trainer/1 "
            "(tcp 10.0.0.1:4711); no holder can be attached: trainer/1: it has no transport for "
            "that; operation 12");
  text.failed_sources = {Source("trainer", "", "it has no transport for that")};
  EXPECT_EQ(Compose(text),
            "UPDATE_FAILED run=r1 model=qwen3 version=step-57 rank=rollout-3/1: no holder can be "
            "attached: trainer/1: it has no transport for that; operation 12");
}

TEST(ErrorTextTest, GoldenRefusedJoin) {
  ErrorText text;
  text.code = ErrorCode::kJoinRefused;
  text.key = {"r1", "qwen3"};
  text.rank = RankName{"rollout-3", Rank(1)};
  text.cause = "ranks disagree: 8 here, 4 there";
  EXPECT_EQ(Compose(text),
            "JOIN_REFUSED run=r1 model=qwen3 rank=rollout-3/1: ranks disagree: 8 here, 4 there");
}

TEST(ErrorTextTest, SmallSizesAreTold) {
  ErrorText text = OfUpdate(ErrorCode::kUpdateDeadline);
  text.received = {12, 900};
  EXPECT_THAT(Compose(text), HasSubstr(": 12 of 900 bytes received; "));
  text.received = {512, 2048};
  EXPECT_THAT(Compose(text), HasSubstr(": 0.5 of 2.0 KiB received; "));
}

TEST(ErrorTextTest, OnlyAFewSourcesAreNamed) {
  ErrorText text = OfUpdate(ErrorCode::kUpdateStalled);
  for (int i = 0; i < 9; ++i) {
    text.failed_sources.push_back(Source("g" + std::to_string(i), "a:1", "closed"));
  }
  EXPECT_THAT(Compose(text),
              HasSubstr("8 others tried (g7/1 closed, g6/1 closed, g5/1 closed, ...)"));
}

TEST(ErrorTextTest, ASourceThatWasTriedAgainIsNamedOnce) {
  ErrorText text = OfUpdate(ErrorCode::kUpdateStalled);
  for (const char* group : {"g1", "g2", "g1", "g2", "g2"}) {
    text.failed_sources.push_back(Source(group, "a:1", "closed"));
  }
  EXPECT_THAT(Compose(text), HasSubstr("closed, tried 3 times, 1 other tried (g1/1 closed)"));
}

TEST(ErrorTextTest, IsOneLineAndBounded) {
  ErrorText text = OfUpdate(ErrorCode::kUpdateFailed);
  text.cause = "two\nlines\r\x01" + std::string(100'000, 'x');
  const std::string line = Compose(text);
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  EXPECT_THAT(line, Not(HasSubstr("\x01")));
  EXPECT_LT(line.size(), 2 * kMaxCauseBytes);
}

TEST(ErrorTextTest, TheStatusKeepsItsCodeAndIsNeverOk) {
  const ErrorText text = OfUpdate(ErrorCode::kUpdateDeadline);
  EXPECT_THAT(ComposeStatus(absl::StatusCode::kDeadlineExceeded, text),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("UPDATE_DEADLINE ")));
  EXPECT_THAT(ComposeStatus(absl::StatusCode::kOk, text), StatusIs(absl::StatusCode::kInternal));
}

TEST(ErrorTextTest, CodeWordsAreDistinct) {
  std::set<std::string> words;
  for (int code = 0; code <= static_cast<int>(ErrorCode::kCommandDeadline); ++code) {
    words.insert(std::string(ErrorCodeName(static_cast<ErrorCode>(code))));
  }
  EXPECT_EQ(words.size(), static_cast<size_t>(ErrorCode::kCommandDeadline) + 1);
  EXPECT_EQ(words.count("UNKNOWN"), 0u);
}

}  // namespace
}  // namespace th
