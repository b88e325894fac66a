#include "th/transfer/ibverbs/gpu_registrations.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "th/memory/cuda/gpu_direct.h"
#include "th/memory/cuda/registration_cache.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/stream/socket.h"

namespace th::ibverbs {
namespace {

using stream::ErrnoText;

constexpr unsigned kAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING;
// The driver is asked no more often if an allocation is still the one that was registered. A use
// that writes asks again at its beginning and its end.
constexpr absl::Duration kVerifiedFor = absl::Milliseconds(1);

enum class Way : uint8_t { kDmaBuf, kPeermem };

// The address where memory begins, and the ids of its allocations, in order of address.
using MemoryKey = std::pair<uint64_t, std::vector<uint64_t>>;

MemoryKey KeyOf(const DeviceMemory& memory) {
  MemoryKey key{memory.address(), {}};
  key.second.reserve(memory.allocations().size());
  for (const DeviceAllocation& allocation : memory.allocations()) {
    key.second.push_back(allocation.buffer_id);
  }
  return key;
}

absl::StatusOr<ibv_mr*> RegisterByDmaBuf(const RdmaDevice& adapter, const DeviceMemory& memory) {
  const VerbsLibrary& verbs = adapter.verbs();
  if (verbs.reg_dmabuf_mr == nullptr) {
    return absl::UnimplementedError("libibverbs is older than 34");
  }
  TH_ASSIGN_OR_RETURN(const DmaBuf exported,
                      DmaBuf::Export(memory.device(), memory.address(), memory.bytes()));
  ibv_mr* const region =
      verbs.reg_dmabuf_mr(adapter.domain(), exported.offset(), memory.bytes(), memory.address(),
                          exported.file_descriptor(), static_cast<int>(kAccess));
  if (region == nullptr) return absl::FailedPreconditionError(ErrnoText(errno));
  return region;
}

absl::StatusOr<ibv_mr*> RegisterByPeermem(const RdmaDevice& adapter, const DeviceMemory& memory) {
  const VerbsLibrary& verbs = adapter.verbs();
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel's module finds the GPU by the address.
  void* const begin = reinterpret_cast<void*>(memory.address());
  ibv_mr* const region =
      verbs.reg_mr_iova2 != nullptr
          ? verbs.reg_mr_iova2(adapter.domain(), begin, memory.bytes(), memory.address(), kAccess)
          : verbs.reg_mr(adapter.domain(), begin, memory.bytes(),
                         static_cast<int>(kAccess & ~unsigned{IBV_ACCESS_OPTIONAL_RANGE}));
  if (region == nullptr) return absl::FailedPreconditionError(ErrnoText(errno));
  return region;
}

struct Range {
  uint64_t begin, end;
};

const void* Pointer(uint64_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): ranges are compared as numbers.
  return reinterpret_cast<const void*>(address);
}

// The whole allocations that the regions of GPUs lie in, and no others; those that overlap are one
// range, so that they are registered once.
absl::StatusOr<std::vector<Range>> AllocationsOf(absl::Span<const MemoryRegion> regions,
                                                 CudaMemoryDevices* gpus) {
  std::vector<Range> wanted;
  for (const MemoryRegion& region : regions) {
    if (region.kind != MemoryKind::kDevice || region.bytes == 0) continue;
    if (gpus == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("memory of GPU ", region.device,
                       " is staged: this process has loaded no CUDA driver, or it found no GPU"));
    }
    const auto begin = reinterpret_cast<uint64_t>(region.address);
    wanted.push_back({begin, begin + region.bytes});
  }
  std::sort(wanted.begin(), wanted.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> ranges;
  for (const Range& range : wanted) {
    // The driver is not asked for each of the thousands of tensors of one allocation.
    if (!ranges.empty() && range.end <= ranges.back().end) continue;
    TH_ASSIGN_OR_RETURN(
        const std::unique_ptr<DeviceMemory> part,
        DeviceMemory::Register(gpus->devices(), Pointer(range.begin), range.end - range.begin));
    const DeviceAllocation& first = part->allocations().front();
    const DeviceAllocation& last = part->allocations().back();
    if (!ranges.empty() && first.address < ranges.back().end) {
      ranges.back().end = last.address + last.bytes;
    } else {
      ranges.push_back({first.address, last.address + last.bytes});
    }
  }
  return ranges;
}

}  // namespace

// Whole allocations, registered with every adapter; deregistered when it is destroyed.
class GpuRegistrations::Registration {
 public:
  using Key = MemoryKey;

