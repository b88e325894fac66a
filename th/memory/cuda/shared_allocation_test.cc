// Device memory between two processes. Runs on the fake driver and on GPUs.
#include "th/memory/cuda/shared_allocation.h"

#include <sys/syscall.h>
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
#include "th/memory/cuda/device_checksums.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/cuda/stream.h"
#include "th/status/status_macros.h"
#include "th/weights/checksum.h"

namespace th {

// The owner's descriptor, in this process; of what has none, a number that is none.
int FetchDescriptor(const ExportedAllocation& exported) {
  if (exported.kind == SharedMemoryKind::kAllocated) return -1;
  const auto owner = static_cast<int>(syscall(SYS_pidfd_open, getppid(), 0));
  return static_cast<int>(syscall(SYS_pidfd_getfd, owner, exported.file_descriptor, 0));
}

// The reader's process: prints the sum of the imported memory, and inverts its bytes.
absl::StatusOr<std::string> ImportInvertAndChecksum(const std::string& encoded) {
  TH_ASSIGN_OR_RETURN(const CudaDriver* driver, CudaDriver::Load(TestDriverPath()));
  TH_ASSIGN_OR_RETURN(const std::unique_ptr<CudaDevices> devices, CudaDevices::Open(driver));
  TH_ASSIGN_OR_RETURN(const ExportedAllocation exported, ExportedAllocation::Decode(encoded));
  TH_ASSIGN_OR_RETURN(
      const std::unique_ptr<ImportedAllocation> imported,
      ImportAllocation(*devices, exported, {.file_descriptor = FetchDescriptor(exported)}));
  TH_ASSIGN_OR_RETURN(
      const std::unique_ptr<DeviceMemory> memory,
      DeviceMemory::Register(*devices, imported->pointer(), imported->bytes() - 100));
  TH_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceChecksums> checksums,
                      DeviceChecksums::Create(&imported->device(), {}));
  TH_ASSIGN_OR_RETURN(const std::vector<SegmentChecksum> checksum,
                      checksums->Checksum({{{memory.get(), 0, memory->bytes()}}}));
  TH_ASSIGN_OR_RETURN(const CudaStream stream, CudaStream::Create(&imported->device()));
  std::vector<std::byte> bytes(memory->bytes());
  TH_RETURN_IF_ERROR(stream.CopyToHost(bytes.data(), memory->address(), bytes.size()));
  TH_RETURN_IF_ERROR(stream.Synchronize());
  for (std::byte& byte : bytes) byte = ~byte;
  TH_RETURN_IF_ERROR(stream.CopyToDevice(memory->address(), bytes.data(), bytes.size()));
  TH_RETURN_IF_ERROR(stream.Synchronize());
  TH_RETURN_IF_ERROR(imported->Close());
  if (imported->Close().code() != absl::StatusCode::kFailedPrecondition) {
    return absl::InternalError("closed twice");
  }
  if (memory->Verify().ok()) return absl::InternalError("closed memory is there still");
  return absl::StrCat(absl::Hex(absl::Uint128High64(checksum[0]), absl::kZeroPad16),
                      absl::Hex(absl::Uint128Low64(checksum[0]), absl::kZeroPad16));
}

