// Device memory between two processes. Runs on the fake driver and on GPUs.
#include "th/memory/cuda/shared_allocation.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/memory/cuda/cuda_test_fixture.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/cuda/device_sums.h"
#include "th/memory/cuda/staging_ring.h"
#include "th/weights/checksum.h"
#include "th/weights/status_macros.h"

namespace th {

// The reader's process: prints the sum of the imported memory, and inverts its bytes.
absl::StatusOr<std::string> ImportInvertAndSum(const std::string& exported) {
  TH_ASSIGN_OR_RETURN(const CudaDriver* driver, CudaDriver::Load(TestDriverPath()));
  TH_ASSIGN_OR_RETURN(const std::unique_ptr<CudaDevices> devices, CudaDevices::Open(driver));
  TH_ASSIGN_OR_RETURN(const std::unique_ptr<ImportedAllocation> imported,
                      ImportAllocation(*devices, exported));
  TH_ASSIGN_OR_RETURN(
      const std::unique_ptr<DeviceMemory> memory,
      DeviceMemory::Register(*devices, imported->pointer(), imported->bytes() - 100));
  TH_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceSums> sums,
                      DeviceSums::Create(&imported->device(), {}));
  TH_ASSIGN_OR_RETURN(const std::vector<SegmentSum> sum,
                      sums->Sum({{{memory.get(), 0, memory->bytes()}}}));
  TH_ASSIGN_OR_RETURN(const std::unique_ptr<StagingRing> ring,
                      StagingRing::Create(&imported->device(), {}));
  std::vector<std::byte> bytes(memory->bytes());
  TH_RETURN_IF_ERROR(ring->CopyToHost(*memory, 0, absl::MakeSpan(bytes)));
  for (std::byte& byte : bytes) byte = ~byte;
  TH_RETURN_IF_ERROR(ring->CopyToDevice(*memory, 0, bytes));
  TH_RETURN_IF_ERROR(imported->Close());
  if (imported->Close().code() != absl::StatusCode::kFailedPrecondition) {
    return absl::InternalError("closed twice");
  }
  if (memory->Verify().ok()) return absl::InternalError("closed memory is there still");
  return absl::StrCat(absl::Hex(absl::Uint128High64(sum[0]), absl::kZeroPad16),
                      absl::Hex(absl::Uint128Low64(sum[0]), absl::kZeroPad16));
}

int ReaderMain(const char* exported_hex) {
  const absl::StatusOr<std::string> sum = ImportInvertAndSum(absl::HexStringToBytes(exported_hex));
  std::printf("%s\n", sum.ok() ? sum->c_str() : sum.status().ToString().c_str());
  return sum.ok() ? 0 : 1;
}

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

std::string OwnPath() {
  std::array<char, 4096> path = {};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return std::string(path.data(), length > 0 ? static_cast<size_t>(length) : 0);
}

struct ReaderResult {
  std::string output;
  int exit_status = -1;
};

