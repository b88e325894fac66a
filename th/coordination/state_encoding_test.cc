#include "th/coordination/state_encoding.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

StoredState Sample() {
  StoredState state{
      .epoch = Epoch(7),
      .identity = {.cluster = ClusterId(~uint64_t{0}), .epoch_ids = {EpochId(4), EpochId(99)}}};
  for (uint8_t& byte : state.identity.key.bytes) byte = static_cast<uint8_t>(200 + byte);
  state.durable.models[{"r1", "qwen3"}] = {
      .high_water = VersionSequence::Of(Epoch(6), 41),
      .high_water_label = "schritt-\xc3\xbc",
      .lineage = Lineage(2),
      .keep_latest = 3,
      .keep_latest_of_form = {{"fp8", 2}, {"hf", 5}},
      .pins = {{VersionSequence::Of(Epoch(1), 2), "evaluation", absl::InfiniteFuture(), "fp8"},
               {VersionSequence::Of(Epoch(1), 3), "",
                absl::FromUnixNanos(1'700'000'000'000'000'001)}},
      .roll_backs = {{Lineage(1), VersionSequence::Of(Epoch(2), 9)},
                     {Lineage(2), VersionSequence::Of(Epoch(5), 1), "trainer", GroupGeneration(9)}},
      .roll_back_results = {
          {"resume-57", VersionSequence::Of(Epoch(5), 1), "step-57", Lineage(2)}}};
  state.durable.models[{"r2", "qwen3"}] = {};
  return state;
}

// The text with a body that `change` made, under a right checksum.
std::string Resealed(const std::string& body) {
  return absl::StrCat("tensorhub-state 2 ", Sha256(body).ToHex(), "\n", body);
}

TEST(StateEncodingTest, EveryFieldSurvives) {
  EXPECT_THAT(DecodeState(EncodeState(Sample())), IsOkAndHolds(Sample()));
}

// Before forms, the results of roll-backs and the cluster were written.
TEST(StateEncodingTest, WhatAnOlderServerWroteIsRead) {
  StoredState old{.epoch = Epoch(1)};
  old.durable.models[{"r", "m"}] = {.high_water = VersionSequence(1),
                                    .keep_latest = 4,
                                    .pins = {{VersionSequence(1), "eval", absl::InfiniteFuture()}}};
  EXPECT_THAT(DecodeState(Resealed(R"({"epoch":1,"models":[
                  {"run":"r","model":"m","high_water":1,"lineage":0,"high_water_label":"",
                   "keep_latest":4,"pins":[{"version":1,"owner":"eval"}],"roll_backs":[]}]})")),
              IsOkAndHolds(old));
}

TEST(StateEncodingTest, EmptyStateSurvives) {
  EXPECT_THAT(DecodeState(EncodeState({})), IsOkAndHolds(StoredState{}));
}

TEST(StateEncodingTest, ExtremeNumbersSurvive) {
  StoredState state{.epoch = Epoch(0xffffffff)};
  state.durable.models[{"r", "m"}].high_water = VersionSequence(~uint64_t{0});
  EXPECT_THAT(DecodeState(EncodeState(state)), IsOkAndHolds(state));
}

TEST(StateEncodingTest, APersonCanReadIt) {
  EXPECT_THAT(EncodeState(Sample()), HasSubstr("\"owner\": \"evaluation\""));
}

TEST(StateEncodingTest, EveryFlippedByteIsNoticed) {
  const std::string text = EncodeState(Sample());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_FALSE(DecodeState(damaged).ok()) << "byte " << i;
  }
}

TEST(StateEncodingTest, EveryTruncationIsNoticed) {
  const std::string text = EncodeState(Sample());
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_THAT(DecodeState(text.substr(0, length)), StatusIs(absl::StatusCode::kDataLoss))
        << length;
  }
}

TEST(StateEncodingTest, ANewerFormatIsNamed) {
  EXPECT_THAT(DecodeState("tensorhub-state 3 whatever\n{}"),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("format 3, this server reads format 2")));
}

struct BadBody {
  const char* name;
  const char* body;
  const char* message;
};

class BadBodyTest : public ::testing::TestWithParam<BadBody> {};

TEST_P(BadBodyTest, IsRefusedByName) {
  EXPECT_THAT(DecodeState(Resealed(GetParam().body)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    StateEncoding, BadBodyTest,
    ::testing::Values(
        BadBody{"NoJson", "{", "no JSON"}, BadBody{"NoObject", "[]", "no object"},
        BadBody{"NoEpoch", R"({"models": []})", "epoch is missing"},
        BadBody{"NegativeEpoch", R"({"epoch": -1, "models": []})", "epoch is no number in range"},
        BadBody{"LargeEpoch", R"({"epoch": 4294967296, "models": []})", "epoch is no number"},
        BadBody{"NoModels", R"({"epoch": 1})", "models is missing"},
        BadBody{"ModelsNoArray", R"({"epoch": 1, "models": 3})", "models is no array"},
        BadBody{"ModelNoObject", R"({"epoch": 1, "models": [3]})", "no object"},
        BadBody{"ModelWithoutRun", R"({"epoch": 1, "models": [{}]})", "run is missing"},
        BadBody{"ClusterWithoutKey", R"({"epoch":1,"models":[],"cluster":3,"epoch_ids":[]})",
                "cluster_key is missing"},
        BadBody{"ShortKey",
                R"({"epoch":1,"models":[],"cluster":3,"epoch_ids":[],"cluster_key":"00ff"})",
                "no key of 32 bytes"},
        BadBody{"EpochIdNoNumber",
                R"({"epoch":1,"models":[],"cluster":3,"epoch_ids":["x"],"cluster_key":""})",
                "an epoch id is no number"},
        BadBody{"PinNoObject",
                R"({"epoch":1,"models":[{"run":"r","model":"m","high_water":1,"lineage":0,
                    "high_water_label":"","keep_latest":0,"pins":[1],"roll_backs":[]}]})",
                "no object"},
        BadBody{"RollBackResultWithoutKey",
                R"({"epoch":1,"models":[{"run":"r","model":"m","high_water":1,"lineage":0,
                    "high_water_label":"","keep_latest":0,"pins":[],"roll_backs":[],
                    "roll_back_results":[{"to":1}]}]})",
                "idempotency_key is missing"},
        BadBody{"FormsNoArray",
                R"({"epoch":1,"models":[{"run":"r","model":"m","high_water":1,"lineage":0,
                    "high_water_label":"","keep_latest":0,"pins":[],"roll_backs":[],
                    "keep_latest_of_form":7}]})",
                "keep_latest_of_form is no array"},
        BadBody{"SameModelTwice",
                R"({"epoch":1,"models":[
                    {"run":"r","model":"m","high_water":1,"lineage":0,"high_water_label":"",
                     "keep_latest":0,"pins":[],"roll_backs":[]},
                    {"run":"r","model":"m","high_water":2,"lineage":0,"high_water_label":"",
                     "keep_latest":0,"pins":[],"roll_backs":[]}]})",
                "run=r model=m is there twice"}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace th
