#include "th/memory/cuda/device.h"

#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

std::string FormatUuid(const CUuuid& uuid) {
  const std::string hex = absl::BytesToHexString(absl::string_view(uuid.bytes, sizeof(uuid.bytes)));
  const absl::string_view text = hex;
  return absl::StrCat("GPU-", text.substr(0, 8), "-", text.substr(8, 4), "-", text.substr(12, 4),
                      "-", text.substr(16, 4), "-", text.substr(20));
}

}  // namespace

CudaDevice::Scope::~Scope() {
  if (driver_ != nullptr) driver_->CtxPopCurrent(nullptr);
}

CudaDevice::~CudaDevice() {
  const absl::MutexLock lock(&mu_);
  if (context_ != nullptr) driver_.DevicePrimaryCtxRelease(handle_);
}

absl::Status CudaDevice::ReadIdentity() {
  std::array<char, 256> name = {};
  std::array<char, 32> pci_address = {};
  CUuuid uuid = {};
  size_t bytes = 0;
  TH_RETURN_IF_ERROR(Status(driver_.DeviceGet(&handle_, index_), "open it"));
  TH_RETURN_IF_ERROR(
      Status(driver_.DeviceGetName(name.data(), name.size(), handle_), "read its name"));
  TH_RETURN_IF_ERROR(Status(driver_.DeviceGetUuid(&uuid, handle_), "read its UUID"));
  TH_RETURN_IF_ERROR(
      Status(driver_.DeviceGetPciBusId(pci_address.data(), pci_address.size(), handle_),
             "read its address"));
  TH_RETURN_IF_ERROR(Status(driver_.DeviceTotalMem(&bytes, handle_), "read its memory's size"));
  TH_RETURN_IF_ERROR(
      Status(driver_.DeviceGetAttribute(&multiprocessors_, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                        handle_),
             "count its multiprocessors"));
  name_ = name.data();
  uuid_ = FormatUuid(uuid);
  pci_address_ = absl::AsciiStrToLower(pci_address.data());
  memory_bytes_ = bytes;
  return absl::OkStatus();
}

absl::StatusOr<CUcontext> CudaDevice::Context() {
  const absl::MutexLock lock(&mu_);
  if (context_ == nullptr) {
    TH_RETURN_IF_ERROR(Status(driver_.DevicePrimaryCtxRetain(&context_, handle_), "use it"));
  }
  return context_;
}

absl::StatusOr<bool> CudaDevice::Reaches(const CudaDevice& other) const {
  if (&other == this) return true;
  int reaches = 0;
  TH_RETURN_IF_ERROR(Status(driver_.DeviceCanAccessPeer(&reaches, handle_, other.handle_),
                            absl::StrCat("find out if it reaches GPU ", other.index())));
  return reaches != 0;
}

absl::StatusOr<int> CudaDevice::Attribute(CUdevice_attribute attribute) const {
  int value = 0;
  TH_RETURN_IF_ERROR(Status(driver_.DeviceGetAttribute(&value, attribute, handle_),
                            absl::StrCat("read its attribute ", static_cast<int>(attribute))));
  return value;
}

absl::StatusOr<CudaDevice::Scope> CudaDevice::Enter() {
  TH_ASSIGN_OR_RETURN(CUcontext const context, Context());
  TH_RETURN_IF_ERROR(Status(driver_.CtxPushCurrent(context), "use it"));
  return Scope(&driver_);
}

absl::Status CudaDevice::Status(CUresult result, absl::string_view what) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return CudaStatus(
      driver_, result,
      absl::StrCat(what, " (GPU ", index_, pci_address_.empty() ? "" : ", ", pci_address_, ")"));
}

absl::StatusOr<std::unique_ptr<CudaDevices>> CudaDevices::Open(const CudaDriver* driver) {
  int count = 0;
  TH_RETURN_IF_ERROR(CudaStatus(*driver, driver->DeviceGetCount(&count), "count the GPUs"));
  std::unique_ptr<CudaDevices> devices(new CudaDevices(driver));
  for (int index = 0; index < count; ++index) {
    auto device = std::make_unique<CudaDevice>(driver, index);
    TH_RETURN_IF_ERROR(device->ReadIdentity());
    devices->devices_.push_back(std::move(device));
  }
  return devices;
}

absl::StatusOr<CudaDevice*> CudaDevices::ByIndex(int index) const {
  if (index >= 0 && static_cast<size_t>(index) < devices_.size()) return devices_[index].get();
  return NotFound(absl::StrCat("index ", index));
}

absl::StatusOr<CudaDevice*> CudaDevices::ByUuid(absl::string_view uuid) const {
  for (const auto& device : devices_) {
    if (device->uuid() == uuid) return device.get();
  }
  return NotFound(absl::StrCat("UUID ", uuid));
}

absl::StatusOr<CudaDevice*> CudaDevices::ByPciAddress(absl::string_view pci_address) const {
  for (const auto& device : devices_) {
    if (device->pci_address() == pci_address) return device.get();
  }
  return NotFound(absl::StrCat("PCI address ", pci_address));
}

absl::Status CudaDevices::NotFound(absl::string_view what) const {
  const std::string known = absl::StrJoin(
      devices_, ", ", [](std::string* out, const std::unique_ptr<CudaDevice>& device) {
        absl::StrAppend(out, device->index(), " at ", device->pci_address(), " (", device->uuid(),
                        ")");
      });
  return absl::NotFoundError(absl::StrCat("this process sees no GPU with ", what, "; it sees ",
                                          devices_.empty() ? "none" : known,
                                          ". CUDA_VISIBLE_DEVICES decides which it sees"));
}

}  // namespace th
