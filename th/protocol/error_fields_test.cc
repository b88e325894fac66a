#include "th/protocol/error_fields.h"

#include "gtest/gtest.h"

namespace th {
namespace {

const ErrorFields kFields = {.word = "UPDATE_STALLED", .rank = "rollout-3/1", .event = "7-1234"};

TEST(ErrorFieldsTest, AStatusHasTheFieldsThatWereSet) {
  absl::Status status = absl::UnavailableError("UPDATE_STALLED run=r1 ...");
  EXPECT_EQ(FieldsOf(status), ErrorFields());
  SetFields({.word = "UPDATE_STALLED", .rank = "", .event = ""}, &status);
  EXPECT_EQ(FieldsOf(status).word, "UPDATE_STALLED");
  EXPECT_EQ(FieldsOf(status).rank, "");
  SetFields(kFields, &status);
  EXPECT_EQ(FieldsOf(status), kFields);
}

TEST(ErrorFieldsTest, OtherWordsHaveTheSameFields) {
  absl::Status status = absl::UnavailableError("UPDATE_STALLED run=r1 ...");
  SetFields(kFields, &status);
  const absl::Status reworded = Reworded(status, "nothing was taken");
  EXPECT_EQ(reworded.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(reworded.message(), "nothing was taken");
  EXPECT_EQ(FieldsOf(reworded), kFields);
}

}  // namespace
}  // namespace th
