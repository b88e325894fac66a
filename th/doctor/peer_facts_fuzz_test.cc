#include <cstddef>
#include <cstdint>

#include "nlohmann/json.hpp"
#include "testing/fuzz/fuzz_target.h"
#include "th/doctor/peer_facts.h"
#include "th/text/utf8.h"

using namespace th::doctor;  // NOLINT(google-build-using-namespace)

// Whatever line a peer sends: what is taken from it can be shown.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input = th::testing::AsText(data, size);
  const nlohmann::json line =
      nlohmann::json::parse(input.begin(), input.end(), nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) return 0;
  (void)CheckGreeting(line);
  PeerFacts peer;
  ReadGreeting(line, &peer);
  FUZZ_CHECK(th::IsUtf8(peer.host) && peer.host.size() <= kMaxPeerText + 8);
  const RateFacts rate = ReadRate(line);
  FUZZ_CHECK(rate.microseconds >= 0 && th::IsUtf8(rate.error));
  const auto findings = ReadFindings(line);
  if (!findings.has_value()) return 0;
  FUZZ_CHECK(findings->size() <= kMaxPeerFindings);
  for (const Finding& each : *findings) FUZZ_CHECK(th::IsUtf8(each.check + each.found));
  return 0;
}
