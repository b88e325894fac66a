#include "th/transfer/cuda_ipc/device_copier.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "th/memory/cuda/device_memory.h"
#include "th/memory/cuda/device_pieces.h"
#include "th/status/status_macros.h"
#include "th/transfer/cuda_ipc/device_engine.h"

namespace th::cuda_ipc {
namespace {

using stream::Located;

// A piece of the destination: bytes of a device, where `memory` is set, or of the host.
struct Target {
  uint64_t address = 0;
  uint64_t bytes = 0;
  std::shared_ptr<DeviceMemory> memory;
  uint64_t offset = 0;  // in `memory`
  CudaDevice* device() const { return memory == nullptr ? nullptr : &memory->device(); }
};

struct PeerMove {
  DeviceMove move;
  CudaDevice* from = nullptr;
};

// The copies of one segment, by who does them.
struct Plan {
  explicit Plan(std::shared_ptr<CopyJob> planned) : job(std::move(planned)) {}

  std::shared_ptr<CopyJob> job;
  absl::Status status;
  std::optional<SegmentChecksum> checksum;
  std::vector<Target> targets;
  std::vector<ImportedRange> imported;  // kept until the copies are done
  struct Found {
    std::shared_ptr<const Import> import;
    const CudaDevice* device = nullptr;  // for which it was looked up
  };
  Found found;  // for the last piece
  struct Moves {
    std::vector<DeviceMove> here;  // within what the device reaches
    std::vector<PeerMove> from_peers;
    std::vector<DeviceMove> from_host;
    std::vector<DeviceMove> to_host;
  };
  std::map<CudaDevice*, Moves> moves;     // by the device that copies
  std::vector<DeviceMove> between_hosts;  // `from` in the source's process

  // The pieces of the destination that lie on a device, in order.
  std::vector<DevicePiece> PiecesOn(const CudaDevice* device) const {
    std::vector<DevicePiece> pieces;
    for (const Target& target : targets) {
      if (target.device() == device)
        pieces.push_back({target.memory.get(), target.offset, target.bytes});
    }
    return pieces;
  }
  // The devices that it lies on in part.
  std::vector<CudaDevice*> Written() const {
    std::vector<CudaDevice*> written;
    for (const Target& target : targets) {
      CudaDevice* const device = target.device();
      if (device == nullptr || std::count(written.begin(), written.end(), device) > 0) continue;
      written.push_back(device);
    }
    return written;
  }
  // The device that all of the destination lies on; null: on several, or (in part) in the host.
  CudaDevice* OnlyDevice() const {
    CudaDevice* const first = targets.empty() ? nullptr : targets.front().device();
    const bool only = std::all_of(targets.begin(), targets.end(), [first](const Target& target) {
      return target.device() == first;
    });
    return only ? first : nullptr;
  }
};

using Engines = std::map<CudaDevice*, std::unique_ptr<DeviceEngine>>;

}  // namespace

// ---- a job

CopyJob::CopyJob(Spec spec) : spec_(std::move(spec)) {
  for (const iovec& piece : spec_.into) bytes_ += piece.iov_len;
}

bool CopyJob::Begin() {
  const absl::MutexLock lock(&mu_);
  if (state_ != State::kWaiting) return false;
  state_ = State::kRunning;
  return true;
}

// Under the lock, so that nobody who awaits it goes on before on_end has returned.
void CopyJob::End(absl::Status status, std::optional<SegmentChecksum> checksum) {
  const absl::MutexLock lock(&mu_);
  status_ = std::move(status);
  checksum_ = checksum;
  state_ = State::kEnded;
  spec_.device_write = nullptr;
  std::exchange(spec_.on_end, nullptr)();
}

bool CopyJob::Cancel() {
  const absl::MutexLock lock(&mu_);
  if (state_ == State::kWaiting) {
    status_ = absl::CancelledError("the copy was cancelled before it had begun");
    state_ = State::kEnded;
    spec_.device_write = nullptr;
    spec_.on_end = nullptr;
  }
  return state_ == State::kEnded;
}

void CopyJob::GiveUp() {
  const absl::MutexLock lock(&writing_);
  given_up_ = true;
}

void CopyJob::WriteHost(absl::FunctionRef<void()> write) {
  const absl::MutexLock lock(&writing_);
  if (!given_up_) write();
}

void CopyJob::AwaitEnd() {
  const absl::MutexLock lock(&mu_);
  const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return state_ == State::kEnded; };
  mu_.Await(absl::Condition(&ended));
}

