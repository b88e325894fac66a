#include "th/weights/safetensors_index.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::th::testing::IsOk;
using ::th::testing::StatusIs;

TEST(SafetensorsIndexTest, ReadsWhereTensorsAre) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsIndex index,
                       ParseSafetensorsIndex(R"({"metadata": {"total_size": 1.5e10, "x": [[1]]},
                         "weight_map": {"b": "2.safetensors", "a": "1.safetensors",
                                        "c": "1.safetensors"},
                         "later": {"weight_map": "not this"}})"));
  EXPECT_THAT(index.weight_map, ElementsAre(Pair("a", "1.safetensors"), Pair("b", "2.safetensors"),
                                            Pair("c", "1.safetensors")));
  EXPECT_THAT(index.Files(), ElementsAre("1.safetensors", "2.safetensors"));
}

TEST(SafetensorsIndexTest, ReadsWhatItWrites) {
  const SafetensorsIndex index{
      .weight_map = {{"a\"\xc3\xbc", "1.safetensors"}, {"b", "model-00002-of-00002.safetensors"}}};
  ASSERT_OK_AND_ASSIGN(const SafetensorsIndex again,
                       ParseSafetensorsIndex(EncodeSafetensorsIndex(index, 17)));
  EXPECT_EQ(again.weight_map, index.weight_map);
  EXPECT_THAT(EncodeSafetensorsIndex(index, 17), HasSubstr(R"("total_size": 17)"));
}

std::string Map(const std::string& entries) {
  return absl::StrCat(R"({"weight_map":{)", entries, "}}");
}

TEST(SafetensorsIndexTest, RefusesHostileText) {
  struct Case {
    std::string json;
    std::string message;
  };
  const std::string not_plain = "which is not the plain name of a file";
  const Case cases[] = {
      {"", "is not JSON"},
      {"{", "is not JSON: error at byte 2"},
      {"{\"\xff\":1}", "is not UTF-8"},
      {"{}", "has no weight_map"},
      {R"({"metadata":{}})", "has no weight_map"},
      {Map(""), "has no weight_map, or an empty one"},
      {R"({"weight_map":"a"})", "a string does not belong at 'weight_map'"},
      {R"({"weight_map":["a"]})", "an array does not belong at 'weight_map'"},
      {R"({"weight_map":7})", "a number does not belong at 'weight_map'"},
      {R"({"weight_map":null})", "null does not belong at 'weight_map'"},
      {Map(R"("a":7)"), "a number does not belong at 'a'"},
      {Map(R"("a":-7)"), "-7 does not belong at 'a'"},
      {Map(R"("a":{"b":"c"})"), "an object does not belong at 'a'"},
      {Map(R"("a":["b"])"), "an array does not belong at 'a'"},
      {Map(R"("a":"1","a":"2")"), "has tensor 'a' twice"},
      {R"({"weight_map":{"a":"1"},"weight_map":{"b":"2"}})", "has weight_map twice"},
      {Map(R"("a":"")"), not_plain},
      {Map(R"("a":"..")"), not_plain},
      {Map(R"("a":"../x")"), "places tensor 'a' in '../x', " + not_plain},
      {Map(R"("a":"/etc/passwd")"), not_plain},
      {Map(R"("a":"sub/x.safetensors")"), not_plain},
      {Map(R"("a":"sub\\x.safetensors")"), not_plain},
      {Map(R"("a":".hidden")"), not_plain},
      {Map(R"("a":"x\u0000y")"), not_plain},
      {Map(R"("a":"x\ny")"), not_plain},
      {Map("\"a\":\"" + std::string(256, 'x') + "\""), not_plain},
      {R"({"metadata":)" + std::string(100'000, '['), "is nested too deeply"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(ParseSafetensorsIndex(c.json),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         ::testing::AllOf(::testing::StartsWith("safetensors index "),
                                          HasSubstr(c.message))));
  }
}

SafetensorsHeader HeaderOf(const std::vector<std::string>& names) {
  SafetensorsHeader header;
  for (const std::string& name : names) header.tensors.push_back({.spec = {.name = name}});
  return header;
}

TEST(CheckAgainstIndexTest, FileMustHoldExactlyWhatTheIndexSays) {
  const SafetensorsIndex index{.weight_map = {{"a", "1"}, {"b", "1"}, {"c", "2"}}};
  EXPECT_THAT(CheckAgainstIndex(index, "1", HeaderOf({"b", "a"})), IsOk());
  EXPECT_THAT(CheckAgainstIndex(index, "2", HeaderOf({"c"})), IsOk());
  EXPECT_THAT(CheckAgainstIndex(index, "1", HeaderOf({"a"})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "tensor 'b': missing in '1', where the index places it"));
  EXPECT_THAT(
      CheckAgainstIndex(index, "1", HeaderOf({"a", "b", "x"})),
      StatusIs(absl::StatusCode::kInvalidArgument, "tensor 'x': in '1', but not by the index"));
  EXPECT_THAT(
      CheckAgainstIndex(index, "1", HeaderOf({"a", "b", "c"})),
      StatusIs(absl::StatusCode::kInvalidArgument, "tensor 'c': in '1', but not by the index"));
}

}  // namespace
}  // namespace th