// Runs a reader with these variables ("A=b ") in its environment.
ReaderResult RunReader(const std::string& exported, const std::string& environment) {
  const std::string command =
      absl::StrCat(environment, "'", OwnPath(), "' --reader ", absl::BytesToHexString(exported));
  ReaderResult result;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return result;
  std::array<char, 4096> buffer = {};
  for (size_t got = 0; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    result.output.append(buffer.data(), got);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.exit_status = WEXITSTATUS(status);
  return result;
}

using SharedAllocationTest = CudaTest;

TEST_F(SharedAllocationTest, AnotherProcessReadsAndWritesTheMemoryItself) {
  // Not the first allocation, and a pointer within it.
  const DeviceBuffer before = Filled(PatternBytes(5000, 1));
  const std::vector<std::byte> pattern = PatternBytes(300'000, 2);
  const DeviceBuffer buffer = Filled(pattern);
  ASSERT_OK_AND_ASSIGN(
      const std::string exported,
      ExportAllocation(*devices_, static_cast<std::byte*>(buffer.pointer()) + 100));
  const ReaderResult reader = RunReader(exported, "");
  ASSERT_EQ(reader.exit_status, 0) << reader.output;
  ASSERT_OK_AND_ASSIGN(const ExportedAllocation decoded, ExportedAllocation::Decode(exported));
  ASSERT_GE(decoded.bytes, pattern.size());
  std::vector<std::byte> inverted = pattern;
  for (size_t i = 100; i < inverted.size(); ++i) inverted[i] = ~inverted[i];
  EXPECT_EQ(ReadDevice(buffer.address(), inverted.size()), inverted);
  // The allocation may be larger than what was asked for; what it has beyond was summed too.
  if (decoded.bytes == pattern.size()) {
    const SegmentSum sum = SumBytes(&pattern[100], pattern.size() - 100);
    EXPECT_EQ(reader.output,
              absl::StrCat(absl::Hex(absl::Uint128High64(sum), absl::kZeroPad16),
                           absl::Hex(absl::Uint128Low64(sum), absl::kZeroPad16), "\n"));
  }
  EXPECT_EQ(ReadDevice(before.address(), 5000), PatternBytes(5000, 1));
}

TEST_F(SharedAllocationTest, AReaderThatDoesNotSeeTheDeviceSaysSo) {
  const DeviceBuffer buffer = Filled(PatternBytes(1000, 1));
  ASSERT_OK_AND_ASSIGN(const std::string exported, ExportAllocation(*devices_, buffer.pointer()));
  ASSERT_OK_AND_ASSIGN(ExportedAllocation elsewhere, ExportedAllocation::Decode(exported));
  elsewhere.device_uuid.back() = elsewhere.device_uuid.back() == 'e' ? 'd' : 'e';
  EXPECT_THAT(ImportAllocation(*devices_, elsewhere.Encode()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(elsewhere.device_uuid)));
}

TEST_F(SharedAllocationTest, NonsenseIsRefused) {
  const DeviceBuffer buffer = Filled(PatternBytes(1000, 1));
  ASSERT_OK_AND_ASSIGN(const std::string exported, ExportAllocation(*devices_, buffer.pointer()));
  for (size_t bytes = 0; bytes < exported.size(); ++bytes) {
    EXPECT_THAT(ImportAllocation(*devices_, exported.substr(0, bytes)),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(ImportAllocation(*devices_, exported + "x"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK_AND_ASSIGN(ExportedAllocation decoded, ExportedAllocation::Decode(exported));
  ExportedAllocation beyond = decoded;
  beyond.offset = beyond.bytes;
  EXPECT_THAT(ExportedAllocation::Decode(beyond.Encode()),
              StatusIs(absl::StatusCode::kInvalidArgument));
  for (char& byte : decoded.handle.reserved) byte = 0x55;
  EXPECT_FALSE(ImportAllocation(*devices_, decoded.Encode()).ok());
}

TEST_F(SharedAllocationTest, AHandleThatIsOfLessThanWasAnnouncedIsRefused) {
  const DeviceBuffer buffer = Filled(PatternBytes(1000, 1));
  ASSERT_OK_AND_ASSIGN(const std::string exported, ExportAllocation(*devices_, buffer.pointer()));
  ASSERT_OK_AND_ASSIGN(ExportedAllocation decoded, ExportedAllocation::Decode(exported));
  decoded.bytes += uint64_t{1} << 40;
  const ReaderResult reader = RunReader(decoded.Encode(), "");
  EXPECT_EQ(reader.exit_status, 1);
  EXPECT_THAT(reader.output, AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("its handle is of")));
}

TEST_F(SharedAllocationTest, WhatIsNoDeviceMemoryOrWasMappedIsNotExported) {
  std::vector<std::byte> host(100);
  EXPECT_THAT(ExportAllocation(*devices_, host.data()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no device memory")));
  const MappedMemory mapped(device_, 1);
  EXPECT_THAT(ExportAllocation(*devices_, mapped.pointer()),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("expandable_segments")));
}

}  // namespace
}  // namespace th

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--reader") return th::ReaderMain(argv[2]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
