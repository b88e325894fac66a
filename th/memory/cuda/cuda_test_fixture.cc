#include "th/memory/cuda/cuda_test_fixture.h"

#include <dlfcn.h>

#include <cstdlib>

#include "testing/fake_cuda/fake_cuda.h"

namespace th {
namespace {

// A failure of the test's own calls.
void Must(CUresult result) { ASSERT_EQ(result, CUDA_SUCCESS); }

}  // namespace

std::string TestDriverPath() {
  const char* path = std::getenv("TH_TEST_CUDA_DRIVER");
  return path == nullptr ? testing::FakeCuda::Path() : path;
}

bool IsFakeDriver() {
  void* library = dlopen(TestDriverPath().c_str(), RTLD_NOW | RTLD_LOCAL);
  return library != nullptr && dlsym(library, "th_fake_cuda_live") != nullptr;
}

std::vector<std::byte> PatternBytes(uint64_t bytes, uint64_t seed) {
  std::vector<std::byte> pattern(bytes);
  for (std::byte& byte : pattern) {
    seed = seed * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(seed >> 56);
  }
  return pattern;
}

void CudaTest::SetUp() {
  ASSERT_OK_AND_ASSIGN(driver_, CudaDriver::Load(TestDriverPath()));
  ASSERT_OK_AND_ASSIGN(devices_, CudaDevices::Open(driver_));
  ASSERT_OK_AND_ASSIGN(device_, devices_->ByIndex(0));
}

DeviceBuffer CudaTest::Filled(absl::Span<const std::byte> bytes) {
  absl::StatusOr<DeviceBuffer> buffer = DeviceBuffer::Allocate(device_, bytes.size());
  EXPECT_OK(buffer);
  WriteDevice(buffer->address(), bytes);
  return *std::move(buffer);
}

void CudaTest::WriteDevice(uint64_t address, absl::Span<const std::byte> bytes) {
  ASSERT_OK_AND_ASSIGN(const CudaStream stream, CudaStream::Create(device_));
  ASSERT_OK(stream.CopyToDevice(address, bytes.data(), bytes.size()));
  ASSERT_OK(stream.Synchronize());
}

std::vector<std::byte> CudaTest::ReadDevice(uint64_t address, uint64_t bytes) {
  std::vector<std::byte> read(bytes);
  const absl::StatusOr<CudaStream> stream = CudaStream::Create(device_);
  EXPECT_OK(stream);
  EXPECT_OK(stream->CopyToHost(read.data(), address, bytes));
  EXPECT_OK(stream->Synchronize());
  return read;
}

std::unique_ptr<DeviceMemory> CudaTest::Register(const void* pointer, uint64_t bytes) {
  absl::StatusOr<std::unique_ptr<DeviceMemory>> memory =
      DeviceMemory::Register(*devices_, pointer, bytes);
  EXPECT_OK(memory);
  return *std::move(memory);
}

// ---- mapped memory ----

struct MappedMemory::Functions {
  explicit Functions(const std::string& path)
      : library(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {}
  template <typename Function>
  Function* Find(Function*, const char* name) const {
    return reinterpret_cast<Function*>(dlsym(library, name));
  }
  void* const library;
};

// Calls a function of the driver that only tests use.
#define DRIVER(function) functions_->Find(&function, #function)

MappedMemory::MappedMemory(CudaDevice* device, uint32_t mappings, bool exportable)
    : device_(device),
      mappings_(mappings),
      exportable_(exportable),
      functions_(new Functions(device->driver().path)) {
  const absl::StatusOr<CudaDevice::Scope> scope = device_->Enter();
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_->index()};
  Must(DRIVER(cuMemGetAllocationGranularity)(&mapping_bytes_, &properties,
                                             CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUdeviceptr address = 0;
  Must(DRIVER(cuMemAddressReserve)(&address, bytes(), 0, 0, 0));
  address_ = address;
  Map();
}

MappedMemory::~MappedMemory() {
  Unmap();
  Must(DRIVER(cuMemAddressFree)(address_, bytes()));
}

void MappedMemory::Unmap() {
  for (uint32_t i = 0; i < mappings_; ++i) {
    if (mapped_[i]) UnmapOne(i);
  }
}

void MappedMemory::UnmapOne(uint32_t mapping) {
  const absl::StatusOr<CudaDevice::Scope> scope = device_->Enter();
  Must(DRIVER(cuMemUnmap)(address_ + mapping * mapping_bytes_, mapping_bytes_));
  mapped_[mapping] = false;
}

void MappedMemory::Map() {
  const absl::StatusOr<CudaDevice::Scope> scope = device_->Enter();
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_->index()};
  if (exportable_) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  for (uint32_t i = 0; i < mappings_; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    Must(DRIVER(cuMemCreate)(&handle, mapping_bytes_, &properties, 0));
    Must(DRIVER(cuMemMap)(address_ + i * mapping_bytes_, mapping_bytes_, 0, handle, 0));
    Must(DRIVER(cuMemRelease)(handle));  // the mapping keeps it
  }
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  Must(DRIVER(cuMemSetAccess)(address_, bytes(), &access, 1));
  mapped_.assign(mappings_, true);
}

#undef DRIVER

}  // namespace th
