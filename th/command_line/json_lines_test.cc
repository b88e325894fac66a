#include "th/command_line/json_lines.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using testing::StatusIs;

TEST(JsonLinesTest, AnErrorSurvivesTheWay) {
  for (const absl::Status& status : {absl::NotFoundError("no such version"),
                                     absl::CancelledError(""), absl::UnauthenticatedError("x")}) {
    EXPECT_EQ(StatusOfAnswer(ErrorToJson(status)), status);
  }
}

TEST(JsonLinesTest, AnAnswerWithoutErrorIsOk) { EXPECT_OK(StatusOfAnswer({{"bytes", 3}})); }

TEST(JsonLinesTest, ABrokenAnswerIsAnError) {
  EXPECT_THAT(StatusOfAnswer(3), StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(StatusOfAnswer({{"error", "text"}}), StatusIs(absl::StatusCode::kUnknown));
  EXPECT_THAT(StatusOfAnswer({{"error", {{"code", "OK"}}}}), StatusIs(absl::StatusCode::kUnknown));
  EXPECT_THAT(StatusOfAnswer({{"error", {{"code", "NEVER_HEARD"}}}}),
              StatusIs(absl::StatusCode::kUnknown));
}

TEST(JsonLinesTest, OnlyObjectsAreLines) {
  EXPECT_TRUE(ParseLine("{\"a\":1}").is_object());
  for (const char* line : {"", "3", "[1]", "{", "hello", "{\"a\":1} x"}) {
    EXPECT_TRUE(ParseLine(line).is_discarded()) << line;
  }
}

TEST(JsonLineWriterTest, WritesOneLineAndNoticesThatTheReaderHasGone) {
  std::array<int, 2> fds;
  ASSERT_EQ(pipe(fds.data()), 0);
  JsonLineWriter writer(fds[1]);
  EXPECT_TRUE(writer.Write({{"text", "a\nb"}}));
  std::array<char, 100> buffer;
  const ssize_t got = read(fds[0], buffer.data(), buffer.size());
  EXPECT_EQ(std::string(buffer.data(), static_cast<size_t>(got)), "{\"text\":\"a\\nb\"}\n");
  close(fds[0]);
  signal(SIGPIPE, SIG_IGN);
  EXPECT_FALSE(writer.Write({{"text", "a"}}));
  close(fds[1]);
}

}  // namespace
}  // namespace th
