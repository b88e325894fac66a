#include "th/controlled_rank/device_weights.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "th/memory/cuda/driver.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

constexpr uint64_t kTensorAlignment = 512;

bool HasBytes(const Tensor& tensor) { return tensor.alias_of.empty() && tensor.bytes > 0; }

uint64_t RoundUp(uint64_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

uint64_t AddressOf(const Tensor& tensor) { return reinterpret_cast<uint64_t>(tensor.data); }

}  // namespace

absl::StatusOr<std::shared_ptr<CudaMemoryDevices>> LoadGpus() {
  std::shared_ptr<CudaMemoryDevices> gpus = ProcessMemoryDevices();
  if (gpus != nullptr) return gpus;
  TH_RETURN_IF_ERROR(CudaDriver::Load().status());
  gpus = ProcessMemoryDevices();
  if (gpus == nullptr) return absl::UnavailableError("the CUDA driver shows no GPU");
  return gpus;
}

absl::StatusOr<std::unique_ptr<DeviceWeights>> DeviceWeights::Allocate(
    const std::vector<Tensor>& host, int gpu) {
  TH_ASSIGN_OR_RETURN(auto gpus, LoadGpus());
  TH_ASSIGN_OR_RETURN(CudaDevice* const device, gpus->devices().ByIndex(gpu));
  uint64_t bytes = 0;
  for (const Tensor& tensor : host) bytes += HasBytes(tensor) ? RoundUp(tensor.bytes) : 0;
  TH_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                      DeviceBuffer::Allocate(device, std::max(bytes, kTensorAlignment)));
  TH_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Create(device));
  std::unique_ptr<DeviceWeights> weights(
      new DeviceWeights(std::move(gpus), std::move(buffer), std::move(stream)));
  weights->host_ = weights->tensors_ = host;
  uint64_t next = weights->buffer_.address();
  absl::flat_hash_map<std::string, void*> owners;
  for (Tensor& tensor : weights->tensors_) {
    if (!HasBytes(tensor)) continue;
    owners[tensor.name] = tensor.data = reinterpret_cast<void*>(next);
    next += RoundUp(tensor.bytes);
  }
  for (Tensor& tensor : weights->tensors_) {
    if (!tensor.alias_of.empty()) tensor.data = owners[tensor.alias_of];
  }
  return weights;
}

absl::Status DeviceWeights::Upload() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!HasBytes(tensors_[i])) continue;
    TH_RETURN_IF_ERROR(
        stream_.CopyToDevice(AddressOf(tensors_[i]), host_[i].data, tensors_[i].bytes));
  }
  return stream_.Synchronize();
}

absl::Status DeviceWeights::Download() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!HasBytes(tensors_[i])) continue;
    TH_RETURN_IF_ERROR(
        stream_.CopyToHost(host_[i].data, AddressOf(tensors_[i]), tensors_[i].bytes));
  }
  return stream_.Synchronize();
}

absl::StatusOr<DeviceWeights::CopyTime> DeviceWeights::CopyFromGpu(int from) {
  TH_ASSIGN_OR_RETURN(CudaDevice* const source, gpus_->devices().ByIndex(from));
  TH_ASSIGN_OR_RETURN(const DeviceBuffer other, DeviceBuffer::Allocate(source, buffer_.bytes()));
  CopyTime time{.begin = MonotonicNow(), .end = absl::InfinitePast()};
  TH_RETURN_IF_ERROR(
      source == &stream_.device()
          ? stream_.CopyOnDevice(buffer_.address(), other.address(), buffer_.bytes())
          : stream_.CopyFromPeer(buffer_.address(), *source, other.address(), buffer_.bytes()));
  TH_RETURN_IF_ERROR(stream_.Synchronize());
  time.end = MonotonicNow();
  return time;
}

}  // namespace th
