#include "th/transfer/ibverbs/host_registrations.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/transfer/ibverbs/parallel_prefault.h"
#include "th/transfer/stream/socket.h"

namespace th::ibverbs {
namespace {

using stream::ErrnoText;

constexpr unsigned kReadByPeers = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING;

ibv_mr* RegisterWith(const RdmaDevice& device, const MemoryRange& range, unsigned access) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): ranges are compared as numbers.
  void* const begin = reinterpret_cast<void*>(range.begin);
  const VerbsLibrary& verbs = device.verbs();
  if (verbs.reg_mr_iova2 != nullptr) {
    return verbs.reg_mr_iova2(device.domain(), begin, range.bytes, range.begin, access);
  }
  return verbs.reg_mr(device.domain(), begin, range.bytes,
                      static_cast<int>(access & ~unsigned{IBV_ACCESS_OPTIONAL_RANGE}));
}

absl::Status RegistrationFailed(const RdmaDevice& device, const MemoryRange& range, int error) {
  const std::string where = absl::StrCat(device.name(), " cannot register the memory at 0x",
                                         absl::Hex(range.begin), ": ");
  if (error == ENOMEM) {
    return absl::ResourceExhaustedError(absl::StrCat(where, MemlockAdvice(range.bytes)));
  }
  if (error == EFAULT) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "some of its ", range.bytes,
                     " bytes are not mapped, or are of a device or file that cannot be locked"));
  }
  return absl::InvalidArgumentError(absl::StrCat(where, ErrnoText(error)));
}

}  // namespace

std::vector<MemoryRange> MergeRanges(std::vector<MemoryRange> ranges, uint64_t page_bytes) {
  std::erase_if(ranges, [](const MemoryRange& range) { return range.bytes == 0; });
  std::sort(ranges.begin(), ranges.end(),
            [](const MemoryRange& a, const MemoryRange& b) { return a.begin < b.begin; });
  std::vector<MemoryRange> merged;
  for (const MemoryRange& range : ranges) {
    if (!merged.empty()) {
      MemoryRange& last = merged.back();
      const uint64_t last_page = (last.end() - 1) / page_bytes;
      if (range.begin / page_bytes <= last_page + 1) {
        last.bytes = std::max(last.end(), range.end()) - last.begin;
        continue;
      }
    }
    merged.push_back(range);
  }
  return merged;
}

// ---- Registration

HostRegistrations::Registration::~Registration() {
  for (size_t i = 0; i < regions_.size(); ++i) {
    if (devices_[i]->IsOurs()) devices_[i]->verbs().dereg_mr(regions_[i]);
  }
  if (budgeted_) budget_.Give(range_.bytes);
}

absl::Status HostRegistrations::Registration::Register() {
  TH_RETURN_IF_ERROR(budget_.Take(range_.bytes));
  budgeted_ = true;
  PrefaultInParallel(range_.begin, range_.bytes, prefault_);
  for (const auto& device : devices_) {
    if (range_.bytes > device->limits().max_registration_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(device->name(), " registers at most ",
                                                       device->limits().max_registration_bytes,
                                                       " bytes at once, not ", range_.bytes));
    }
    ibv_mr* region = nullptr;
    if (writable_) region = RegisterWith(*device, range_, kReadByPeers | IBV_ACCESS_LOCAL_WRITE);
    if (region == nullptr && (!writable_ || errno == EFAULT)) {
      // Memory that is mapped read-only can still be read by peers.
      region = RegisterWith(*device, range_, kReadByPeers);
      writable_ = false;
    }
    if (region == nullptr) return RegistrationFailed(*device, range_, errno);
    regions_.push_back(region);
  }
  return absl::OkStatus();
}

// ---- HostRegistrations

HostRegistrations::HostRegistrations(std::vector<std::shared_ptr<const RdmaDevice>> devices,
                                     Options options)
    : devices_(std::move(devices)), options_([&options] {
        if (options.budget == nullptr) {
          options.budget = std::make_shared<RegistrationBudget>(UINT64_MAX);
        }
        return std::move(options);
      }()) {}

