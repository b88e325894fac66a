#include "th/transfer/cuda_ipc/cuda_memory.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/same_host/peer_memory.h"
#include "th/transfer/same_host/peer_user.h"
#include "th/transfer/segment_store.h"
#include "th/transfer/stream/bell.h"
#include "th/transfer/stream/socket.h"

namespace th::cuda_ipc {
namespace {

// The first words of an offer; same_host's follow.
struct OfferedDevices {
  OfferedTable table;
  uint64_t reader = 0;  // the reader's bit in the table
};
static_assert(sizeof(OfferedDevices) == 4 * sizeof(uint64_t), "without gaps");

// ---- the source's end

class ServedCudaMemory final : public stream::ServedMemory {
 public:
  ServedCudaMemory(int fd, std::shared_ptr<SharedDevices> shared)
      : fd_(fd),
        shared_(std::move(shared)),
        host_(same_host::ServeHostMemory(
            fd, shared_->unreadable(),
            {.offer_bytes = stream::kMaxControlBodyBytes - sizeof(OfferedDevices)})) {}

  absl::StatusOr<std::string> Offer() override {
    TH_ASSIGN_OR_RETURN(const std::string of_host, host_->Offer());  // refuses other users
    ucred peer{};
    socklen_t size = sizeof(peer);
    if (getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) {
      return absl::UnavailableError(
          "your process cannot be seen by the source: it is in another PID namespace (let the "
          "containers of a host share one)");
    }
    OfferedDevices words{.table = shared_->exported()->table().offered()};
    TH_ASSIGN_OR_RETURN(words.reader, shared_->exported()->table().ReaderOf(peer.pid));
    return std::string(reinterpret_cast<const char*>(&words), sizeof(words)) + of_host;
  }
  absl::StatusOr<std::string> HandleAnswer(absl::string_view answer) override {
    return host_->HandleAnswer(answer);
  }

  absl::Status CheckServes(absl::Span<const MemoryRegion> regions) override {
    uint64_t checked_begin = 0, checked_end = 0;  // tensors commonly lie in one allocation
    for (const MemoryRegion& region : regions) {
      if (region.kind != MemoryKind::kDevice || region.bytes == 0) continue;
      const auto address = reinterpret_cast<uint64_t>(region.address);
      if (address >= checked_begin && address + region.bytes <= checked_end) continue;
      const auto check = [&] {
        return shared_->exported()->CheckExportable(address, region.bytes);
      };
      absl::StatusOr<uint64_t> end = check();
      if (absl::IsNotFound(end.status())) {
        TH_RETURN_IF_ERROR(AttachForThisConnection(region.address, region.bytes));
        end = check();
      }
      TH_ASSIGN_OR_RETURN(checked_end, end);
      checked_begin = address;
    }
    return absl::OkStatus();
  }

  bool serves_devices() const override { return true; }
  // A GPU copies what is located in less time than it takes to say so, and would wait for the next
  // places. A reader has up to 128 MiB open (ReplicatorLimits::device_requests_in_flight).
  Window window() const override {
    return {.bytes = uint64_t{256} << 20, .segments = stream::kMaxWindowSegments};
  }
  std::optional<uint32_t> KeyOf(const iovec& piece) override {
    const auto address = reinterpret_cast<uint64_t>(piece.iov_base);
    // Thousands of tensors commonly lie in one allocation.
    const bool in_last = address >= last_.begin && address + piece.iov_len <= last_.end;
    if (in_last && MonotonicNow() < last_.good_until) return kDeviceKey | last_.slot;
    if (!shared_->kinds()->IsDevice(piece)) return host_->KeyOf(piece);
    auto span = shared_->exported()->SpanOf(address, piece.iov_len);
    if (absl::IsNotFound(span.status()) &&
        AttachForThisConnection(piece.iov_base, piece.iov_len).ok()) {
      span = shared_->exported()->SpanOf(address, piece.iov_len);
    }
    if (!span.ok()) return std::nullopt;
    last_ = *span;
    return kDeviceKey | last_.slot;
  }

