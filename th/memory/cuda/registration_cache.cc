#include "th/memory/cuda/registration_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "th/status/status_macros.h"

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
  for (const std::shared_ptr<DeviceMemory>& replaced :
       Overlapping(memory->address(), memory->bytes())) {
    registrations_.erase(replaced->address());
    AddApart(replaced);
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

absl::StatusOr<std::shared_ptr<DeviceMemory>> RegistrationCache::RegisterApart(const void* pointer,
                                                                               uint64_t bytes) {
  TH_ASSIGN_OR_RETURN(std::shared_ptr<DeviceMemory> memory, RegisterWhole(pointer, bytes));
  const absl::MutexLock lock(&mu_);
  AddApart(memory);
  return memory;
}

void RegistrationCache::AddApart(const std::shared_ptr<DeviceMemory>& memory) {
  // Only where the list would grow: thousands may be added one after the other.
  if (apart_.size() == apart_.capacity()) {
    std::erase_if(apart_, [](const std::weak_ptr<DeviceMemory>& each) { return each.expired(); });
  }
  apart_.push_back(memory);
}

absl::Status RegistrationCache::Revoke(const void* pointer, uint64_t bytes,
                                       absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  std::vector<std::shared_ptr<DeviceMemory>> revoked;
  {
    const absl::MutexLock lock(&mu_);
    const auto address = reinterpret_cast<uint64_t>(pointer);
    revoked = Overlapping(address, bytes);
    for (const std::weak_ptr<DeviceMemory>& each : apart_) {
      const std::shared_ptr<DeviceMemory> memory = each.lock();
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

absl::Status RegistrationCache::AwaitUses(absl::Span<const MemoryRegion> regions,
                                          absl::Duration timeout) const {
  const absl::Time deadline = absl::Now() + timeout;
  std::vector<std::shared_ptr<DeviceMemory>> all;
  {
    const absl::MutexLock lock(&mu_);
    for (const auto& [address, memory] : registrations_) all.push_back(memory);
    for (const std::weak_ptr<DeviceMemory>& each : apart_) {
      if (std::shared_ptr<DeviceMemory> memory = each.lock()) all.push_back(std::move(memory));
    }
  }
  std::erase_if(all, [](const auto& memory) { return !memory->in_use(); });
  for (const std::shared_ptr<DeviceMemory>& memory : all) {
    for (const MemoryRegion& region : regions) {
      TH_RETURN_IF_ERROR(memory->AwaitUses(reinterpret_cast<uint64_t>(region.address), region.bytes,
                                           std::max(deadline - absl::Now(), absl::ZeroDuration())));
    }
  }
  return absl::OkStatus();
}

void RegistrationCache::DropUnused() {
  const absl::MutexLock lock(&mu_);
  // Only Find hands out shares, under the lock: a count of one stays so.
  std::erase_if(registrations_, [](const auto& entry) { return entry.second.use_count() == 1; });
}

size_t RegistrationCache::size() const {
  const absl::MutexLock lock(&mu_);
  return registrations_.size();
}

}  // namespace th