  Registration(std::shared_ptr<DeviceMemory> memory,
               const std::vector<std::shared_ptr<const RdmaDevice>>& adapters,
               std::shared_ptr<RegistrationBudget> budget)
      : memory_(std::move(memory)),
        adapters_(adapters),
        budget_(std::move(budget)),
        verified_at_(new std::atomic<int64_t>[memory_->allocations().size()]()) {}
  ~Registration() {
    for (const Region& region : regions_) {
      const RdmaDevice& adapter = *adapters_[region.adapter];
      if (adapter.IsOurs()) adapter.verbs().dereg_mr(region.region);
    }
    if (budgeted_) budget_->Give(memory_->bytes());
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  absl::Status Register() {
    TH_RETURN_IF_ERROR(budget_->Take(memory_->bytes()));
    budgeted_ = true;
    const absl::Status flushes = CanFlushRemoteWrites(memory_->device());
    if (!flushes.ok()) return Staged(flushes.message());
    for (size_t i = 0; i < adapters_.size(); ++i) TH_RETURN_IF_ERROR(RegisterWith(i));
    return absl::OkStatus();
  }

  Key key() const { return KeyOf(*memory_); }
  uint64_t bytes() const { return memory_->bytes(); }
  const std::shared_ptr<DeviceMemory>& memory() const { return memory_; }
  const ibv_mr& region(size_t adapter) const { return *regions_[adapter].region; }
  bool Covers(uint64_t begin, uint64_t bytes) const {
    return begin >= memory_->address() &&
           memory_->CheckRange(begin - memory_->address(), bytes).ok();
  }
  // True if the allocations of this piece of it still lie there.
  bool IsStill(uint64_t begin, uint64_t bytes) const {
    const auto allocations = memory_->allocations();
    auto next = std::partition_point(allocations.begin(), allocations.end(),
                                     [begin](const DeviceAllocation& allocation) {
                                       return allocation.address + allocation.bytes <= begin;
                                     });
    const int64_t now = absl::ToUnixNanos(MonotonicNow());
    for (; next != allocations.end() && next->address < begin + bytes; ++next) {
      std::atomic<int64_t>& verified_at = verified_at_[next - allocations.begin()];
      if (now - verified_at.load() < absl::ToInt64Nanoseconds(kVerifiedFor)) continue;
      const uint64_t at = std::max(begin, next->address) - memory_->address();
      if (!memory_->Verify(at, 1).ok()) return false;
      verified_at = now;
    }
    return true;
  }
  // "memory of GPU 0000:3b:00.0 registered by DMA-BUF with mlx5_0, mlx5_1".
  std::string How() const {
    std::vector<std::string> by_dma_buf, by_peermem;
    for (const Region& region : regions_) {
      (region.way == Way::kDmaBuf ? by_dma_buf : by_peermem)
          .push_back(adapters_[region.adapter]->name());
    }
    std::vector<std::string> ways;
    if (!by_dma_buf.empty()) {
      ways.push_back(absl::StrCat("by DMA-BUF with ", absl::StrJoin(by_dma_buf, ", ")));
    }
    if (!by_peermem.empty()) {
      ways.push_back(absl::StrCat("by peermem with ", absl::StrJoin(by_peermem, ", ")));
    }
    return absl::StrCat("memory of GPU ", memory_->device().pci_address(), " registered ",
                        absl::StrJoin(ways, ", "));
  }

 private:
  struct Region {
    ibv_mr* region;
    size_t adapter;
    Way way;
  };

  absl::Status RegisterWith(size_t index) {
    const RdmaDevice& adapter = *adapters_[index];
    if (memory_->bytes() > adapter.limits().max_registration_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          adapter.name(), " registers at most ", adapter.limits().max_registration_bytes,
          " bytes at once, not ", memory_->bytes(), " of GPU ", memory_->device().pci_address()));
    }
    const absl::StatusOr<ibv_mr*> by_dma_buf = RegisterByDmaBuf(adapter, *memory_);
    if (by_dma_buf.ok()) {
      regions_.push_back({*by_dma_buf, index, Way::kDmaBuf});
      return absl::OkStatus();
    }
    const absl::StatusOr<ibv_mr*> by_peermem = RegisterByPeermem(adapter, *memory_);
    if (by_peermem.ok()) {
      regions_.push_back({*by_peermem, index, Way::kPeermem});
      return absl::OkStatus();
    }
    return Staged(absl::StrCat(adapter.name(), " by DMA-BUF: ", by_dma_buf.status().message(),
                               "; by peermem: ", by_peermem.status().message()));
  }
  absl::Status Staged(absl::string_view why) const {
    return absl::FailedPreconditionError(
        absl::StrCat("memory of GPU ", memory_->device().pci_address(), " is staged: ", why));
  }

  const std::shared_ptr<DeviceMemory> memory_;                      // with its users
  const std::vector<std::shared_ptr<const RdmaDevice>>& adapters_;  // of the owner
  const std::shared_ptr<RegistrationBudget> budget_;
  bool budgeted_ = false;
  std::vector<Region> regions_;                                // by adapter
  const std::unique_ptr<std::atomic<int64_t>[]> verified_at_;  // by allocation; ns
};