int ReaderMain(const char* exported_hex) {
  const absl::StatusOr<std::string> checksum =
      ImportInvertAndChecksum(absl::HexStringToBytes(exported_hex));
  std::printf("%s\n", checksum.ok() ? checksum->c_str() : checksum.status().ToString().c_str());
  return checksum.ok() ? 0 : 1;
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
  const std::string command = absl::StrCat(environment, "exec '", OwnPath(), "' --reader ",
                                           absl::BytesToHexString(exported));
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

class SharedAllocationTest : public CudaTest {
 protected:
  ExportedAllocation Export(const void* pointer) {
    auto shared = AllocationExport::Of(*devices_, pointer);
    EXPECT_OK(shared.status());
    exports_.push_back(*std::move(shared));
    return exports_.back()->exported();
  }
  absl::Status ImportStatus(const std::string& encoded) {
    const auto exported = ExportedAllocation::Decode(encoded);
    return exported.ok() ? ImportAllocation(*devices_, *exported).status() : exported.status();
  }

  std::vector<std::unique_ptr<AllocationExport>> exports_;
};

TEST_F(SharedAllocationTest, AnotherProcessReadsAndWritesTheMemoryItself) {
  // Not the first allocation, and a pointer within it.
  const DeviceBuffer before = Filled(PatternBytes(5000, 1));
  const std::vector<std::byte> pattern = PatternBytes(300'000, 2);
  const DeviceBuffer buffer = Filled(pattern);
  const ExportedAllocation exported = Export(static_cast<std::byte*>(buffer.pointer()) + 100);
  const ReaderResult reader = RunReader(exported.Encode(), "");
  ASSERT_EQ(reader.exit_status, 0) << reader.output;
  ASSERT_GE(exported.bytes, pattern.size());
  std::vector<std::byte> inverted = pattern;
  for (size_t i = 100; i < inverted.size(); ++i) inverted[i] = ~inverted[i];
  EXPECT_EQ(ReadDevice(buffer.address(), inverted.size()), inverted);
  // The allocation may be larger than what was asked for; what it has beyond was summed too.
  if (exported.bytes == pattern.size()) {
    const SegmentChecksum checksum = ChecksumBytes(&pattern[100], pattern.size() - 100);
    EXPECT_EQ(reader.output,
              absl::StrCat(absl::Hex(absl::Uint128High64(checksum), absl::kZeroPad16),
                           absl::Hex(absl::Uint128Low64(checksum), absl::kZeroPad16), "\n"));
  }
  EXPECT_EQ(ReadDevice(before.address(), 5000), PatternBytes(5000, 1));
}

// torch's expandable segments, which ask for descriptors.
TEST_F(SharedAllocationTest, AnotherProcessReadsAndWritesWhatWasMapped) {
  const MappedMemory mapped(device_, 2, /*exportable=*/true);
  const std::vector<std::byte> pattern = PatternBytes(mapped.bytes(), 3);
  WriteDevice(mapped.address(), pattern);
  const uint64_t offset = mapped.mapping_bytes() + 100;  // in the second mapping
  const ExportedAllocation exported = Export(static_cast<std::byte*>(mapped.pointer()) + offset);
  EXPECT_EQ(exported.kind, SharedMemoryKind::kMapped);
  EXPECT_EQ(exported.bytes, mapped.mapping_bytes());
  const ReaderResult reader = RunReader(exported.Encode(), "");
  ASSERT_EQ(reader.exit_status, 0) << reader.output;
  std::vector<std::byte> inverted = pattern;
  for (size_t i = offset; i < inverted.size(); ++i) inverted[i] = ~inverted[i];
  EXPECT_EQ(ReadDevice(mapped.address(), inverted.size()), inverted);
}

// A reader's import keeps what an engine has unmapped, and shows nothing of what it maps later.
TEST_F(SharedAllocationTest, WhatIsMappedAnewIsAnotherMemory) {
  MappedMemory mapped(device_, 1, /*exportable=*/true);
  const std::vector<std::byte> before = PatternBytes(5000, 3);
  WriteDevice(mapped.address(), before);
  const ExportedAllocation exported = Export(mapped.pointer());
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<ImportedAllocation> imported,
      ImportAllocation(*devices_, exported,
                       {.file_descriptor = static_cast<int>(exported.file_descriptor)}));
  mapped.Unmap();
  EXPECT_EQ(ReadDevice(imported->address(), before.size()), before);
  mapped.Map();
  WriteDevice(mapped.address(), PatternBytes(5000, 4));
  EXPECT_EQ(ReadDevice(imported->address(), before.size()), before);
  EXPECT_OK(imported->Close());
}

TEST_F(SharedAllocationTest, AReaderThatDoesNotSeeTheDeviceSaysSo) {
  const DeviceBuffer buffer = Filled(PatternBytes(1000, 1));
  ExportedAllocation elsewhere = Export(buffer.pointer());
  elsewhere.device_uuid.back() = elsewhere.device_uuid.back() == 'e' ? 'd' : 'e';
  EXPECT_THAT(ImportAllocation(*devices_, elsewhere),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(elsewhere.device_uuid)));
}

