#include "th/transfer/device_fill_test_bed.h"

#include <utility>

#include "absl/time/time.h"
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

void DeviceFillTestBed::ExpectThatOnlyImpatienceBlamesTheSource(TestNode& source, TestNode& patient,
                                                                TestNode& impatient) {
  constexpr AssignmentId kAssignment(1);
  // Until the first write the source's own signs of life are all there is, on a loaded machine too.
  ReplicatorLimits limits;
  limits.silence = absl::Seconds(1);
  const Digest root = source.shard.Root();
  fake_.HoldStreams(true);
  patient.StartFill(PatientReplicatorLimits(), {}, root)
      .SetSources(kAssignment, {source.AsSource()});
  impatient.StartFill(limits, {}, root).SetSources(kAssignment, {source.AsSource()});
  patient.observer.AwaitFirstWrite();
  impatient.observer.AwaitFirstWrite();
  impatient.observer.AwaitLosses(1);
  fake_.HoldStreams(false);
  EXPECT_EQ(impatient.observer.losses()[0].failure, SourceFailure::kStalled);
  patient.observer.AwaitComplete();
  EXPECT_THAT(patient.observer.losses(), ::testing::IsEmpty());
  EXPECT_TRUE(patient.shard.Equals(source.shard));
}

}  // namespace th::testing