 private:
  // Memory that nobody has attached, or that was mapped anew since, is shared for as long as this
  // connection.
  absl::Status AttachForThisConnection(void* address, uint64_t bytes) {
    const MemoryRegion region{
        .address = address, .bytes = bytes, .kind = MemoryKind::kDevice, .device = ""};
    TH_ASSIGN_OR_RETURN(auto attached,
                        shared_->exported()->Attach({&region, 1}, ExportedMemory::OnDetach::kGoOn));
    attached_.push_back(std::move(attached));
    return absl::OkStatus();
  }

  const int fd_;
  const std::shared_ptr<SharedDevices> shared_;
  const std::unique_ptr<stream::ServedMemory> host_;
  std::vector<std::unique_ptr<AttachedMemory>> attached_;
  ExportedMemory::SharedSpan last_;  // that KeyOf has found
};

// ---- the reader's end

class RemoteCudaMemory final : public stream::RemoteMemory {
 public:
  RemoteCudaMemory(const stream::Medium::ReadSetup& setup, std::shared_ptr<SharedDevices> shared)
      : fd_(setup.fd),
        checksummed_(setup.checksummed),
        begin_device_write_(setup.begin_device_write),
        shared_(std::move(shared)),
        lane_(shared_->NextLane()),
        host_(same_host::ReadHostMemory(setup, shared_->mapped())) {}
  ~RemoteCudaMemory() override {
    if (RemoteCudaMemory::End(/*hangs=*/false)) return;
    for (const Item& item : items_) {
      if (item.job != nullptr) item.job->AwaitEnd();
    }
  }

  absl::StatusOr<std::string> HandleOffer(absl::string_view offer) override {
    if (!bell_->valid())
      return absl::ResourceExhaustedError("no descriptor for the ends of copies");
    OfferedDevices words;
    if (offer.size() < sizeof(words)) {
      return absl::InvalidArgumentError("Memory is too short for a table of GPU memory");
    }
    std::memcpy(&words, offer.data(), sizeof(words));
    TH_RETURN_IF_ERROR(host_->HandleOffer(offer.substr(sizeof(words))).status());
    TH_ASSIGN_OR_RETURN(process_, same_host::PeerMemory::Of(fd_));
    if (!same_host::IsOwnUser(process_->user())) {
      return absl::PermissionDeniedError(
          absl::StrCat(same_host::DescribeUsers(process_->user(), geteuid()),
                       ": GPU memory is shared among processes of one user"));
    }
    TH_ASSIGN_OR_RETURN(source_, shared_->imports().Of(process_->pid(), words.table,
                                                       static_cast<uint32_t>(words.reader)));
    return std::string();
  }
  bool ready() const override { return source_ != nullptr; }
  int fd() const override { return bell_->fd(); }
  bool writes_devices() const override { return true; }
  bool copies_together() const override { return true; }
  bool copying() const override {
    return std::any_of(items_.begin(), items_.end(),
                       [](const Item& item) { return item.job != nullptr && !item.job->ended(); });
  }

  std::string devices() const override {
    const auto at_it = std::find_if(items_.begin(), items_.end(), [](const Item& item) {
      return item.job != nullptr && !item.job->ended();
    });
    return at_it == items_.end() ? "" : at_it->devices;
  }

  void Start(absl::Span<const stream::Located::Piece> from, absl::Span<const iovec> into,
             const stream::ControlPlace& control) override {
    control_address_ = control.address;
    items_.emplace_back();
    if (IsOfHost(from, into)) return host_->Start(from, into, control);
    const CudaDevice* const device = CopyingDevice(from, into);
    std::string name = device == nullptr ? "of the source" : device->pci_address();
    std::shared_ptr<const void> write;
    if (begin_device_write_ != nullptr) write = begin_device_write_(name);
    items_.back().devices = std::move(name);
    items_.back().job =
        std::make_shared<CopyJob>(CopyJob::Spec{.from = {from.begin(), from.end()},
                                                .into = {into.begin(), into.end()},
                                                .source = source_,
                                                .process = *process_,
                                                .checksummed = checksummed_,
                                                .on_end = [bell = bell_] { bell->Ring(); },
                                                .device_write = std::move(write)});
    unsubmitted_.emplace_back(device, items_.back().job);
  }