bool CopyJob::ended() const {
  const absl::MutexLock lock(&mu_);
  return state_ == State::kEnded;
}

// ---- jobs that are done together

class CopyBatch {
 public:
  CopyBatch(const MemoryKinds& kinds, Engines& engines, CopyCounters& counters)
      : kinds_(kinds), engines_(engines), counters_(counters) {}

  void Run(std::vector<std::shared_ptr<CopyJob>> jobs) {
    for (std::shared_ptr<CopyJob>& job : jobs) {
      if (!job->Begin()) continue;
      plans_.push_back(std::make_unique<Plan>(std::move(job)));
      plans_.back()->status = Prepare(*plans_.back());
    }
    BeginUses();
    CopyBetweenHosts();
    for (CudaDevice* const device : Devices()) CopyWith(device);
    VerifyUses();
    ChecksumOnDevices();
    for (const auto& plan : plans_) {
      if (plan->status.ok() && WantsChecksum(*plan)) ChecksumInHost(*plan);
    }
    uses_.clear();  // before anybody hears of the end
    for (std::unique_ptr<Plan>& plan : plans_) End(std::move(plan));
  }

 private:
  absl::Status Prepare(Plan& plan);
  absl::Status FindTargets(Plan& plan);
  absl::Status Add(Plan& plan, const Located::Piece& from, const Target& target,
                   uint64_t target_offset);
  absl::Status AddFromDevice(Plan& plan, const Located::Piece& from, uint64_t to,
                             const Target& target);
  std::vector<CudaDevice*> Devices() const;
  absl::StatusOr<DeviceEngine*> EngineOf(CudaDevice* device);
  void CopyBetweenHosts();
  void CopyWith(CudaDevice* device);
  absl::Status Ask(DeviceEngine& engine, CudaDevice* device);
  void BeginUses();
  void VerifyUses();
  static absl::Status CheckMemory(const Plan& plan);
  bool WantsChecksum(const Plan& plan) const {
    return plan.job->spec_.checksummed && !plan.checksum.has_value();
  }
  void ChecksumOnDevices();
  void ChecksumInHost(Plan& plan);
  absl::Status HashTarget(const Target& target, SegmentHasher* hasher);
  void FailAll(CudaDevice* device, const absl::Status& status);
  static void End(std::unique_ptr<Plan> plan);

  const MemoryKinds& kinds_;
  Engines& engines_;
  CopyCounters& counters_;
  std::vector<std::unique_ptr<Plan>> plans_;
  std::vector<PiecesUse> uses_;  // of the destinations on devices
};

// ---- planning

absl::Status CopyBatch::FindTargets(Plan& plan) {
  std::shared_ptr<DeviceMemory> last;  // pieces commonly lie in one allocation
  for (const iovec& piece : plan.job->spec_.into) {
    if (piece.iov_len == 0) continue;
    Target target{.address = reinterpret_cast<uint64_t>(piece.iov_base),
                  .bytes = piece.iov_len,
                  .memory = nullptr};
    const bool in_last = last != nullptr && target.address >= last->address() &&
                         last->CheckRange(target.address - last->address(), target.bytes).ok();
    if (!in_last) {
      TH_ASSIGN_OR_RETURN(target.memory, kinds_.RegistrationOf(piece));
      if (target.memory != nullptr) last = target.memory;
    } else {
      target.memory = last;
    }
    if (target.memory != nullptr) target.offset = target.address - target.memory->address();
    plan.targets.push_back(std::move(target));
  }
  return absl::OkStatus();
}

absl::Status CopyBatch::Prepare(Plan& plan) {
  TH_RETURN_IF_ERROR(FindTargets(plan));
  size_t at = 0;
  uint64_t offset = 0;  // in targets[at]
  for (const Located::Piece& piece : plan.job->spec_.from) {
    for (uint64_t done = 0; done < piece.bytes;) {
      const Target& target = plan.targets[at];
      const uint64_t bytes = std::min(piece.bytes - done, target.bytes - offset);
      const Located::Piece part{
          .address = piece.address + done, .bytes = static_cast<uint32_t>(bytes), .key = piece.key};
      TH_RETURN_IF_ERROR(Add(plan, part, target, offset));
      done += bytes;
      offset += bytes;
      if (offset == target.bytes) ++at, offset = 0;
    }
  }
  return absl::OkStatus();
}

