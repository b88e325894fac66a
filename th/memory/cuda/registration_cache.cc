#include "th/memory/cuda/registration_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "th/weights/status_macros.h"

namespace th {

std::vector<std::shared_ptr<DeviceMemory>> RegistrationCache::Overlapping(uint64_t address,
                                                                          uint64_t bytes) const {
  std::vector<std::shared_ptr<DeviceMemory>> overlapping;
  auto next = registrations_.upper_bound(address);
  if (next != registrations_.begin()) {
    const auto before = std::prev(next);
    if (address - before->first < before->second->bytes()) next = before;
  }
  for (; next != registrations_.end() && (next->first <= address || next->first - address < bytes);
       ++next) {
    overlapping.push_back(next->second);
  }
  return overlapping;
}

// Registers the range, and then all of the allocations that it lies in.
absl::StatusOr<std::shared_ptr<DeviceMemory>> RegistrationCache::RegisterWhole(
    const void* pointer, uint64_t bytes) const {
  TH_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> part,
                      DeviceMemory::Register(devices_, pointer, bytes));
  const DeviceAllocation first = part->allocations().front();
  const DeviceAllocation last = part->allocations().back();
  const uint64_t whole_bytes = last.address + last.bytes - first.address;
  if (whole_bytes == bytes) return std::shared_ptr<DeviceMemory>(std::move(part));
  TH_ASSIGN_OR_RETURN(
      std::unique_ptr<DeviceMemory> whole,
      DeviceMemory::Register(devices_, reinterpret_cast<void*>(first.address), whole_bytes));
  return std::shared_ptr<DeviceMemory>(std::move(whole));
}

absl::StatusOr<RegistrationCache::Found> RegistrationCache::Find(const void* pointer,
                                                                 uint64_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  const absl::MutexLock lock(&mu_);
  for (const std::shared_ptr<DeviceMemory>& known : Overlapping(address, bytes)) {
    const bool covers =
        known->address() <= address && known->CheckRange(address - known->address(), bytes).ok();
    if (covers && known->Verify(address - known->address(), bytes).ok()) {
      return Found{known, address - known->address()};
    }
  }
  TH_ASSIGN_OR_RETURN(std::shared_ptr<DeviceMemory> memory, RegisterWhole(pointer, bytes));
  // A registration that this one replaces is stale, or is a part of it.
  replaced_.erase(std::remove_if(replaced_.begin(), replaced_.end(),
                                 [](const std::weak_ptr<DeviceMemory>& replaced) {
                                   return replaced.expired();
                                 }),
                  replaced_.end());
  for (const std::shared_ptr<DeviceMemory>& replaced :
       Overlapping(memory->address(), memory->bytes())) {
    registrations_.erase(replaced->address());
    replaced_.push_back(replaced);
  }
  if (registrations_.size() >= options_.max_registrations) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", registrations_.size(),
                     " registrations of device memory, the most that there may be. Revoke "
                     "what is not used any more, or put tensors into fewer allocations"));
  }
  registrations_[memory->address()] = memory;
  return Found{memory, address - memory->address()};
}

absl::Status RegistrationCache::Revoke(const void* pointer, uint64_t bytes,
                                       absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  std::vector<std::shared_ptr<DeviceMemory>> revoked;
  {
    const absl::MutexLock lock(&mu_);
    const auto address = reinterpret_cast<uint64_t>(pointer);
    revoked = Overlapping(address, bytes);
    for (const std::weak_ptr<DeviceMemory>& replaced : replaced_) {
      const std::shared_ptr<DeviceMemory> memory = replaced.lock();
      if (memory == nullptr) continue;
      const bool apart =
          memory->address() >= address + bytes || address >= memory->address() + memory->bytes();
      if (!apart) revoked.push_back(memory);
    }
  }
  for (const std::shared_ptr<DeviceMemory>& memory : revoked) {
    TH_RETURN_IF_ERROR(memory->Revoke(std::max(deadline - absl::Now(), absl::ZeroDuration())));
    const absl::MutexLock lock(&mu_);
    const auto found = registrations_.find(memory->address());
    if (found != registrations_.end() && found->second == memory) registrations_.erase(found);
  }
  return absl::OkStatus();
}

size_t RegistrationCache::size() const {
  const absl::MutexLock lock(&mu_);
  return registrations_.size();
}

}  // namespace th