  absl::StatusOr<std::optional<Read>> Poll() override {
    SubmitAll();
    if (items_.empty() || !HasEnded(items_.front())) bell_->Clear();
    if (items_.empty()) return std::optional<Read>();
    if (items_.front().job == nullptr) return PollHost();
    Item& item = items_.front();
    if (!HasEnded(item)) return std::optional<Read>();
    if (!item.control.ok()) CheckEnded();
    Read read{
        .status = item.job->status(), .control = std::nullopt, .checksum = item.job->checksum()};
    if (item.control.ok()) {
      read.control = *item.control;
    } else if (read.status.ok() || absl::IsAborted(item.control.status())) {
      read.status = item.control.status();  // where the process has ended, the copy says only how
    }
    // A process loses its memory before its sockets: that it has ended says it all the same.
    read.lost = !absl::IsAborted(item.control.status());
    items_.pop_front();
    return std::optional<Read>(std::move(read));
  }
  bool End(bool hangs) override {
    bell_->Clear();
    unsubmitted_.clear();
    std::erase_if(items_, [hangs](const Item& item) {
      if (item.job == nullptr || item.job->Cancel()) return true;
      if (hangs) item.job->GiveUp();
      return hangs;
    });
    return items_.empty();
  }

 private:
  // A segment that was started. Those without a job are same_host's, in its order.
  struct Item {
    std::shared_ptr<CopyJob> job;
    std::string devices;  // that it waits for
    // The source's control block, read after the bytes.
    absl::StatusOr<Read::Control> control = absl::UnavailableError("not read");
  };

  static bool HasEnded(const Item& item) { return item.job != nullptr && item.job->ended(); }

  void SubmitAll() {
    for (auto& [device, job] : std::exchange(unsubmitted_, {})) {
      shared_->copier().Submit(device, lane_, std::move(job));
    }
  }

  bool IsOfHost(absl::Span<const stream::Located::Piece> from, absl::Span<const iovec> into) const {
    for (const stream::Located::Piece& piece : from) {
      if ((piece.key & kDeviceKey) != 0) return false;
    }
    for (const iovec& piece : into) {
      if (shared_->kinds()->IsDevice(piece)) return false;
    }
    return true;
  }

  // The device that will copy; of several the first. Null: it is not known before the memory is
  // imported.
  const CudaDevice* CopyingDevice(absl::Span<const stream::Located::Piece> from,
                                  absl::Span<const iovec> into) const {
    for (const iovec& piece : into) {
      if (!shared_->kinds()->IsDevice(piece)) continue;
      const auto registration = shared_->kinds()->RegistrationOf(piece);
      if (registration.ok() && *registration != nullptr) return &(*registration)->device();
    }
    for (const stream::Located::Piece& piece : from) {
      if ((piece.key & kDeviceKey) != 0) return source_->DeviceOf(piece.key & ~kDeviceKey);
    }
    return nullptr;
  }

  absl::StatusOr<std::optional<Read>> PollHost() {
    TH_ASSIGN_OR_RETURN(std::optional<Read> read, host_->Poll());
    if (read.has_value()) items_.pop_front();
    return read;
  }

  // One look at the control block for all copies that have ended.
  void CheckEnded() {
    std::vector<Item*> ended;
    for (Item& item : items_) {
      if (HasEnded(item)) ended.push_back(&item);
    }
    // The bytes before the control block: on no processor may the second read be the older one.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const auto words = process_->ReadTwoWords(control_address_);
    for (Item* const item : ended) {
      if (words.ok()) {
        item->control = Read::Control{.generation = (*words)[0], .life = (*words)[1]};
      } else {
        item->control = words.status();
      }
    }
  }