absl::Status CopyBatch::Add(Plan& plan, const Located::Piece& from, const Target& target,
                            uint64_t target_offset) {
  const uint64_t to = target.address + target_offset;
  if ((from.key & kDeviceKey) != 0) return AddFromDevice(plan, from, to, target);
  const DeviceMove move{.to = to, .from = from.address, .bytes = from.bytes};
  counters_.host_bytes += from.bytes;
  if (target.device() == nullptr) {
    plan.between_hosts.push_back(move);
  } else {
    plan.moves[target.device()].from_host.push_back(move);
  }
  return absl::OkStatus();
}

absl::Status CopyBatch::AddFromDevice(Plan& plan, const Located::Piece& from, uint64_t to,
                                      const Target& target) {
  CudaDevice* const device = target.device();
  const uint32_t slot = from.key & ~kDeviceKey;
  std::vector<ImportedRange> ranges;
  const Plan::Found& last = plan.found;  // thousands of pieces commonly lie in one allocation
  const auto here = last.import == nullptr || last.device != device
                        ? std::nullopt
                        : last.import->AddressHere(slot, from.address, from.bytes);
  if (here.has_value()) {
    ranges.push_back({last.import, *here, from.bytes});
  } else {
    TH_RETURN_IF_ERROR(
        plan.job->spec_.source->Find(slot, from.address, from.bytes, device, &ranges));
    plan.found = {ranges.back().import, device};
  }
  for (ImportedRange& range : ranges) {
    const bool same = range.import->path() == CopyPath::kSameDevice;
    const DeviceMove move{.to = to,
                          .from = range.address,
                          .bytes = range.bytes,
                          .to_memory = target.memory.get(),
                          .from_memory = range.import.get(),
                          .same_device = same};
    CudaDevice& owner = range.import->device();
    if (device == nullptr) {
      counters_.host_bytes += range.bytes;
      plan.moves[&owner].to_host.push_back(move);
    } else if (range.import->path() == CopyPath::kStaged) {
      counters_.staged_bytes += range.bytes;
      plan.moves[device].from_peers.push_back({move, &owner});
    } else {
      (same ? counters_.same_device_bytes : counters_.peer_access_bytes) += range.bytes;
      plan.moves[device].here.push_back(move);
    }
    to += range.bytes;
    // One that many pieces lie in is kept once.
    const bool known = !plan.imported.empty() && plan.imported.back().import == range.import;
    if (!known) plan.imported.push_back(std::move(range));
  }
  return absl::OkStatus();
}

std::vector<CudaDevice*> CopyBatch::Devices() const {
  std::vector<CudaDevice*> devices;
  for (const auto& plan : plans_) {
    for (const auto& [device, moves] : plan->moves) {
      if (std::count(devices.begin(), devices.end(), device) == 0) devices.push_back(device);
    }
  }
  return devices;
}

// ---- copying

absl::StatusOr<DeviceEngine*> CopyBatch::EngineOf(CudaDevice* device) {
  std::unique_ptr<DeviceEngine>& engine = engines_[device];
  if (engine == nullptr) {
    TH_ASSIGN_OR_RETURN(engine, DeviceEngine::Create(device));
  }
  return engine.get();
}

void CopyBatch::FailAll(CudaDevice* device, const absl::Status& status) {
  engines_.erase(device);  // a stream that has failed does nothing any more
  for (const auto& plan : plans_) {
    if (plan->status.ok() && plan->moves.count(device) > 0) plan->status = status;
  }
}

void CopyBatch::CopyBetweenHosts() {
  for (const auto& plan : plans_) {
    if (!plan->status.ok() || plan->between_hosts.empty()) continue;
    std::vector<iovec> from, into;
    for (const DeviceMove& move : plan->between_hosts) {
      // NOLINTBEGIN(performance-no-int-to-ptr): an address of another process, and one of this.
      from.push_back({reinterpret_cast<void*>(move.from), move.bytes});
      into.push_back({reinterpret_cast<void*>(move.to), move.bytes});
      // NOLINTEND(performance-no-int-to-ptr)
    }
    plan->status = plan->job->spec_.process.Read(from, into);
  }
}

void CopyBatch::CopyWith(CudaDevice* device) {
  const absl::StatusOr<DeviceEngine*> engine = EngineOf(device);
  if (!engine.ok()) return FailAll(device, engine.status());
  const absl::Status asked = Ask(**engine, device);
  // Whatever was asked for: nothing is written once the jobs have ended.
  const absl::Status done = (*engine)->Wait();
  ++counters_.waits;
  if (!asked.ok() || !done.ok()) FailAll(device, asked.ok() ? done : asked);
}

