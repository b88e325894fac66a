#include "th/transfer/cuda_ipc/imported_memory.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"

namespace th::cuda_ipc {
namespace {

// How often a thread that waits for its source's changes looks whether the source lives.
constexpr absl::Duration kLookInterval = absl::Milliseconds(250);
// How often a descriptor is fetched anew that its owner has replaced meanwhile.
constexpr int kFetchTries = 3;

}  // namespace

Import::~Import() {
  if (imported_ == nullptr) return;
  imported_.reset();
  table_->Leave(slot_);
}

// ---- one source

SourceImports::SourceImports(std::shared_ptr<const CudaDevices> devices, pid_t source,
                             std::shared_ptr<PeerTable> table, bool own)
    : devices_(std::move(devices)), source_(source), table_(std::move(table)), own_(own) {}

SourceImports::~SourceImports() {
  ending_ = true;
  table_->Wake();
  std::unique_ptr<TaskThread> keeper;
  {
    const absl::MutexLock lock(&mu_);
    keeper = std::move(keeper_);
  }
}

absl::Status SourceImports::Find(uint32_t slot, uint64_t address, uint64_t bytes,
                                 CudaDevice* device, std::vector<ImportedRange>* ranges) {
  const absl::MutexLock lock(&mu_);
  for (uint64_t left = bytes; left > 0;) {
    TH_ASSIGN_OR_RETURN(std::shared_ptr<const Import> import, FindOne(slot, device));
    const uint64_t begin = import->shared_.address;
    const uint64_t size = import->shared_.exported.bytes;
    if (address < begin || address - begin >= size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the source names memory beside the allocation that it is to lie in (slot ", slot, ")"));
    }
    const uint64_t taken = std::min(left, size - (address - begin));
    const uint64_t here = import->address_ + (address - begin);
    ranges->push_back({std::move(import), here, taken});
    address += taken;
    left -= taken;
    if (left == 0) break;
    TH_ASSIGN_OR_RETURN(const SharedAllocation shared, table_->Read(slot));
    if (shared.next == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the source names memory beyond its allocation (slot ", slot, ")"));
    }
    slot = shared.next - 1;
  }
  return absl::OkStatus();
}

CudaDevice* SourceImports::DeviceOf(uint32_t slot) const {
  const absl::StatusOr<SharedAllocation> shared = table_->Read(slot);
  if (!shared.ok()) return nullptr;
  const absl::StatusOr<CudaDevice*> device = devices_->ByUuid(shared->exported.device_uuid);
  return device.ok() ? *device : nullptr;
}

absl::StatusOr<std::shared_ptr<const Import>> SourceImports::FindOne(uint32_t slot,
                                                                     CudaDevice* device) {
  const Place place(slot, device);
  const auto known = imports_.find(place);
  if (known != imports_.end()) {
    if (table_->StillShared(slot, known->second->shared_.id)) return known->second;
    imports_.erase(known);
  }
  std::shared_ptr<Import> import(new Import());
  import->table_ = table_;
  import->slot_ = slot;
  TH_ASSIGN_OR_RETURN(import->shared_, table_->Read(slot));
  TH_RETURN_IF_ERROR(Choose(device, import.get()));
  if (own_) {
    import->address_ = import->shared_.address;
    return std::shared_ptr<const Import>(std::move(import));  // what is free is not kept
  }
  if (!table_->Enter(slot, import->shared_.id)) {
    return absl::NotFoundError("the source has just detached this GPU memory");
  }
  const absl::Status opened = Open(import.get());
  if (!opened.ok()) {
    table_->Leave(slot);
    return opened;
  }
  if (keeper_ == nullptr) {
    keeper_ = std::make_unique<TaskThread>("th-cuda-keep");
    keeper_->Post([this] { Keep(); });
  }
  imports_[place] = import;
  return std::shared_ptr<const Import>(std::move(import));
}

// Memory of this process is mapped for its own device only.
absl::Status SourceImports::Choose(CudaDevice* device, Import* import) const {
  const std::string& uuid = import->shared_.exported.device_uuid;
  const absl::StatusOr<CudaDevice*> owner = devices_->ByUuid(uuid);
  if (device == nullptr) {
    TH_RETURN_IF_ERROR(owner.status());
    device = *owner;
  }
  import->device_ = device;
  if (device->uuid() == uuid) {
    import->path_ = CopyPath::kSameDevice;
    return absl::OkStatus();
  }
  import->path_ = CopyPath::kPeerAccess;
  // A device that this process does not see may be reached all the same: importing finds out.
  if (!owner.ok()) return absl::OkStatus();
  TH_ASSIGN_OR_RETURN(const bool reaches, device->Reaches(**owner));
  if (reaches && !own_) return absl::OkStatus();
  import->path_ = CopyPath::kStaged;
  import->device_ = *owner;
  return absl::OkStatus();
}

absl::Status SourceImports::Open(Import* import) const {
  ExportedAllocation exported = import->shared_.exported;
  exported.offset = 0;
  if (exported.kind == SharedMemoryKind::kAllocated) {
    TH_ASSIGN_OR_RETURN(import->imported_,
                        ImportAllocation(*devices_, exported, {.device = import->device_}));
    import->address_ = import->imported_->address();
    return absl::OkStatus();
  }
  for (int tries = 0; tries < kFetchTries; ++tries) {
    const absl::StatusOr<stream::Socket> file =
        FetchDescriptor(source_.process(), exported.file_descriptor);
    // The number may have become another file's before it was fetched.
    TH_ASSIGN_OR_RETURN(const SharedAllocation now, table_->Read(import->slot_));
    const uint64_t current = now.exported.file_descriptor;
    if (current != exported.file_descriptor) {
      exported.file_descriptor = current;
      continue;
    }
    TH_RETURN_IF_ERROR(file.status());
    TH_ASSIGN_OR_RETURN(import->imported_, ImportAllocation(*devices_, exported,
                                                            {.device = import->device_,
                                                             .file_descriptor = file->fd()}));
    import->address_ = import->imported_->address();
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("process ", source_.process(),
                   " closes the descriptors of its GPU memory before they are fetched"));
}

void SourceImports::Keep() {
  while (!ending_) {
    const uint32_t seen = table_->changes();
    if (source_.HasEnded()) alive_ = false;
    DropRetired();
    if (!ending_) table_->AwaitChange(seen, kLookInterval);
  }
}

// Closes them outside of the lock, unless a copy still reads them: then that does.
void SourceImports::DropRetired() {
  std::vector<std::shared_ptr<const Import>> dropped;
  const absl::MutexLock lock(&mu_);
  for (auto each = imports_.begin(); each != imports_.end();) {
    const std::shared_ptr<const Import>& import = each->second;
    const bool keep = alive_ && table_->StillShared(import->slot_, import->shared_.id);
    if (!keep) dropped.push_back(import);
    each = keep ? std::next(each) : imports_.erase(each);
  }
}

// ---- all sources

absl::StatusOr<std::shared_ptr<SourceImports>> ImportCache::Of(pid_t source,
                                                               const OfferedTable& offered,
                                                               uint32_t reader) {
  const absl::MutexLock lock(&mu_);
  const auto found = std::find_if(kept_.begin(), kept_.end(),
                                  [&](const Kept& each) { return each.life == offered.life; });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
    return found->imports;
  }
  TH_ASSIGN_OR_RETURN(std::shared_ptr<PeerTable> table, PeerTable::Open(source, offered, reader));
  const bool own = source == getpid() && !options_.import_own;
  kept_.push_front(
      {offered.life, std::make_shared<SourceImports>(devices_, source, std::move(table), own)});
  std::shared_ptr<SourceImports> imports = kept_.front().imports;
  auto unused = std::make_shared<std::list<Kept>>(TakeUnused());
  if (!unused->empty()) {
    if (closer_ == nullptr) closer_ = std::make_unique<TaskThread>("th-cuda-close");
    closer_->Post([unused] { unused->clear(); });
  }
  return imports;
}

// Those that no connection uses: of processes that have ended, and the longest unused beyond the
// limit.
std::list<ImportCache::Kept> ImportCache::TakeUnused() {
  std::list<Kept> unused;
  size_t idle = 0;
  for (auto each = kept_.begin(); each != kept_.end();) {
    const auto next = std::next(each);
    const bool is_idle = each->imports.use_count() == 1;
    if (is_idle && (++idle > kMaxIdleSources || !each->imports->alive())) {
      unused.splice(unused.end(), kept_, each);
    }
    each = next;
  }
  return unused;
}

}  // namespace th::cuda_ipc
