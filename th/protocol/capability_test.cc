#include "th/protocol/capability.h"

#include <functional>
#include <string>

#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

CapabilityKey KeyOf(uint8_t byte) {
  CapabilityKey key;
  key.bytes.fill(byte);
  return key;
}

CapabilityClaims SomeClaims() {
  return {.reader = WorkerId(7),
          .source = {WorkerId(3), BufferId(2)},
          .version = VersionSequence::Of(Epoch(4), 9),
          .epoch = Epoch(4),
          .assignment = AssignmentId(11)};
}

TEST(CapabilityTest, HolderAcceptsWhatItsKeyMinted) {
  const Capability capability = MintCapability(KeyOf(1), SomeClaims());
  EXPECT_OK(VerifyCapability(KeyOf(1), capability));
  EXPECT_EQ(capability.claims, SomeClaims());
}

TEST(CapabilityTest, AnotherHoldersKeyIsRefusedNamingReaderAndSource) {
  const Capability capability = MintCapability(KeyOf(1), SomeClaims());
  EXPECT_THAT(VerifyCapability(KeyOf(2), capability),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("reader worker 7")));
  EXPECT_THAT(VerifyCapability(KeyOf(2), capability),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("buffer 2 of worker 3")));
}

struct ChangedClaim {
  const char* name;
  std::function<void(CapabilityClaims&)> change;
};

class ChangedClaimTest : public ::testing::TestWithParam<ChangedClaim> {};

TEST_P(ChangedClaimTest, IsRefused) {
  Capability capability = MintCapability(KeyOf(1), SomeClaims());
  GetParam().change(capability.claims);
  EXPECT_THAT(VerifyCapability(KeyOf(1), capability),
              StatusIs(absl::StatusCode::kPermissionDenied));
}

INSTANTIATE_TEST_SUITE_P(
    EveryClaim, ChangedClaimTest,
    ::testing::Values(
        ChangedClaim{"Reader", [](CapabilityClaims& c) { c.reader = WorkerId(8); }},
        ChangedClaim{"SourceWorker", [](CapabilityClaims& c) { c.source.worker = WorkerId(4); }},
        ChangedClaim{"SourceBuffer", [](CapabilityClaims& c) { c.source.buffer = BufferId(3); }},
        ChangedClaim{"Version", [](CapabilityClaims& c) { c.version = VersionSequence(1); }},
        ChangedClaim{"Epoch", [](CapabilityClaims& c) { c.epoch = Epoch(5); }},
        ChangedClaim{"Assignment", [](CapabilityClaims& c) { c.assignment = AssignmentId(12); }}),
    [](const auto& param) { return std::string(param.param.name); });

TEST(CapabilityTest, EveryFlippedBitOfTheMacIsRefused) {
  const Capability good = MintCapability(KeyOf(1), SomeClaims());
  for (size_t bit = 0; bit < good.mac.size() * 8; ++bit) {
    Capability bad = good;
    bad.mac[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    EXPECT_THAT(VerifyCapability(KeyOf(1), bad), StatusIs(absl::StatusCode::kPermissionDenied))
        << "bit " << bit;
  }
}

TEST(CapabilityTest, WorkerKeysDifferByWorkerAndBySecret) {
  const CapabilityKey key = DeriveWorkerKey(KeyOf(1), WorkerId(1));
  EXPECT_EQ(key, DeriveWorkerKey(KeyOf(1), WorkerId(1)));
  EXPECT_NE(key, DeriveWorkerKey(KeyOf(1), WorkerId(2)));
  EXPECT_NE(key, DeriveWorkerKey(KeyOf(2), WorkerId(1)));
  EXPECT_NE(key, KeyOf(1));
}

}  // namespace
}  // namespace th
