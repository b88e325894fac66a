#include "th/transfer/device_fill_test_bed.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th::testing {

TestShard::Spec DeviceFillTestBed::SpecIn(Memory memory, ChecksumAlgorithm checksum) {
  TestShard::Spec spec{.tensor_bytes = {3'000'000, 3, 0, 5'000, 262'144, 1, 1, 70'000},
                       .segment_bytes = kSegment,
                       .checksum = checksum,
                       .device = &device_,
                       .every_other_on_host = memory == Memory::kMixed};
  if (memory == Memory::kHost) spec.device = nullptr;
  if (memory == Memory::kOtherDevice) spec.device = &other_device_;
  return spec;
}

void DeviceFillTestBed::Attach(Transport& transport, const TestShard& shard) {
  auto attached = transport.Attach(shard.store()->regions());
  EXPECT_OK(attached.status());
  attached_.push_back(*std::move(attached));
}

void DeviceFillTestBed::ExpectThatOnlyImpatienceGivesTheGpuUp(TestNode& source, TestNode& patient,
                                                              TestNode& impatient) {
  constexpr AssignmentId kAssignment(1);
  const Digest root = source.shard.Root();
  fake_.HoldStreams(true);
  for (TestNode* const reader : {&patient, &impatient}) {
    reader->StartFill(PatientReplicatorLimits(), {}, root)
        .SetSources(kAssignment, {source.AsSource()});
  }
  patient.observer.AwaitFirstWrite();
  EXPECT_THAT(impatient.observer.AwaitFailed(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       ::testing::HasSubstr(absl::StrCat("GPU ", device_.pci_address()))));
  impatient.StopFill();  // which does not wait for it
  fake_.HoldStreams(false);
  patient.observer.AwaitComplete();
  EXPECT_TRUE(patient.shard.Equals(source.shard));
  for (const TestNode* const reader : {&patient, &impatient}) {
    EXPECT_THAT(reader->observer.losses(), ::testing::IsEmpty());
  }
  // It has ended after all.
  EXPECT_OK(impatient.shard.store()->AwaitDevices(kPatience));
  EXPECT_FALSE(impatient.observer.calls_after_stopped());
}

}  // namespace th::testing