GpuRegistrations::GpuRegistrations(std::vector<std::shared_ptr<const RdmaDevice>> adapters,
                                   FindGpus gpus, std::shared_ptr<RegistrationBudget> budget)
    : adapters_(std::move(adapters)),
      find_gpus_(std::move(gpus)),
      budget_(std::move(budget)),
      table_(std::make_unique<AttachmentTable<Registration>>()) {}

GpuRegistrations::~GpuRegistrations() = default;

GpuRegistrations::Shared GpuRegistrations::FindSame(const DeviceMemory& memory) const {
  const absl::ReaderMutexLock lock(&mu_);
  return table_->FindSame(KeyOf(memory));
}

absl::StatusOr<GpuRegistrations::Shared> GpuRegistrations::Register(
    std::shared_ptr<DeviceMemory> memory) {
  if (Shared same = FindSame(*memory); same != nullptr) return same;
  auto registration = std::make_shared<Registration>(memory, adapters_, budget_);
  const absl::Status registered = registration->Register();
  RememberTried(std::move(memory), registered);
  TH_RETURN_IF_ERROR(registered);
  return Shared(std::move(registration));
}

void GpuRegistrations::RememberTried(std::shared_ptr<const DeviceMemory> memory,
                                     const absl::Status& tried) {
  const absl::MutexLock lock(&mu_);
  const uint64_t begin = memory->address(), end = begin + memory->bytes();
  std::erase_if(refused_, [&](const Refusal& refusal) {
    const uint64_t refused_begin = refusal.memory->address();
    const uint64_t refused_end = refused_begin + refusal.memory->bytes();
    // A registration says nothing of memory beside it that was refused together with it.
    if (tried.ok()) return refused_begin >= begin && refused_end <= end;
    return refused_begin == begin && refused_end == end;
  });
  if (tried.ok()) return;
  if (refused_.size() == kMaxRefusals) refused_.pop_front();
  refused_.push_back({std::move(memory), tried});
}

absl::StatusOr<GpuRegistrations::Attached> GpuRegistrations::Attach(
    absl::Span<const MemoryRegion> regions, MemoryOwner owner) {
  const std::shared_ptr<CudaMemoryDevices> gpus = find_gpus_();
  TH_ASSIGN_OR_RETURN(const std::vector<Range> ranges, AllocationsOf(regions, gpus.get()));
  const absl::MutexLock changing(&changing_);
  std::vector<Shared> registrations;
  for (const Range& range : ranges) {
    TH_ASSIGN_OR_RETURN(
        std::shared_ptr<DeviceMemory> memory,
        gpus->registrations().RegisterApart(Pointer(range.begin), range.end - range.begin));
    TH_ASSIGN_OR_RETURN(Shared registration, Register(std::move(memory)));
    registrations.push_back(std::move(registration));
  }
  std::set<std::string> ways;
  for (const Shared& registration : registrations) ways.insert(registration->How());
  const absl::MutexLock lock(&mu_);
  Attached attached{.number = table_->Add(registrations, owner), .how = absl::StrJoin(ways, "; ")};
  count_ = table_->registrations();
  return attached;
}

void GpuRegistrations::Detach(uint64_t attachment) {
  const absl::MutexLock changing(&changing_);
  std::vector<Shared> ended;  // deregistered once mu_ is released
  const absl::MutexLock lock(&mu_);
  ended = table_->Remove(attachment);
  count_ = table_->registrations();
}

std::optional<GpuRegistrations::Found> GpuRegistrations::Find(const void* address, uint64_t bytes,
                                                              size_t adapter,
                                                              MemoryOwner owner) const {
  if (count_ == 0) return std::nullopt;
  const auto begin = reinterpret_cast<uint64_t>(address);
  // The lock is held throughout, so that no registration outlives its Detach here.
  const absl::ReaderMutexLock lock(&mu_);
  const Registration* const found =
      table_->FindAt(begin, owner, [begin, bytes](const Registration& each) {
        return each.Covers(begin, bytes) && each.IsStill(begin, bytes);
      });
  if (found == nullptr) return std::nullopt;
  const ibv_mr& region = found->region(adapter);
  return Found{.local_key = region.lkey,
               .remote_key = region.rkey,
               .memory = found->memory(),
               .offset = begin - found->memory()->address()};
}

absl::Status GpuRegistrations::WhyStaged(const MemoryRegion& region, MemoryOwner owner) const {
  if (Find(region.address, region.bytes, 0, owner).has_value()) return absl::OkStatus();
  const auto begin = reinterpret_cast<uint64_t>(region.address);
  const absl::ReaderMutexLock lock(&mu_);
  for (auto refusal = refused_.rbegin(); refusal != refused_.rend(); ++refusal) {
    const DeviceMemory& memory = *refusal->memory;
    const uint64_t offset = begin - memory.address();
    const bool covers = begin >= memory.address() && memory.CheckRange(offset, region.bytes).ok();
    if (covers && memory.Verify(offset, region.bytes).ok()) return refusal->why;
  }
  return absl::OkStatus();
}

}  // namespace th::ibverbs