HostRegistrations::Shared HostRegistrations::FindSame(const MemoryRange& range) const {
  const absl::ReaderMutexLock lock(&mu_);
  return table_.FindSame({range.begin, range.bytes});
}

absl::StatusOr<std::vector<HostRegistrations::Shared>> HostRegistrations::RegisterAll(
    absl::Span<const MemoryRange> merged) {
  size_t count = counters().registrations;
  std::vector<Shared> registrations;
  registrations.reserve(merged.size());
  for (const MemoryRange& range : merged) {
    if (Shared same = FindSame(range); same != nullptr) {
      registrations.push_back(std::move(same));
      continue;
    }
    if (++count > options_.max_registrations) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the memory lies in more than ", options_.max_registrations,
                       " separate places: allocate tensors side by side"));
    }
    auto registration =
        std::make_shared<Registration>(range, devices_, options_.budget.get(), options_.prefault);
    TH_RETURN_IF_ERROR(registration->Register());
    registrations.push_back(std::move(registration));
  }
  return registrations;
}

absl::StatusOr<uint64_t> HostRegistrations::Attach(absl::Span<const MemoryRange> ranges,
                                                   MemoryOwner owner) {
  static const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const std::vector<MemoryRange> merged = MergeRanges({ranges.begin(), ranges.end()}, page_bytes);
  const absl::MutexLock changing(&changing_);
  const absl::StatusOr<std::vector<Shared>> registrations = RegisterAll(merged);
  if (!merged.empty()) RememberTried(merged, registrations.status());
  TH_RETURN_IF_ERROR(registrations.status());
  const absl::MutexLock lock(&mu_);
  return table_.Add(*registrations, owner);
}

void HostRegistrations::RememberTried(absl::Span<const MemoryRange> merged,
                                      const absl::Status& tried) {
  const MemoryRange around{.begin = merged.front().begin,
                           .bytes = merged.back().end() - merged.front().begin};
  const absl::MutexLock lock(&mu_);
  // Where it is registered now this is not asked; between its ranges others may be refused still.
  std::erase_if(refused_, [&](const Refusal& refusal) { return refusal.around == around; });
  if (tried.ok()) return;
  if (refused_.size() == kMaxRefusals) refused_.pop_front();
  refused_.push_back({around, tried});
}

absl::Status HostRegistrations::WhyRefused(const void* address, uint64_t bytes,
                                           MemoryOwner owner) const {
  if (Find(address, bytes, 0, owner).has_value()) return absl::OkStatus();
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const absl::ReaderMutexLock lock(&mu_);
  for (auto refusal = refused_.rbegin(); refusal != refused_.rend(); ++refusal) {
    const MemoryRange& around = refusal->around;
    if (begin >= around.begin && begin + bytes <= around.end()) return refusal->why;
  }
  return absl::OkStatus();
}

void HostRegistrations::Detach(uint64_t attachment) {
  const absl::MutexLock changing(&changing_);
  std::vector<Shared> ended;  // deregistered once mu_ is released
  const absl::MutexLock lock(&mu_);
  ended = table_.Remove(attachment);
}

std::optional<HostRegistrations::Keys> HostRegistrations::Find(const void* address, uint64_t bytes,
                                                               size_t device,
                                                               MemoryOwner owner) const {
  const auto begin = reinterpret_cast<uint64_t>(address);
  // The lock is held throughout: Detach takes a registration out under it before that ends.
  const absl::ReaderMutexLock lock(&mu_);
  const Registration* const found =
      table_.FindAt(begin, owner, [begin, bytes](const Registration& each) {
        const uint64_t offset = begin - each.key().first;
        return offset <= each.bytes() && bytes <= each.bytes() - offset;
      });
  if (found == nullptr) return std::nullopt;
  return found->keys(device);
}

HostRegistrations::Counters HostRegistrations::counters() const {
  const absl::ReaderMutexLock lock(&mu_);
  return {.attachments = table_.attachments(),
          .registrations = table_.registrations(),
          .bytes = table_.bytes()};
}

}  // namespace th::ibverbs
