#include "th/transfer/ibverbs/gpu_landings.h"

#include <algorithm>
#include <utility>

#include "th/memory/cuda/gpu_direct.h"

namespace th::ibverbs {

// ---- one segment

bool GpuLanding::Begin() {
  const absl::MutexLock lock(&mu_);
  if (state_ != State::kWaiting) return false;
  state_ = State::kRunning;
  return true;
}

// The landings' thread may keep the landing itself for longer.
std::function<void()> GpuLanding::GiveUpSpec() { return std::exchange(spec_, Spec()).on_end; }

// on_end is called under the lock, so that nobody who awaits the landing goes on before it has
// returned.
void GpuLanding::End(absl::Status status, std::optional<SegmentChecksum> checksum) {
  const absl::MutexLock lock(&mu_);
  status_ = std::move(status);
  checksum_ = checksum;
  state_ = State::kEnded;
  GiveUpSpec()();
}

bool GpuLanding::Cancel() {
  const absl::MutexLock lock(&mu_);
  if (state_ == State::kWaiting) {
    status_ = absl::CancelledError("the landing was cancelled before it had begun");
    state_ = State::kEnded;
    GiveUpSpec();
  }
  return state_ == State::kEnded;
}

bool GpuLanding::AwaitEnd(absl::Duration timeout) const {
  const absl::MutexLock lock(&mu_);
  const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return state_ == State::kEnded; };
  return mu_.AwaitWithTimeout(absl::Condition(&ended), timeout);
}

bool GpuLanding::ended() const {
  const absl::MutexLock lock(&mu_);
  return state_ == State::kEnded;
}

// ---- all of them

void GpuLandings::Submit(std::shared_ptr<GpuLanding> landing) {
  const absl::MutexLock lock(&mu_);
  OfDevice& of_device = devices_[landing->device_];
  of_device.waiting.push_back(std::move(landing));
  if (of_device.waiting.size() > 1) return;  // taken along with the first one
  of_device.thread.Post([this, &of_device] { RunWaiting(of_device); });
}

void GpuLandings::RunWaiting(OfDevice& of_device) {
  Batch batch;
  {
    const absl::MutexLock lock(&mu_);
    batch.swap(of_device.waiting);
  }
  std::erase_if(batch, [](const auto& landing) { return !landing->Begin(); });
  if (!batch.empty()) RunOnDevice(*batch.front()->device_, batch);
}

// The flush comes after the completions of all bytes, and before any kernel.
void GpuLandings::RunOnDevice(CudaDevice& device, const Batch& batch) {
  const absl::Status flushed = FlushRemoteWrites(device);
  std::vector<std::vector<DevicePiece>> segments;
  for (const auto& landing : batch) {
    if (landing->spec_.checksummed) segments.push_back(landing->spec_.pieces);
  }
  absl::StatusOr<std::vector<SegmentChecksum>> checksums = std::vector<SegmentChecksum>();
  if (flushed.ok() && !segments.empty())
    checksums = batch[0]->spec_.gpus->Checksum(device, segments);
  size_t next = 0;
  for (const auto& landing : batch) {
    const GpuLanding::Spec& spec = landing->spec_;
    absl::Status status = flushed;
    std::optional<SegmentChecksum> checksum;
    if (status.ok() && spec.checksummed && checksums.ok()) checksum = (*checksums)[next++];
    if (status.ok() && spec.checksummed && !checksums.ok()) {
      // One of the segments is at fault, not all of them.
      const auto alone = spec.gpus->Checksum(device, {spec.pieces});
      status = alone.status();
      if (alone.ok()) checksum = alone->front();
    }
    // Memory that was freed meanwhile explains every other failure.
    if (absl::Status still = spec.use.Verify(); !still.ok()) status = std::move(still);
    landing->End(std::move(status), checksum);
  }
}

}  // namespace th::ibverbs
