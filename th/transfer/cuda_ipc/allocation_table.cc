#include "th/transfer/cuda_ipc/allocation_table.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>
#include <utility>

#include "absl/base/const_init.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "th/memory/peer_file.h"
#include "th/status/status_macros.h"

namespace th::cuda_ipc {
namespace {

constexpr uint64_t kMagic = 0x3154435049414454;  // "TDAIPCT1"
constexpr size_t kWords = ExportedAllocation::kEncodedBytes / sizeof(uint64_t);
static_assert(kWords * sizeof(uint64_t) == ExportedAllocation::kEncodedBytes);
// How often a slot is read anew while its owner writes it.
constexpr int kReadTries = 1000;
// How long a wait for readers looks for such as have ended.
constexpr absl::Duration kReleaseTick = absl::Milliseconds(20);

uint64_t RandomId() {
  uint64_t id = 0;
  // Cannot fail for so few bytes once the system has booted.
  while (id == 0) {
    if (getrandom(&id, sizeof(id), 0) < 0) id = reinterpret_cast<uintptr_t>(&id);
  }
  return id;
}

// Both wake and wait across processes.
void FutexWake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void FutexWait(const std::atomic<uint32_t>* word, uint32_t seen, absl::Duration timeout) {
  const timespec limit = absl::ToTimespec(std::max(timeout, absl::ZeroDuration()));
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

absl::Status CannotReach(pid_t owner, absl::string_view what, int error) {
  const std::string why =
      absl::StrCat("cannot ", what, " of process ", owner, ": ", stream::ErrnoText(error));
  if (error == EPERM || error == EACCES) {
    return absl::PermissionDeniedError(absl::StrCat(
        why,
        "; both must run as one user, without a seccomp filter or kernel.yama.ptrace_scope "
        "that forbids it, or the reader needs CAP_SYS_PTRACE"));
  }
  if (error == ENOSYS) {
    return absl::UnimplementedError(absl::StrCat(why, "; the kernel must be Linux 5.6 or later"));
  }
  return absl::NotFoundError(why);
}

}  // namespace

// A slot's words are written between two steps of its version, which is odd meanwhile.
struct TableSlot {
  std::atomic<uint64_t> id;
  std::atomic<uint64_t> open_in;  // a bit for each reader process
  std::atomic<uint64_t> version;
  std::atomic<uint64_t> address;
  std::atomic<uint64_t> next;
  std::array<std::atomic<uint64_t>, kWords> words;
};

struct TableMemory {
  uint64_t magic;
  uint64_t life;
  std::atomic<uint32_t> changes;   // grows when something is retired
  std::atomic<uint32_t> releases;  // grows when a reader leaves something
  std::array<TableSlot, kMaxSharedAllocations> slots;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share them");

MappedTable::MappedTable(TableMemory* memory) : memory_(memory), process_(getpid()) {}

// In a forked child other memory may lie at these addresses.
MappedTable::~MappedTable() {
  if (getpid() == process_) munmap(memory_, sizeof(TableMemory));
}

// ---- the source

AllocationTable::AllocationTable(std::unique_ptr<MappedTable> memory, stream::Socket file,
                                 uint64_t inode)
    : memory_(std::move(memory)),
      file_(std::move(file)),
      inode_(inode),
      readers_(kMaxReaderProcesses) {}

AllocationTable::~AllocationTable() = default;

absl::StatusOr<std::unique_ptr<AllocationTable>> AllocationTable::Create() {
  const auto failed = [](absl::string_view what) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot ", what, " the table of shared GPU memory: ", stream::ErrnoText(errno)));
  };
  stream::Socket file(memfd_create("tensorhub-cuda-ipc", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.open()) return failed("create");
  // Sealed: nobody's end of the file becomes a reader's signal.
  if (ftruncate(file.fd(), sizeof(TableMemory)) != 0 ||
      fcntl(file.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return failed("size");
  }
  struct stat status {};
  void* const mapped =
      mmap(nullptr, sizeof(TableMemory), PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
  if (mapped == MAP_FAILED || fstat(file.fd(), &status) != 0) return failed("map");
  // A forked child shares nothing.
  madvise(mapped, sizeof(TableMemory), MADV_DONTFORK);
  auto* const memory = static_cast<TableMemory*>(mapped);
  memory->life = RandomId();
  memory->magic = kMagic;
  return std::unique_ptr<AllocationTable>(
      new AllocationTable(std::make_unique<MappedTable>(memory), std::move(file), status.st_ino));
}

OfferedTable AllocationTable::offered() const {
  return {.life = (*memory_)->life,
          .inode = inode_,
          .file_descriptor = static_cast<uint64_t>(file_.fd())};
}

absl::StatusOr<uint32_t> AllocationTable::ReaderOf(pid_t process) {
  const absl::MutexLock lock(&mu_);
  ForgetEndedReaders();
  const auto known =
      std::find_if(readers_.begin(), readers_.end(), [process](const Reader& reader) {
        return reader.process != nullptr && reader.process->process() == process;
      });
  if (known != readers_.end()) return static_cast<uint32_t>(known - readers_.begin());
  const auto unused = std::find_if(readers_.begin(), readers_.end(),
                                   [](const Reader& reader) { return reader.process == nullptr; });
  if (unused == readers_.end()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxReaderProcesses,
                     " processes read this source's GPU memory already, the most that may"));
  }
  unused->process = std::make_unique<const same_host::ProcessWatch>(process);
  return static_cast<uint32_t>(unused - readers_.begin());
}

void AllocationTable::ForgetEndedReaders() {
  for (size_t i = 0; i < readers_.size(); ++i) {
    if (readers_[i].process != nullptr && readers_[i].process->HasEnded()) ForgetReader(i);
  }
}

void AllocationTable::ForgetReader(size_t reader) {
  const uint64_t others = ~(uint64_t{1} << reader);
  for (uint32_t slot = 0; slot < next_unused_; ++slot) {
    (*memory_)->slots[slot].open_in.fetch_and(others);
  }
  readers_[reader] = {};
}

absl::StatusOr<uint32_t> AllocationTable::Take() {
  const absl::MutexLock lock(&mu_);
  if (free_.empty()) {
    const auto still_open = std::partition(given_.begin(), given_.end(), [this](uint32_t slot) {
      return (*memory_)->slots[slot].open_in.load() != 0;
    });
    free_.assign(still_open, given_.end());
    given_.erase(still_open, given_.end());
  }
  if (!free_.empty()) {
    const uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  if (next_unused_ < kMaxSharedAllocations) return next_unused_++;
  return absl::ResourceExhaustedError(
      absl::StrCat(kMaxSharedAllocations,
                   " allocations of GPU memory are shared with other processes, the most that may "
                   "be; put tensors into fewer allocations"));
}

uint64_t AllocationTable::Share(uint32_t slot, SharedAllocation allocation) {
  TableSlot& shared = (*memory_)->slots[slot];
  shared.address.store(allocation.address);
  shared.next.store(0);
  ShareAnew(slot, allocation.exported);
  const uint64_t id = RandomId();
  shared.id.store(id);
  return id;
}

void AllocationTable::ShareAnew(uint32_t slot, const ExportedAllocation& exported) {
  TableSlot& shared = (*memory_)->slots[slot];
  const std::string encoded = exported.Encode();
  shared.version.fetch_add(1);
  for (size_t i = 0; i < kWords; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, &encoded[i * sizeof(word)], sizeof(word));
    shared.words[i].store(word);
  }
  shared.version.fetch_add(1);
}

void AllocationTable::Link(uint32_t slot, uint32_t next) {
  (*memory_)->slots[slot].next.store(uint64_t{next} + 1);
}

void AllocationTable::Retire(uint32_t slot) {
  (*memory_)->slots[slot].id.store(0);
  (*memory_)->changes.fetch_add(1);
  FutexWake(&(*memory_)->changes);
}

bool AllocationTable::AreReleased(absl::Span<const uint32_t> slots) const {
  return std::all_of(slots.begin(), slots.end(),
                     [this](uint32_t slot) { return (*memory_)->slots[slot].open_in.load() == 0; });
}

bool AllocationTable::AwaitReleased(absl::Span<const uint32_t> slots, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const uint32_t seen = (*memory_)->releases.load();
    if (AreReleased(slots)) return true;
    {
      const absl::MutexLock lock(&mu_);
      ForgetEndedReaders();
    }
    if (AreReleased(slots)) return true;
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    FutexWait(&(*memory_)->releases, seen, std::min(left, kReleaseTick));
  }
}

void AllocationTable::Give(uint32_t slot) {
  const absl::MutexLock lock(&mu_);
  given_.push_back(slot);
}

uint32_t AllocationTable::shared() const {
  const absl::MutexLock lock(&mu_);
  return next_unused_ - static_cast<uint32_t>(free_.size() + given_.size());
}

// ---- the reader

PeerTable::PeerTable(std::unique_ptr<MappedTable> memory, uint32_t reader)
    : memory_(std::move(memory)), bit_(uint64_t{1} << reader) {}

absl::StatusOr<std::shared_ptr<PeerTable>> PeerTable::Open(pid_t owner, const OfferedTable& offered,
                                                           uint32_t reader) {
  ABSL_CONST_INIT static absl::Mutex mu(absl::kConstInit);
  static auto* const known = new std::map<uint64_t, std::weak_ptr<PeerTable>>();
  if (reader >= kMaxReaderProcesses) {
    return absl::InvalidArgumentError(absl::StrCat("a reader has no bit ", reader));
  }
  const absl::MutexLock lock(&mu);
  std::erase_if(*known, [](const auto& entry) { return entry.second.expired(); });
  const auto found = known->find(offered.life);
  if (found != known->end()) {
    if (auto table = found->second.lock()) return table;
  }
  const OpenedPeerFile at_owner =
      OpenPeerFile(owner, {static_cast<int>(offered.file_descriptor), offered.inode},
                   PeerFileAccess::kReadWrite);
  if (at_owner.error != 0) {
    const bool looked = absl::string_view(at_owner.call) == "open";
    return CannotReach(owner, looked ? "open the table" : "look at the table", at_owner.error);
  }
  const stream::Socket file(at_owner.fd);
  const absl::Status nonsense =
      absl::InvalidArgumentError(absl::StrCat("process ", owner, " names no table of GPU memory"));
  if (!file.open()) return nonsense;
  struct stat opened {};
  const int seals = fcntl(file.fd(), F_GET_SEALS);
  if (fstat(file.fd(), &opened) != 0 || opened.st_size != static_cast<off_t>(sizeof(TableMemory)) ||
      seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return nonsense;
  }
  void* const mapped =
      mmap(nullptr, sizeof(TableMemory), PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
  if (mapped == MAP_FAILED) return CannotReach(owner, "map the table", errno);
  madvise(mapped, sizeof(TableMemory), MADV_DONTFORK);
  auto memory = std::make_unique<MappedTable>(static_cast<TableMemory*>(mapped));
  if ((*memory)->magic != kMagic || (*memory)->life != offered.life) return nonsense;
  auto table = std::make_shared<PeerTable>(std::move(memory), reader);
  (*known)[offered.life] = table;
  return table;
}

absl::StatusOr<SharedAllocation> PeerTable::Read(uint32_t slot) const {
  if (slot >= kMaxSharedAllocations) {
    return absl::InvalidArgumentError(absl::StrCat("there is no slot ", slot, " of GPU memory"));
  }
  const TableSlot& shared = (*memory_)->slots[slot];
  for (int tries = 0; tries < kReadTries; ++tries) {
    SharedAllocation allocation;
    const uint64_t version = shared.version.load();
    allocation.id = shared.id.load();
    allocation.address = shared.address.load();
    allocation.next = static_cast<uint32_t>(shared.next.load());
    std::string encoded;
    for (const std::atomic<uint64_t>& each : shared.words) {
      const uint64_t word = each.load();
      encoded.append(reinterpret_cast<const char*>(&word), sizeof(word));
    }
    if (version % 2 != 0 || shared.version.load() != version || shared.id.load() != allocation.id) {
      continue;
    }
    if (allocation.id == 0) break;
    TH_ASSIGN_OR_RETURN(allocation.exported, ExportedAllocation::Decode(encoded));
    return allocation;
  }
  return absl::NotFoundError(
      "the source does not share this GPU memory any more: it was detached, freed or mapped anew");
}

bool PeerTable::Enter(uint32_t slot, uint64_t id) {
  const absl::MutexLock lock(&mu_);
  // First the bit, then the look: who retires the slot either sees the bit or is seen.
  (*memory_)->slots[slot].open_in.fetch_or(bit_);
  ++entered_[slot];
  if ((*memory_)->slots[slot].id.load() == id) return true;
  if (--entered_[slot] == 0) {
    entered_.erase(slot);
    (*memory_)->slots[slot].open_in.fetch_and(~bit_);
  }
  return false;
}

void PeerTable::Leave(uint32_t slot) {
  const absl::MutexLock lock(&mu_);
  if (--entered_[slot] > 0) return;
  entered_.erase(slot);
  (*memory_)->slots[slot].open_in.fetch_and(~bit_);
  (*memory_)->releases.fetch_add(1);
  FutexWake(&(*memory_)->releases);
}

bool PeerTable::StillShared(uint32_t slot, uint64_t id) const {
  return (*memory_)->slots[slot].id.load() == id;
}

uint32_t PeerTable::changes() const { return (*memory_)->changes.load(); }

void PeerTable::AwaitChange(uint32_t seen, absl::Duration timeout) const {
  FutexWait(&(*memory_)->changes, seen, timeout);
}

// The others look, and find nothing new.
void PeerTable::Wake() const {
  (*memory_)->changes.fetch_add(1);
  FutexWake(&(*memory_)->changes);
}

absl::StatusOr<stream::Socket> FetchDescriptor(pid_t owner, uint64_t file_descriptor) {
  const stream::Socket process(static_cast<int>(syscall(SYS_pidfd_open, owner, 0)));
  if (!process.open()) return CannotReach(owner, "watch the end", errno);
  stream::Socket fetched(
      static_cast<int>(syscall(SYS_pidfd_getfd, process.fd(), file_descriptor, 0)));
  if (!fetched.open()) {
    return CannotReach(owner, absl::StrCat("fetch descriptor ", file_descriptor), errno);
  }
  return fetched;
}

}  // namespace th::cuda_ipc
