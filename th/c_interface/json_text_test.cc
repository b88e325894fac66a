#include "th/c_interface/json_text.h"

#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;
using Json = nlohmann::json;

VersionInfo Version() {
  VersionInfo version;
  version.sequence = VersionSequence::Of(Epoch(2), 17);
  version.label = VersionLabel::FromStep(57);
  version.attributes = {{"optimizer_step", "570"}};
  return version;
}

TEST(JsonTextTest, NoVersionIsNull) { EXPECT_EQ(VersionToJson({}), "null"); }

TEST(JsonTextTest, AVersionHasSequenceLabelAndAttributes) {
  const Json json = Json::parse(VersionToJson(Version()));
  EXPECT_EQ(json["sequence"], "2.17");
  EXPECT_EQ(json["label"], "57");
  EXPECT_EQ(json["attributes"]["optimizer_step"], "570");
}

TEST(JsonTextTest, BytesThatAreNoUtf8AreReplaced) {
  VersionInfo version = Version();
  version.attributes = {{"blob", "\xff\xfe"}};
  EXPECT_TRUE(Json::accept(VersionToJson(version)));
}

TEST(JsonTextTest, AnUpdateSaysWhatCameOfIt) {
  UpdateResult result;
  result.outcome = UpdateOutcome::kNotAvailable;
  result.reason = NotAvailableReason::kLost;
  result.event = EventId::Of(Epoch(7), 12);
  result.transfer = absl::Milliseconds(1500);
  result.verify = absl::Milliseconds(500);
  result.sources.push_back({"trainer/0", "tcp 10.0.0.7:4711", "tcp", "same_host: on another host",
                            12, absl::Seconds(1), ""});
  const Json json = Json::parse(UpdateResultToJson(result));
  EXPECT_EQ(json["outcome"], "not_available");
  EXPECT_EQ(json["reason"], "lost");
  EXPECT_EQ(json["event"], "7-12");
  EXPECT_EQ(json["seconds"]["stall"], 2.0);
  EXPECT_EQ(json["sources"][0]["bytes"], 12);
  EXPECT_EQ(json["sources"][0]["passed_over"], "same_host: on another host");
}

TEST(JsonTextTest, AnAttachThatFoundNothingSaysWhy) {
  const Json json = Json::parse(AttachResultToJson({.outcome = UpdateOutcome::kNotAvailable,
                                                    .reason = NotAvailableReason::kNotPublished,
                                                    .version = {}}));
  EXPECT_EQ(json["outcome"], "not_available");
  EXPECT_EQ(json["reason"], "not_published");
  EXPECT_TRUE(json["version"].is_null());
}

TEST(JsonTextTest, ACatalogListsModelsVersionsAndRanks) {
  Catalog catalog;
  catalog.epoch = Epoch(3);
  CatalogModel& model = catalog.models.emplace_back();
  model.key = {"r1", "m"};
  CatalogVersion& version = model.versions.emplace_back();
  version.info = Version();
  CatalogReplica& replica = version.replicas.emplace_back();
  replica.group = "rollout-1";
  replica.ranks.emplace_back().name = {"rollout-1", Rank(4)};
  const Json json = Json::parse(CatalogToJson(catalog));
  EXPECT_EQ(json["epoch"], 3);
  EXPECT_EQ(json["models"][0]["versions"][0]["replicas"][0]["ranks"][0]["name"], "rollout-1/4");
}

TEST(JsonTextTest, AttributesAreAnObjectOfStrings) {
  EXPECT_THAT(AttributesFromJson(""), IsOkAndHolds(Attributes{}));
  EXPECT_THAT(AttributesFromJson(R"({"a":"1","b":""})"),
              IsOkAndHolds(Attributes{{"a", "1"}, {"b", ""}}));
  for (const char* text : {"[]", "{\"a\":1}", "{", "\"a\"", "{\"a\":\"b\"}}"}) {
    EXPECT_THAT(AttributesFromJson(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

}  // namespace
}  // namespace th