  const int fd_;
  const bool checksummed_;
  // As of PullTarget; null: nobody wants to know.
  const std::function<std::shared_ptr<const void>(std::string device)> begin_device_write_;
  const std::shared_ptr<SharedDevices> shared_;
  const uint32_t lane_;
  const std::unique_ptr<stream::RemoteMemory> host_;
  const std::shared_ptr<const stream::Bell> bell_ = std::make_shared<const stream::Bell>();
  std::optional<same_host::PeerMemory> process_;
  std::shared_ptr<SourceImports> source_;  // once it is ready
  std::deque<Item> items_;                 // that Poll has not returned, in the order of Start
  // Jobs that were started since the last Poll, and the devices that will copy.
  std::vector<std::pair<const CudaDevice*, std::shared_ptr<CopyJob>>> unsubmitted_;
  uint64_t control_address_ = 0;  // the same for all reads of a connection
};

// Ends what is attached at both of a transport's sides.
class AttachedEverywhere final : public AttachedMemory {
 public:
  AttachedEverywhere(std::vector<std::unique_ptr<AttachedMemory>> parts,
                     std::shared_ptr<RegistrationCache> registrations)
      : parts_(std::move(parts)), registrations_(std::move(registrations)) {}
  ~AttachedEverywhere() override {
    parts_.clear();
    registrations_->DropUnused();
  }

 private:
  std::vector<std::unique_ptr<AttachedMemory>> parts_;
  const std::shared_ptr<RegistrationCache> registrations_;  // of what transfers write to
};

}  // namespace

absl::StatusOr<std::shared_ptr<SharedDevices>> SharedDevices::Of(
    std::shared_ptr<const CudaDevices> devices, Options options) {
  std::shared_ptr<SharedDevices> shared(new SharedDevices());
  shared->devices_ = devices;
  shared->kinds_ = std::make_shared<MemoryKinds>(devices);
  TH_ASSIGN_OR_RETURN(shared->exported_, ExportedMemory::Create(devices, options.exports));
  shared->imports_ = std::make_unique<ImportCache>(devices, options.imports);
  if (options.counters == nullptr) options.counters = std::make_shared<CopyCounters>();
  shared->copier_ = std::make_unique<DeviceCopier>(devices, shared->kinds_, options.counters,
                                                   options.copy_threads);
  return shared;
}

absl::StatusOr<std::unique_ptr<AttachedMemory>> SharedDevices::Attach(
    absl::Span<const MemoryRegion> regions) {
  std::vector<std::unique_ptr<AttachedMemory>> parts;
  TH_ASSIGN_OR_RETURN(auto exported,
                      exported_->Attach(regions, ExportedMemory::OnDetach::kAwaitReaders));
  parts.push_back(std::move(exported));
  parts.push_back(kinds_->Attach(regions));
  std::vector<MemoryRegion> of_host;
  std::copy_if(regions.begin(), regions.end(), std::back_inserter(of_host),
               [](const MemoryRegion& region) { return region.kind != MemoryKind::kDevice; });
  parts.push_back(unreadable_->Attach(of_host));
  return std::make_unique<AttachedEverywhere>(std::move(parts), kinds_->registrations());
}

std::unique_ptr<stream::ServedMemory> ServeCudaMemory(int fd,
                                                      std::shared_ptr<SharedDevices> shared) {
  return std::make_unique<ServedCudaMemory>(fd, std::move(shared));
}

std::unique_ptr<stream::RemoteMemory> ReadCudaMemory(const stream::Medium::ReadSetup& setup,
                                                     std::shared_ptr<SharedDevices> shared) {
  return std::make_unique<RemoteCudaMemory>(setup, std::move(shared));
}

}  // namespace th::cuda_ipc