absl::Status CopyBatch::Ask(DeviceEngine& engine, CudaDevice* device) {
  std::vector<DeviceMove> here;
  for (const auto& plan : plans_) {
    const auto moves = plan->moves.find(device);
    if (!plan->status.ok() || moves == plan->moves.end()) continue;
    here.insert(here.end(), moves->second.here.begin(), moves->second.here.end());
    for (const PeerMove& move : moves->second.from_peers) {
      TH_RETURN_IF_ERROR(engine.CopyFromPeer(move.move, *move.from));
    }
  }
  uint64_t by_kernel = 0;
  TH_RETURN_IF_ERROR(engine.Copy(here, &by_kernel));
  counters_.kernel_pieces += by_kernel;
  for (const auto& plan : plans_) {
    const auto moves = plan->moves.find(device);
    if (!plan->status.ok() || moves == plan->moves.end()) continue;
    if (!moves->second.from_host.empty()) {
      TH_RETURN_IF_ERROR(engine.FromHost(plan->job->spec_.process, moves->second.from_host));
    }
    if (moves->second.to_host.empty()) continue;
    CopyJob& job = *plan->job;
    TH_RETURN_IF_ERROR(engine.ToHost(
        moves->second.to_host, [&job](absl::FunctionRef<void()> write) { job.WriteHost(write); }));
  }
  return absl::OkStatus();
}

// One use for all plans, as each asks the driver; where it is refused, each plan has its own.
void CopyBatch::BeginUses() {
  std::map<CudaDevice*, std::vector<DevicePiece>> pieces;
  for (const auto& plan : plans_) {
    if (!plan->status.ok()) continue;
    for (CudaDevice* const device : plan->Written()) {
      const std::vector<DevicePiece> own = plan->PiecesOn(device);
      pieces[device].insert(pieces[device].end(), own.begin(), own.end());
    }
  }
  for (const auto& [device, all] : pieces) {
    if (absl::StatusOr<PiecesUse> use = PiecesUse::Begin(*device, all); use.ok()) {
      uses_.push_back(*std::move(use));
      continue;
    }
    for (const auto& plan : plans_) {
      if (!plan->status.ok()) continue;
      absl::StatusOr<PiecesUse> use = PiecesUse::Begin(*device, plan->PiecesOn(device));
      if (use.ok()) {
        uses_.push_back(*std::move(use));
      } else {
        plan->status = use.status();
      }
    }
  }
}

// Memory that its owner has freed or mapped anew meanwhile explains any other failure.
void CopyBatch::VerifyUses() {
  const bool same = std::all_of(uses_.begin(), uses_.end(),
                                [](const PiecesUse& use) { return use.Verify().ok(); });
  for (const auto& plan : plans_) {
    if (!same) {
      if (absl::Status memory = CheckMemory(*plan); !memory.ok()) plan->status = std::move(memory);
    }
    plan->imported.clear();
    plan->found = {};
  }
}

absl::Status CopyBatch::CheckMemory(const Plan& plan) {
  for (const CudaDevice* const device : plan.Written()) {
    TH_RETURN_IF_ERROR(PiecesUse::Begin(*device, plan.PiecesOn(device)).status());
  }
  return absl::OkStatus();
}

// ---- summing

void CopyBatch::ChecksumOnDevices() {
  std::map<CudaDevice*, std::vector<Plan*>> checksummed;
  for (const auto& plan : plans_) {
    CudaDevice* const device = plan->OnlyDevice();
    if (plan->status.ok() && WantsChecksum(*plan) && device != nullptr) {
      checksummed[device].push_back(plan.get());
    }
  }
  for (const auto& [device, plans] : checksummed) {
    std::vector<std::vector<DevicePiece>> segments;
    for (const Plan* const plan : plans) segments.push_back(plan->PiecesOn(device));
    const absl::StatusOr<DeviceEngine*> engine = EngineOf(device);
    const absl::StatusOr<std::vector<SegmentChecksum>> checksums =
        engine.ok() ? (*engine)->Checksum(segments) : engine.status();
    for (size_t i = 0; i < plans.size(); ++i) {
      if (checksums.ok()) {
        plans[i]->checksum = (*checksums)[i];
      } else {
        plans[i]->status = checksums.status();
      }
    }
  }
}

// Sums a segment that lies in the host in part, or on several devices.
void CopyBatch::ChecksumInHost(Plan& plan) {
  SegmentHasher hasher;
  for (const Target& target : plan.targets) {
    plan.status = HashTarget(target, &hasher);
    if (!plan.status.ok()) return;
  }
  plan.checksum = hasher.Finish();
}

