// The state of a process's fake driver, behind the functions of libcuda.
#ifndef TESTING_FAKE_CUDA_FAKE_DRIVER_H_
#define TESTING_FAKE_CUDA_FAKE_DRIVER_H_

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "testing/fake_cuda/fake_memory.h"
#include "testing/fake_cuda/fake_stream.h"
#include "th/memory/cuda/kernels/host_kernels.h"

namespace th::testing {

// TH_FAKE_CUDA_DEVICES says how many devices there are.
inline constexpr int kDefaultDevices = 2;
inline constexpr int kMaxDevices = 8;

class FakeDriver {
 public:
  // The process's own, which is never destroyed.
  static FakeDriver& Get();

  // The next `times` calls of `function` fail with `result`, from the one after `skipped`.
  void Fail(const std::string& function, CUresult result, int skipped, int times);
  // Every function of the driver calls this first; an error is the function's result.
  CUresult Begin(const char* function);
  CUresult Initialize();

  bool initialized() const;
  int devices() const { return devices_; }
  FakeMemory& memory() { return *memory_; }
  Gate& gate() { return gate_; }

  // A CUGPUDirectRDMAWritesOrdering.
  int writes_ordering() const { return writes_ordering_; }
  void OrderWrites(int ordering) { writes_ordering_ = ordering; }
  uint64_t flushes() const { return flushes_; }
  void CountFlush() { ++flushes_; }
  uint64_t synchronizations() const { return synchronizations_; }
  void CountSynchronization() { ++synchronizations_; }
  uint64_t bytes_to_host() const { return bytes_to_host_; }
  void CountToHost(uint64_t bytes) { bytes_to_host_ += bytes; }
  // How much later than its stream has ended cuStreamSynchronize returns.
  std::chrono::microseconds synchronize_time() const { return synchronize_time_; }
  // True where kernels and copies between devices' memory succeed and write nothing.
  bool loses_device_copies() const { return loses_device_copies_; }

  // Contexts are named after their devices. -1: none is current.
  int& current_device();
  uint64_t RetainContext(int device);
  bool ReleaseContext(int device);
  bool HasContext(int device);

  CUstream AddStream();
  bool RemoveStream(CUstream stream);
  // The stream of this handle; the default one of the current device for null. nullptr: there is
  // none.
  std::shared_ptr<FakeStream> FindStream(CUstream stream);
  CUevent AddEvent();
  bool RemoveEvent(CUevent event);
  std::shared_ptr<FakeEvent> FindEvent(CUevent event);
  CUmodule AddModule();
  bool RemoveModule(CUmodule module);
  bool HasModule(CUmodule module);
  CUmemGenericAllocationHandle AddPhysical(std::shared_ptr<const Physical> physical);
  bool RemovePhysical(CUmemGenericAllocationHandle handle);
  std::shared_ptr<const Physical> FindPhysical(CUmemGenericAllocationHandle handle);

  // Everything that was made and not given back.
  uint64_t live();

 private:
  struct Fault {
    CUresult result;
    int skipped;
    int times;
  };
  FakeDriver();
  uint64_t NextHandle() { return next_handle_ += 16; }

  const int devices_;
  Gate gate_;
  std::atomic<int> writes_ordering_{CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE};
  std::atomic<uint64_t> flushes_{0};
  std::atomic<uint64_t> synchronizations_{0};
  std::atomic<uint64_t> bytes_to_host_{0};
  const bool loses_device_copies_;
  const std::chrono::microseconds synchronize_time_;
  std::unique_ptr<FakeMemory> memory_;
  mutable std::mutex mu_;
  bool initialized_ = false;
  std::map<std::string, Fault> faults_;
  std::map<int, uint64_t> contexts_;  // {device: how often it is retained}
  std::map<int, std::shared_ptr<FakeStream>> default_streams_;
  std::map<uint64_t, std::shared_ptr<FakeStream>> streams_;
  std::map<uint64_t, std::shared_ptr<FakeEvent>> events_;
  std::set<uint64_t> modules_;
  std::map<uint64_t, std::shared_ptr<const Physical>> physical_;
  uint64_t next_handle_ = 0x1000;
};

}  // namespace th::testing

#endif  // TESTING_FAKE_CUDA_FAKE_DRIVER_H_