TEST_F(SharedAllocationTest, NonsenseIsRefused) {
  const DeviceBuffer buffer = Filled(PatternBytes(1000, 1));
  const ExportedAllocation exported = Export(buffer.pointer());
  const std::string encoded = exported.Encode();
  for (size_t bytes = 0; bytes < encoded.size(); ++bytes) {
    EXPECT_THAT(ImportStatus(encoded.substr(0, bytes)),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(ImportStatus(encoded + "x"), StatusIs(absl::StatusCode::kInvalidArgument));
  ExportedAllocation beyond = exported;
  beyond.offset = beyond.bytes;
  EXPECT_THAT(ExportedAllocation::Decode(beyond.Encode()),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ExportedAllocation both = exported;
  both.file_descriptor = 7;
  EXPECT_THAT(ExportedAllocation::Decode(both.Encode()),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ExportedAllocation other = exported;
  for (char& byte : other.handle.reserved) byte = 0x55;
  EXPECT_FALSE(ImportAllocation(*devices_, other).ok());
}

TEST_F(SharedAllocationTest, ADescriptorOfSomethingElseIsRefused) {
  const MappedMemory mapped(device_, 1, /*exportable=*/true);
  const ExportedAllocation exported = Export(mapped.pointer());
  EXPECT_THAT(ImportAllocation(*devices_, exported),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("descriptor")));
  EXPECT_FALSE(ImportAllocation(*devices_, exported, {.file_descriptor = STDIN_FILENO}).ok());
}

TEST_F(SharedAllocationTest, AHandleThatIsOfLessThanWasAnnouncedIsRefused) {
  const DeviceBuffer buffer = Filled(PatternBytes(1000, 1));
  ExportedAllocation exported = Export(buffer.pointer());
  exported.bytes += uint64_t{1} << 40;
  const ReaderResult reader = RunReader(exported.Encode(), "");
  EXPECT_EQ(reader.exit_status, 1);
  EXPECT_THAT(reader.output, AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("its handle is of")));
}

TEST_F(SharedAllocationTest, WhatIsNoDeviceMemoryOrWasMappedWithoutHandlesIsNotExported) {
  std::vector<std::byte> host(100);
  EXPECT_THAT(AllocationExport::Of(*devices_, host.data()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no device memory")));
  const MappedMemory mapped(device_, 1);
  EXPECT_THAT(AllocationExport::Of(*devices_, mapped.pointer()),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("expandable_segments")));
  EXPECT_THAT(CanBeExported(*devices_, mapped.pointer()),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("expandable_segments")));
  const MappedMemory exportable(device_, 1, /*exportable=*/true);
  EXPECT_OK(CanBeExported(*devices_, exportable.pointer()));
  const DeviceBuffer allocated = Filled(PatternBytes(10, 1));
  EXPECT_OK(CanBeExported(*devices_, allocated.pointer()));
}

// ---- other devices

TEST_F(SharedAllocationTest, ADeviceThatReachesAnothersMemoryImportsItForItself) {
  if (devices_->all().size() < 2) GTEST_SKIP() << "this machine has one GPU";
  CudaDevice* const other = devices_->all()[1].get();
  ASSERT_OK_AND_ASSIGN(const bool reaches, other->Reaches(*device_));
  if (!reaches) GTEST_SKIP() << "the GPUs of this machine do not reach each other";
  const MappedMemory mapped(device_, 1, /*exportable=*/true);
  const std::vector<std::byte> pattern = PatternBytes(5000, 3);
  WriteDevice(mapped.address(), pattern);
  const ExportedAllocation exported = Export(mapped.pointer());
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<ImportedAllocation> imported,
      ImportAllocation(
          *devices_, exported,
          {.device = other, .file_descriptor = static_cast<int>(exported.file_descriptor)}));
  EXPECT_EQ(&imported->device(), other);
  ASSERT_OK_AND_ASSIGN(const DeviceBuffer here, DeviceBuffer::Allocate(other, pattern.size()));
  ASSERT_OK_AND_ASSIGN(const CudaStream stream, CudaStream::Create(other));
  ASSERT_OK(stream.CopyOnDevice(here.address(), imported->address(), pattern.size()));
  std::vector<std::byte> read(pattern.size());
  ASSERT_OK(stream.CopyToHost(read.data(), here.address(), read.size()));
  ASSERT_OK(stream.Synchronize());
  EXPECT_EQ(read, pattern);
}

// The two devices may reach each other or not.
TEST_F(SharedAllocationTest, ACopyBetweenDevicesNeedsNoReach) {
  if (devices_->all().size() < 2) GTEST_SKIP() << "this machine has one GPU";
  CudaDevice* const other = devices_->all()[1].get();
  const std::vector<std::byte> pattern = PatternBytes(5000, 3);
  const DeviceBuffer there = Filled(pattern);
  ASSERT_OK_AND_ASSIGN(const DeviceBuffer here, DeviceBuffer::Allocate(other, pattern.size()));
  ASSERT_OK_AND_ASSIGN(const CudaStream stream, CudaStream::Create(other));
  ASSERT_OK(stream.CopyFromPeer(here.address(), *device_, there.address(), pattern.size()));
  std::vector<std::byte> read(pattern.size());
  ASSERT_OK(stream.CopyToHost(read.data(), here.address(), read.size()));
  ASSERT_OK(stream.Synchronize());
  EXPECT_EQ(read, pattern);
}

}  // namespace
}  // namespace th

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--reader") return th::ReaderMain(argv[2]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
