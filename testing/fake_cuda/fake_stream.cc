#include "testing/fake_cuda/fake_stream.h"

#include <algorithm>
#include <utility>

namespace th::testing {

void Gate::Hold(int device, bool held) {
  const std::lock_guard<std::mutex> lock(mu_);
  devices_.at(static_cast<size_t>(device)).held = held;
  changed_.notify_all();
}

void Gate::HoldAll(bool held) {
  const std::lock_guard<std::mutex> lock(mu_);
  for (Device& device : devices_) device.held = held;
  changed_.notify_all();
}

void Gate::Pass(int device) {
  std::unique_lock<std::mutex> lock(mu_);
  Device& own = devices_.at(static_cast<size_t>(device));
  ++own.waiting;
  changed_.notify_all();
  changed_.wait(lock, [&own] { return !own.held; });
  --own.waiting;
}

void Gate::AwaitHeld() {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait(lock, [this] {
    return std::any_of(devices_.begin(), devices_.end(),
                       [](const Device& device) { return device.held && device.waiting > 0; });
  });
}

uint64_t FakeEvent::Record() {
  const std::lock_guard<std::mutex> lock(mu_);
  return ++recorded_;
}

uint64_t FakeEvent::last_record() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return recorded_;
}

void FakeEvent::Happened(uint64_t record) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (record > happened_) happened_ = record;
  happened_changed_.notify_all();
}

bool FakeEvent::has_happened() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return happened_ >= recorded_;
}

void FakeEvent::Wait(uint64_t record) const {
  std::unique_lock<std::mutex> lock(mu_);
  happened_changed_.wait(lock, [&] { return happened_ >= record; });
}

FakeStream::FakeStream(Gate* gate, int device)
    : gate_(gate), device_(device), thread_([this] { Run(); }) {}

FakeStream::~FakeStream() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void FakeStream::Add(Work work) {
  const std::lock_guard<std::mutex> lock(mu_);
  work_.push_back(std::move(work));
  ++added_;
  changed_.notify_all();
}

CUresult FakeStream::Synchronize() {
  std::unique_lock<std::mutex> lock(mu_);
  const uint64_t target = added_;
  changed_.wait(lock, [&] { return done_ >= target; });
  return error_;
}

CUresult FakeStream::error() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return error_;
}

void FakeStream::Run() {
  std::unique_lock<std::mutex> lock(mu_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !work_.empty(); });
    if (work_.empty()) return;
    const Work work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    gate_->Pass(device_);
    const CUresult result = work();
    lock.lock();
    if (error_ == CUDA_SUCCESS) error_ = result;
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace th::testing
