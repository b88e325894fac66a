#include "testing/fake_cuda/fake_driver.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace th::testing {
namespace {

int DevicesFromEnvironment() {
  const char* text = std::getenv("TH_FAKE_CUDA_DEVICES");
  return text == nullptr ? kDefaultDevices : std::clamp(std::atoi(text), 0, kMaxDevices);
}

std::chrono::microseconds SynchronizeTimeFromEnvironment() {
  const char* text = std::getenv("TH_FAKE_CUDA_SYNCHRONIZE_MICROSECONDS");
  return std::chrono::microseconds(text == nullptr ? 0 : std::max(std::atoi(text), 0));
}

template <typename Handle>
uint64_t Number(Handle handle) {
  return reinterpret_cast<uint64_t>(handle);
}

template <typename Value>
Value FindIn(const std::map<uint64_t, Value>& values, uint64_t handle) {
  const auto found = values.find(handle);
  return found == values.end() ? nullptr : found->second;
}

}  // namespace

FakeDriver& FakeDriver::Get() {
  static FakeDriver* const driver = new FakeDriver();
  return *driver;
}

FakeDriver::FakeDriver()
    : devices_(DevicesFromEnvironment()),
      gate_(devices_),
      loses_device_copies_(std::getenv("TH_FAKE_CUDA_LOSE_DEVICE_COPIES") != nullptr),
      synchronize_time_(SynchronizeTimeFromEnvironment()),
      memory_(std::make_unique<FakeMemory>(devices_)) {
  if (const char* text = std::getenv("TH_FAKE_CUDA_INIT_ERROR")) {
    faults_["cuInit"] = {static_cast<CUresult>(std::atoi(text)), 0, 1 << 30};
  }
  memory_->RefusePeers(std::getenv("TH_FAKE_CUDA_REFUSE_PEERS") != nullptr);
}

void FakeDriver::Fail(const std::string& function, CUresult result, int skipped, int times) {
  const std::lock_guard<std::mutex> lock(mu_);
  faults_[function] = {result, skipped, times};
}

CUresult FakeDriver::Begin(const char* function) {
  const std::lock_guard<std::mutex> lock(mu_);
  const auto found = faults_.find(function);
  if (found != faults_.end()) {
    Fault& fault = found->second;
    if (fault.skipped > 0) {
      --fault.skipped;
    } else if (fault.times > 0) {
      --fault.times;
      return fault.result;
    }
  }
  const bool needs_initialization = std::string(function) != "cuInit";
  return needs_initialization && !initialized_ ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}

CUresult FakeDriver::Initialize() {
  const std::lock_guard<std::mutex> lock(mu_);
  if (devices_ == 0) return CUDA_ERROR_NO_DEVICE;
  initialized_ = true;
  return CUDA_SUCCESS;
}

bool FakeDriver::initialized() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return initialized_;
}

int& FakeDriver::current_device() {
  thread_local int current = -1;
  return current;
}

uint64_t FakeDriver::RetainContext(int device) {
  const std::lock_guard<std::mutex> lock(mu_);
  ++contexts_[device];
  return static_cast<uint64_t>(device) + 1;
}

bool FakeDriver::ReleaseContext(int device) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (contexts_[device] == 0) return false;
  --contexts_[device];
  return true;
}

bool FakeDriver::HasContext(int device) {
  const std::lock_guard<std::mutex> lock(mu_);
  return contexts_[device] > 0;
}

CUstream FakeDriver::AddStream() {
  auto stream = std::make_shared<FakeStream>(&gate_, current_device());
  const std::lock_guard<std::mutex> lock(mu_);
  const uint64_t handle = NextHandle();
  streams_[handle] = std::move(stream);
  return reinterpret_cast<CUstream>(handle);
}

bool FakeDriver::RemoveStream(CUstream stream) {
  const std::lock_guard<std::mutex> lock(mu_);
  const auto found = streams_.find(Number(stream));
  if (found == streams_.end()) return false;
  // The driver returns at once and the stream does what it was asked for; so does this one's
  // thread.
  std::thread([ended = std::move(found->second)]() mutable { ended.reset(); }).detach();
  streams_.erase(found);
  return true;
}

std::shared_ptr<FakeStream> FakeDriver::FindStream(CUstream stream) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (stream != nullptr) return FindIn(streams_, Number(stream));
  const int device = current_device();
  if (device < 0) return nullptr;
  std::shared_ptr<FakeStream>& own = default_streams_[device];
  if (own == nullptr) own = std::make_shared<FakeStream>(&gate_, device);
  return own;
}

CUevent FakeDriver::AddEvent() {
  const std::lock_guard<std::mutex> lock(mu_);
  const uint64_t handle = NextHandle();
  events_[handle] = std::make_shared<FakeEvent>();
  return reinterpret_cast<CUevent>(handle);
}

bool FakeDriver::RemoveEvent(CUevent event) {
  const std::lock_guard<std::mutex> lock(mu_);
  return events_.erase(Number(event)) > 0;
}

std::shared_ptr<FakeEvent> FakeDriver::FindEvent(CUevent event) {
  const std::lock_guard<std::mutex> lock(mu_);
  return FindIn(events_, Number(event));
}

CUmodule FakeDriver::AddModule() {
  const std::lock_guard<std::mutex> lock(mu_);
  const uint64_t handle = NextHandle();
  modules_.insert(handle);
  return reinterpret_cast<CUmodule>(handle);
}

bool FakeDriver::RemoveModule(CUmodule module) {
  const std::lock_guard<std::mutex> lock(mu_);
  return modules_.erase(Number(module)) > 0;
}

bool FakeDriver::HasModule(CUmodule module) {
  const std::lock_guard<std::mutex> lock(mu_);
  return modules_.count(Number(module)) > 0;
}

CUmemGenericAllocationHandle FakeDriver::AddPhysical(std::shared_ptr<const Physical> physical) {
  const std::lock_guard<std::mutex> lock(mu_);
  const uint64_t handle = NextHandle();
  physical_[handle] = std::move(physical);
  return handle;
}

bool FakeDriver::RemovePhysical(CUmemGenericAllocationHandle handle) {
  const std::lock_guard<std::mutex> lock(mu_);
  return physical_.erase(handle) > 0;
}

std::shared_ptr<const Physical> FakeDriver::FindPhysical(CUmemGenericAllocationHandle handle) {
  const std::lock_guard<std::mutex> lock(mu_);
  return FindIn(physical_, handle);
}

uint64_t FakeDriver::live() {
  const std::lock_guard<std::mutex> lock(mu_);
  uint64_t retained = 0;
  for (const auto& [device, times] : contexts_) retained += times;
  return memory_->live() + retained + streams_.size() + events_.size() + modules_.size() +
         physical_.size();
}

}  // namespace th::testing
