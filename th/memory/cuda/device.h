// The GPUs of this process, named by what all processes of a host agree on: UUID and PCI address.
// An index does not do, as CUDA_VISIBLE_DEVICES gives each process indices of its own.
//
//   TH_ASSIGN_OR_RETURN(const CudaDriver* driver, CudaDriver::Load());
//   TH_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevices> devices, CudaDevices::Open(driver));
//   TH_ASSIGN_OR_RETURN(CudaDevice * device, devices->ByPciAddress("0000:3b:00.0"));
//   TH_ASSIGN_OR_RETURN(const CudaDevice::Scope scope, device->Enter());
//   ... calls of the driver by this thread concern this device ...
//
// Thread-safe. Devices live as long as their CudaDevices, which outlives all that is made with
// them.
#ifndef TH_MEMORY_CUDA_DEVICE_H_
#define TH_MEMORY_CUDA_DEVICE_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "th/memory/cuda/driver.h"

namespace th {

class CudaDevice {
 public:
  // While it lives, the device's context is current on the thread that made it, and it may not
  // leave the thread.
  class Scope {
   public:
    explicit Scope(const CudaDriver* driver) : driver_(driver) {}
    ~Scope();
    Scope(Scope&& other) noexcept : driver_(std::exchange(other.driver_, nullptr)) {}
    Scope& operator=(Scope&&) = delete;

   private:
    const CudaDriver* driver_;
  };

  CudaDevice(const CudaDriver* driver, int index) : driver_(*driver), index_(index) {}
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const CudaDriver& driver() const { return driver_; }
  int index() const { return index_; }  // in this process
  // "GPU-8a56f0c4-1c3a-...", as nvidia-smi writes it.
  const std::string& uuid() const { return uuid_; }
  // "0000:3b:00.0", as MemoryRegion::device has it.
  const std::string& pci_address() const { return pci_address_; }
  const std::string& name() const { return name_; }  // the product's
  uint64_t memory_bytes() const { return memory_bytes_; }
  int multiprocessors() const { return multiprocessors_; }

  // Makes the device's primary context current, which CUDA's runtime and torch use too; the first
  // call creates it if nobody has. Errors of CudaStatus.
  absl::StatusOr<Scope> Enter();
  // The primary context, which Enter makes current. Errors of CudaStatus.
  absl::StatusOr<CUcontext> Context();
  // Errors of CudaStatus: INVALID_ARGUMENT where the driver does not know the attribute.
  absl::StatusOr<int> Attribute(CUdevice_attribute attribute) const;
  // True where kernels and copies of this device reach the memory of `other` without the host:
  // NVLink, or PCIe where the platform lets them. Errors of CudaStatus.
  absl::StatusOr<bool> Reaches(const CudaDevice& other) const;

  // CudaStatus, with the device's name in the text.
  absl::Status Status(CUresult result, absl::string_view what) const;

 private:
  friend class CudaDevices;
  absl::Status ReadIdentity();

  const CudaDriver& driver_;
  const int index_;
  CUdevice handle_ = 0;
  std::string uuid_;
  std::string pci_address_;
  std::string name_;
  uint64_t memory_bytes_ = 0;
  int multiprocessors_ = 0;
  absl::Mutex mu_;
  CUcontext context_ ABSL_GUARDED_BY(mu_) = nullptr;
};

class CudaDevices {
 public:
  // Reads which devices there are. Errors of CudaStatus. `driver` outlives the devices.
  static absl::StatusOr<std::unique_ptr<CudaDevices>> Open(const CudaDriver* driver);

  const CudaDriver& driver() const { return driver_; }
  const std::vector<std::unique_ptr<CudaDevice>>& all() const { return devices_; }
  // NOT_FOUND, naming the devices that there are.
  absl::StatusOr<CudaDevice*> ByIndex(int index) const;
  absl::StatusOr<CudaDevice*> ByUuid(absl::string_view uuid) const;
  absl::StatusOr<CudaDevice*> ByPciAddress(absl::string_view pci_address) const;

 private:
  explicit CudaDevices(const CudaDriver* driver) : driver_(*driver) {}
  absl::Status NotFound(absl::string_view what) const;

  const CudaDriver& driver_;
  std::vector<std::unique_ptr<CudaDevice>> devices_;
};

}  // namespace th

#endif  // TH_MEMORY_CUDA_DEVICE_H_