absl::Status CopyBatch::HashTarget(const Target& target, SegmentHasher* hasher) {
  if (target.memory == nullptr) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): host memory of this process.
    hasher->Update(reinterpret_cast<const void*>(target.address), target.bytes);
    return absl::OkStatus();
  }
  TH_ASSIGN_OR_RETURN(const DeviceMemory::Use use,
                      target.memory->BeginUse(target.offset, target.bytes));
  TH_ASSIGN_OR_RETURN(DeviceEngine* const engine, EngineOf(target.device()));
  std::vector<std::byte> bytes(std::min(target.bytes, kBounceBytes));
  for (uint64_t done = 0; done < target.bytes;) {
    const uint64_t part = std::min(target.bytes - done, kBounceBytes);
    const DeviceMove move{.to = reinterpret_cast<uint64_t>(bytes.data()),
                          .from = target.address + done,
                          .bytes = part};
    TH_RETURN_IF_ERROR(
        engine->ToHost({&move, 1}, [](absl::FunctionRef<void()> write) { write(); }));
    hasher->Update(bytes.data(), part);
    done += part;
  }
  return target.memory->Verify(target.offset, target.bytes);
}

// ---- the end

// The plan gives back what it uses and keeps before anybody hears of the end.
void CopyBatch::End(std::unique_ptr<Plan> plan) {
  const std::shared_ptr<CopyJob> job = std::move(plan->job);
  absl::Status status = std::move(plan->status);
  const std::optional<SegmentChecksum> checksum = plan->checksum;
  plan = nullptr;
  job->End(std::move(status), checksum);
}

// ---- threads

class DeviceCopier::Lane {
 public:
  Lane(std::shared_ptr<const CudaDevices> devices, std::shared_ptr<const MemoryKinds> kinds,
       std::shared_ptr<CopyCounters> counters, uint32_t number)
      : devices_(std::move(devices)),
        kinds_(std::move(kinds)),
        counters_(std::move(counters)),
        thread_(std::make_unique<TaskThread>(absl::StrCat("th-cuda-copy-", number))) {}
  ~Lane() { thread_ = nullptr; }

  void Submit(std::shared_ptr<CopyJob> job) {
    const absl::MutexLock lock(&mu_);
    waiting_.push_back(std::move(job));
    if (!std::exchange(posted_, true)) thread_->Post([this] { Run(); });
  }

 private:
  void Run() {
    while (true) {
      std::vector<std::shared_ptr<CopyJob>> batch;
      {
        const absl::MutexLock lock(&mu_);
        uint64_t bytes = 0;
        while (!waiting_.empty() && bytes < kBatchBytes) {
          bytes += waiting_.front()->bytes_;
          batch.push_back(std::move(waiting_.front()));
          waiting_.pop_front();
        }
        if (batch.empty()) {
          posted_ = false;
          return;
        }
      }
      CopyBatch(*kinds_, engines_, *counters_).Run(std::move(batch));
    }
  }

  const std::shared_ptr<const CudaDevices> devices_;  // whatever the engines stand on
  const std::shared_ptr<const MemoryKinds> kinds_;
  const std::shared_ptr<CopyCounters> counters_;
  Engines engines_;  // the thread's
  absl::Mutex mu_;
  std::deque<std::shared_ptr<CopyJob>> waiting_ ABSL_GUARDED_BY(mu_);
  bool posted_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<TaskThread> thread_;  // ends before the rest
};

DeviceCopier::DeviceCopier(std::shared_ptr<const CudaDevices> devices,
                           std::shared_ptr<const MemoryKinds> kinds,
                           std::shared_ptr<CopyCounters> counters, uint32_t lanes)
    : devices_(std::move(devices)),
      kinds_(std::move(kinds)),
      counters_(std::move(counters)),
      lanes_of_each_(lanes) {}

DeviceCopier::~DeviceCopier() = default;

void DeviceCopier::Submit(const CudaDevice* device, uint32_t lane, std::shared_ptr<CopyJob> job) {
  const absl::MutexLock lock(&mu_);
  std::unique_ptr<Lane>& own = lanes_[{device, lane % lanes_of_each_}];
  if (own == nullptr) {
    const auto number = static_cast<uint32_t>(lanes_.size() - 1);
    own = std::make_unique<Lane>(devices_, kinds_, counters_, number);
  }
  own->Submit(std::move(job));
}

}  // namespace th::cuda_ipc
