#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "testing/fuzz/fuzz_target.h"
#include "th/simulator/scenarios/scenario.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<th::Scenario> scenario =
      th::ParseScenario("f", th::testing::AsText(data, size), {});
  if (!scenario.ok()) {
    FUZZ_CHECK(scenario.status().code() == absl::StatusCode::kInvalidArgument);
    FUZZ_CHECK(absl::StartsWith(scenario.status().message(), "f:"));
    return 0;
  }
  // RunScenario relies on these.
  FUZZ_CHECK(scenario->segments >= 1 && scenario->segments <= th::kMaxScenarioSegments);
  FUZZ_CHECK(scenario->segment_bytes * scenario->segments == scenario->shard_bytes);
  FUZZ_CHECK(scenario->end > absl::ZeroDuration() && scenario->end <= th::kMaxScenarioTime);
  FUZZ_CHECK(!scenario->training.family.empty());
  uint64_t ranks = 0;
  for (const th::ScenarioFamily& family : scenario->families) {
    FUZZ_CHECK(family.ranks % scenario->shards == 0);
    FUZZ_CHECK(family.places.size() == family.groups.size());
    for (const auto& places : family.places) {
      FUZZ_CHECK(places.size() == family.ranks);
      ranks += places.size();
      for (const th::Location& place : places) {
        FUZZ_CHECK(scenario->fabric.hosts.contains(place.host));
      }
    }
  }
  FUZZ_CHECK(ranks <= th::kMaxScenarioRanks);
  return 0;
}
