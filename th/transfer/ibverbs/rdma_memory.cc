#include "th/transfer/ibverbs/rdma_memory.h"

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/transfer/ibverbs/mapped_check.h"
#include "th/transfer/ibverbs/read_plan.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/segment_store.h"
#include "th/transfer/stream/bell.h"
#include "th/transfer/stream/socket.h"

namespace th::ibverbs {
namespace {

constexpr size_t kWordBytes = 4096;  // registered whole: a page
// READs of the control block that are outstanding at a connection; segments that land beyond that
// wait for the next.
constexpr size_t kMaxControlReads = 4;
constexpr size_t kControlSlotBytes = 64;  // a cache line each
static_assert(sizeof(ControlBlock) == 2 * sizeof(uint64_t), "readers take it as two words");

std::vector<OfferedDevice> Shown(const Fabric& fabric, const std::vector<size_t>& places) {
  std::vector<OfferedDevice> shown;
  for (const size_t place : places) {
    const RdmaDevice& device = *fabric.devices()[place];
    shown.push_back({.link = device.link(), .gid = device.gid().gid});
  }
  return shown;
}

const void* FirstByte(absl::Span<const iovec> into) {
  for (const iovec& piece : into) {
    if (piece.iov_len > 0) return piece.iov_base;
  }
  return nullptr;
}

absl::Status NoActivePort(absl::string_view whose) {
  return absl::UnavailableError(absl::StrCat("no port of ", whose, " RDMA devices is active now"));
}

// ---- the source's end

class ServedRdmaMemory final : public stream::ServedMemory {
 public:
  explicit ServedRdmaMemory(std::shared_ptr<const Fabric> fabric) : fabric_(std::move(fabric)) {}

  absl::StatusOr<std::string> Offer() override {
    offered_ = fabric_->ActiveDevices();
    if (offered_.size() > kMaxOfferedDevices) offered_.resize(kMaxOfferedDevices);
    if (offered_.empty()) return NoActivePort("the source's");
    return Encode(DeviceOffer{Shown(*fabric_, offered_)});
  }

  absl::StatusOr<std::string> HandleAnswer(absl::string_view answer) override {
    TH_ASSIGN_OR_RETURN(const PairRequest request, DecodeRequest(answer));
    if (pair_ != nullptr || request.device >= offered_.size()) {
      return absl::InvalidArgumentError(
          "a second request for a queue pair, or one with a device that was not offered");
    }
    device_ = offered_[request.device];
    TH_ASSIGN_OR_RETURN(
        pair_, QueuePair::Create(fabric_->devices()[device_], {.role = QueuePair::Role::kSource}));
    TH_RETURN_IF_ERROR(pair_->Connect(request.reader));
    const RegisteredBuffer& word = fabric_->word(device_);
    PairReply reply{.source = pair_->address(),
                    .word_address = reinterpret_cast<uintptr_t>(word.data()),
                    .word = 0,
                    .word_key = word.remote_key()};
    std::memcpy(&reply.word, word.data(), sizeof(reply.word));
    return Encode(reply);
  }

  std::optional<uint32_t> KeyOf(const iovec& piece) override {
    if (pair_ == nullptr) return std::nullopt;
    const auto keys = fabric_->memory()->Find(piece.iov_base, piece.iov_len, device_, owner_);
    if (keys.has_value()) return keys->remote_key;
    const auto of_gpu = fabric_->gpu_memory()->Find(piece.iov_base, piece.iov_len, device_, owner_);
    if (of_gpu.has_value()) return of_gpu->remote_key;
    return std::nullopt;
  }
  bool serves_devices() const override { return fabric_->gpu_memory()->count() > 0; }
  // Memory that was to be registered and is not would go through the socket, slower than its reader
  // is told. Of memory that its owner has freed the adapter would still read the old pages.
  absl::Status CheckServes(absl::Span<const MemoryRegion> regions) override {
    TH_RETURN_IF_ERROR(CheckMapped(regions));
    owner_ = OwnerOf(regions);
    for (const MemoryRegion& region : regions) {
      if (region.bytes == 0) continue;
      TH_RETURN_IF_ERROR(region.kind == MemoryKind::kDevice
                             ? fabric_->gpu_memory()->WhyStaged(region, owner_)
                             : fabric_->memory()->WhyRefused(region.address, region.bytes, owner_));
    }
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<const Fabric> fabric_;
  std::vector<size_t> offered_;  // places in fabric_->devices()
  MemoryOwner owner_;            // of the buffer that the reader was admitted to
  size_t device_ = 0;
  std::unique_ptr<QueuePair> pair_;
};

// ---- the reader's end

// A descriptor that becomes readable when completions come or a time has passed.
class Alarm {
 public:
  Alarm()
      : epoll_(epoll_create1(EPOLL_CLOEXEC)),
        timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
    if (valid()) Add(timer_.fd());
  }
  bool valid() const { return epoll_.open() && timer_.open(); }
  int fd() const { return epoll_.fd(); }
  void Add(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event);
  }
  // Rings once, at `time` or before: a ring that is set for an earlier time is left as it is, so
  // that a deadline which moves with every READ costs no system call.
  void RingBy(absl::Time time, absl::Time now) {
    if (rings_at_ <= time) return;
    itimerspec when{};
    when.it_value = absl::ToTimespec(std::max(time - now, absl::Milliseconds(1)));
    timerfd_settime(timer_.fd(), 0, &when, nullptr);
    rings_at_ = time;
  }
  // Takes note of a time that has passed.
  void Clear() {
    uint64_t count = 0;
    if (read(timer_.fd(), &count, sizeof(count)) > 0) rings_at_ = absl::InfiniteFuture();
  }

 private:
  stream::Socket epoll_, timer_;  // owners of descriptors
  absl::Time rings_at_ = absl::InfiniteFuture();
};

class RemoteRdmaMemory final : public stream::RemoteMemory {
 public:
  RemoteRdmaMemory(std::shared_ptr<const Fabric> fabric, const ReadOptions& options)
      : fabric_(std::move(fabric)), options_(options) {}
  ~RemoteRdmaMemory() override;

  absl::StatusOr<std::string> HandleOffer(absl::string_view offer) override;
  bool ready() const override { return state_ == State::kReady; }
  int fd() const override { return alarm_.fd(); }
  bool writes_devices() const override { return fabric_->gpu_memory()->count() > 0; }
  bool CanWrite(absl::Span<const iovec> into) override;
  // The source has nothing to say while the adapter reads, which has a deadline of its own, or the
  // reader's GPU finishes what the adapter has written.
  bool copying() const override { return !items_.empty(); }
  bool HasAnotherWay() const override;
  uint64_t packing_overhead_bytes() const override {
    return pair_ == nullptr ? 0 : pair_->counters().gap_bytes;
  }
  void Start(absl::Span<const stream::Located::Piece> from, absl::Span<const iovec> into,
             const stream::ControlPlace& control) override;
  absl::StatusOr<std::optional<Read>> Poll() override;
  std::string devices() const override;
  bool End(bool hangs) override;

 private:
  enum class State : uint8_t { kOffered, kRequested, kProbing, kReady };
  // kOnGpu: of those in GPU memory, once the control block was read.
  enum class Step : uint8_t { kReading, kLanded, kChecking, kOnGpu, kDone };
  struct Item {
    uint64_t number = 0;
    std::vector<KeyedRange> from;
    absl::Span<const iovec> into;
    uint64_t bytes = 0;
    KeyedRange control;
    bool bounced = false;
    uint64_t bytes_bounced = 0;  // copied to `into`
    Step step = Step::kReading;
    uint64_t check = 0;                   // which control READ comes after its bytes
    std::shared_ptr<GpuLanding> landing;  // of one in GPU memory
    Read read;
  };
  // A destination in GPU memory, as CanWrite has found it.
  struct GpuDestination {
    const void* begin = nullptr;  // of its first piece
    std::vector<KeyedRange> keyed;
    std::vector<DevicePiece> pieces;
    std::vector<std::shared_ptr<DeviceMemory>> memories;
  };
  // Tags of the queue pair.
  static constexpr uint64_t kCheckTag = uint64_t{1} << 63;
  static constexpr uint64_t kProbeTag = kCheckTag - 1;

  // The devices of a connection.
  struct Way {
    size_t device = 0;   // its place in Fabric::devices()
    size_t offered = 0;  // that of the source's in offered_
    bool broken = false;
  };
  absl::StatusOr<Way> ChooseWay() const;
  void NoteBrokenWay();

  void CountReads() const;
  absl::StatusOr<std::string> Request(const DeviceOffer& offer);
  absl::Status Probe(const PairReply& reply);
  absl::Status FinishProbe();
  // Begins the use of a destination in GPU memory.
  absl::Status PrepareLanding(GpuDestination destination, Item* item);
  void Fail(Item* item, absl::Status why);
  void TakeLandings();
  // The keys of `into`; empty: some of it is not registered.
  std::vector<KeyedRange> KeysOf(absl::Span<const iovec> into) const;
  absl::Status Progress();
  absl::Status TakeTag(uint64_t tag);
  absl::Status BounceNext();
  absl::Status Unbounce(Item* item);
  absl::Status CheckLanded();
  void FinishCheck(uint64_t check);
  absl::Status WatchDeadline();

  const std::shared_ptr<const Fabric> fabric_;
  const ReadOptions options_;
  Alarm alarm_;
  // Shared with landings, which ring it on their thread.
  const std::shared_ptr<const stream::Bell> bell_ = std::make_shared<const stream::Bell>();
  std::optional<GpuDestination> found_;  // by the last CanWrite, until the next Start
  State state_ = State::kOffered;
  std::vector<OfferedDevice> offered_;  // the source's
  size_t device_ = 0;
  Gid peer_{};  // of the source's device
  uint64_t word_ = 0;
  std::unique_ptr<RegisteredBuffer> slots_;  // for control blocks, and for the word
  std::unique_ptr<RegisteredBuffer> bounce_;
  std::unique_ptr<QueuePair> pair_;  // destroyed before the buffers it writes to

  std::optional<absl::Time> give_up_at_;  // then a GPU is waited for no more; set by the first End
  absl::Status failed_;
  std::deque<Item> items_;  // not returned by Poll yet, in the order of Start
  uint64_t next_item_ = 0;
  uint64_t next_check_ = 0;
  uint64_t checks_done_ = 0;
  std::optional<uint64_t> bouncing_;  // the item that has the buffer
  uint64_t bounce_bytes_ = 0;         // of reads on their way to it
};

RemoteRdmaMemory::~RemoteRdmaMemory() {
  if (RemoteRdmaMemory::End(/*hangs=*/false)) return;
  // The transport is going: there is no loop to come back on.
  for (const Item& item : items_) {
    if (item.landing == nullptr) continue;
    static_cast<void>(item.landing->AwaitEnd(*give_up_at_ - MonotonicNow()));
  }
}

std::string RemoteRdmaMemory::devices() const {
  const auto at_it = std::find_if(items_.begin(), items_.end(),
                                  [](const Item& item) { return item.step == Step::kOnGpu; });
  return at_it == items_.end() ? "" : at_it->landing->device_name();
}

// A GPU that hangs only reads the destination: its use keeps the memory.
bool RemoteRdmaMemory::End(bool hangs) {
  if (!give_up_at_.has_value()) {
    give_up_at_ = MonotonicNow() + fabric_->deadlines().landing;
    if (pair_ != nullptr) CountReads();
    pair_ = nullptr;  // no byte lands any more
  }
  alarm_.Clear();
  bell_->Clear();
  bool ended = true;
  for (const Item& item : items_) {
    if (item.landing != nullptr && !item.landing->Cancel()) ended = false;
  }
  if (hangs) give_up_at_ = absl::InfinitePast();
  return ended || MonotonicNow() >= *give_up_at_;
}

void RemoteRdmaMemory::CountReads() const {
  ReadCounters& counters = fabric_->counters();
  counters.posted += pair_->counters().reads_posted;
  counters.signalled += pair_->counters().reads_signalled;
  counters.gap_bytes += pair_->counters().gap_bytes;
  uint32_t most = counters.most_outstanding.load();
  while (
      most < pair_->counters().most_outstanding &&
      !counters.most_outstanding.compare_exchange_weak(most, pair_->counters().most_outstanding)) {
  }
}

// ---- becoming ready

absl::StatusOr<std::string> RemoteRdmaMemory::HandleOffer(absl::string_view offer) {
  if (!alarm_.valid() || !bell_->valid()) {
    return absl::ResourceExhaustedError("no descriptor for the completions of a queue pair");
  }
  if (state_ == State::kOffered) {
    TH_ASSIGN_OR_RETURN(const DeviceOffer devices, DecodeOffer(offer));
    return Request(devices);
  }
  if (state_ == State::kRequested) {
    TH_ASSIGN_OR_RETURN(const PairReply reply, DecodeReply(offer));
    TH_RETURN_IF_ERROR(Probe(reply));
    return std::string();
  }
  return absl::InvalidArgumentError("more words on RDMA than a source has to say");
}

// The connection's in turn, or the next behind it that is not known to be broken; where all are,
// its own is tried again.
absl::StatusOr<RemoteRdmaMemory::Way> RemoteRdmaMemory::ChooseWay() const {
  const std::vector<size_t> active = fabric_->ActiveDevices();
  if (active.empty()) return NoActivePort("this process's");
  const std::vector<OfferedDevice> own = Shown(*fabric_, active);
  const absl::Time now = MonotonicNow();
  std::optional<Way> in_turn;
  for (size_t turn = 0; turn < active.size() * offered_.size(); ++turn) {
    TH_ASSIGN_OR_RETURN(
        const DeviceChoice choice,
        ChooseDevices(own, offered_, options_.number + static_cast<uint32_t>(turn)));
    const Way way{.device = active[choice.own],
                  .offered = choice.offered,
                  .broken = fabric_->broken_ways().Has(active[choice.own],
                                                       offered_[choice.offered].gid, now)};
    if (!way.broken) return way;
    if (!in_turn.has_value()) in_turn = way;
  }
  return *in_turn;
}

bool RemoteRdmaMemory::HasAnotherWay() const {
  if (offered_.empty()) return false;
  const absl::StatusOr<Way> way = ChooseWay();
  return way.ok() && !way->broken;
}

void RemoteRdmaMemory::NoteBrokenWay() {
  fabric_->broken_ways().Note(device_, peer_, MonotonicNow());
}

absl::StatusOr<std::string> RemoteRdmaMemory::Request(const DeviceOffer& offer) {
  offered_ = offer.devices;
  TH_ASSIGN_OR_RETURN(const Way way, ChooseWay());
  device_ = way.device;
  peer_ = offered_[way.offered].gid;
  const auto& device = fabric_->devices()[device_];
  TH_ASSIGN_OR_RETURN(slots_, RegisteredBuffer::Make(device, kWordBytes));
  TH_ASSIGN_OR_RETURN(pair_, QueuePair::Create(device, {}));
  alarm_.Add(pair_->completion_fd());
  alarm_.Add(bell_->fd());
  state_ = State::kRequested;
  return Encode(PairRequest{static_cast<uint8_t>(way.offered), pair_->address()});
}

absl::Status RemoteRdmaMemory::Probe(const PairReply& reply) {
  const absl::Status connected = pair_->Connect(reply.source);
  if (absl::IsUnavailable(connected)) NoteBrokenWay();
  TH_RETURN_IF_ERROR(connected);
  state_ = State::kProbing;
  word_ = reply.word;
  const KeyedRange from{reply.word_address, sizeof(word_), reply.word_key};
  TH_RETURN_IF_ERROR(
      pair_->Post(kProbeTag, {from}, {slots_->Range(0, sizeof(word_))}, MonotonicNow()));
  return WatchDeadline();
}

absl::Status RemoteRdmaMemory::FinishProbe() {
  uint64_t found = 0;
  std::memcpy(&found, slots_->data(), sizeof(found));
  if (found != word_) {
    NoteBrokenWay();
    return absl::FailedPreconditionError(
        "another value was read over RDMA than the source has told: the queue pair leads "
        "elsewhere");
  }
  state_ = State::kReady;
  return absl::OkStatus();
}

// ---- reading

std::vector<KeyedRange> RemoteRdmaMemory::KeysOf(absl::Span<const iovec> into) const {
  std::vector<KeyedRange> keyed;
  keyed.reserve(into.size());
  for (const iovec& piece : into) {
    if (piece.iov_len == 0) continue;
    const auto keys =
        fabric_->memory()->Find(piece.iov_base, piece.iov_len, device_, options_.into);
    if (!keys.has_value() || !keys->writable) return {};
    keyed.push_back({reinterpret_cast<uintptr_t>(piece.iov_base), piece.iov_len, keys->local_key});
  }
  return keyed;
}

// All of it lies in registered memory of one GPU. A destination that lies in the host too, or on
// several, would have to be summed in parts.
bool RemoteRdmaMemory::CanWrite(absl::Span<const iovec> into) {
  GpuDestination destination;
  for (const iovec& piece : into) {
    if (piece.iov_len == 0) continue;
    auto found = fabric_->gpu_memory()->Find(piece.iov_base, piece.iov_len, device_, options_.into);
    if (!found.has_value()) return false;
    if (destination.begin == nullptr) destination.begin = piece.iov_base;
    destination.keyed.push_back(
        {reinterpret_cast<uintptr_t>(piece.iov_base), piece.iov_len, found->local_key});
    destination.pieces.push_back({found->memory.get(), found->offset, piece.iov_len});
    if (&found->memory->device() != &destination.pieces.front().memory->device()) return false;
    if (destination.memories.empty() || destination.memories.back() != found->memory) {
      destination.memories.push_back(std::move(found->memory));
    }
  }
  if (destination.begin == nullptr) return false;
  found_ = std::move(destination);
  return true;
}

absl::Status RemoteRdmaMemory::PrepareLanding(GpuDestination destination, Item* item) {
  TH_ASSIGN_OR_RETURN(PiecesUse use, PiecesUse::Begin(destination.pieces.front().memory->device(),
                                                      destination.pieces));
  item->landing =
      std::make_shared<GpuLanding>(GpuLanding::Spec{.gpus = fabric_->gpu_memory()->gpus(),
                                                    .memories = std::move(destination.memories),
                                                    .pieces = std::move(destination.pieces),
                                                    .use = std::move(use),
                                                    .checksummed = options_.checksummed,
                                                    .on_end = [bell = bell_] { bell->Ring(); }});
  return absl::OkStatus();
}

// The destination is at fault, and no source.
void RemoteRdmaMemory::Fail(Item* item, absl::Status why) {
  item->step = Step::kDone;
  item->read = {.status = std::move(why), .control = std::nullopt, .lost = true};
}

// Takes the segments in GPU memory that the landings' thread is done with.
void RemoteRdmaMemory::TakeLandings() {
  bell_->Clear();
  for (Item& item : items_) {
    if (item.step != Step::kOnGpu || !item.landing->ended()) continue;
    if (!item.landing->status().ok()) {
      Fail(&item, item.landing->status());
      continue;
    }
    item.read.checksum = item.landing->checksum();
    item.step = Step::kDone;
    fabric_->counters().gpu_bytes += item.bytes;
  }
}

void RemoteRdmaMemory::Start(absl::Span<const stream::Located::Piece> from,
                             absl::Span<const iovec> into, const stream::ControlPlace& control) {
  items_.emplace_back();
  Item& item = items_.back();
  item.number = next_item_++;
  item.into = into;
  item.control = {control.address, sizeof(ControlBlock), control.key};
  item.from.reserve(from.size());
  for (const stream::Located::Piece& piece : from) {
    item.from.push_back({piece.address, piece.bytes, piece.key});
    item.bytes += piece.bytes;
  }
  std::optional<GpuDestination> found = std::exchange(found_, std::nullopt);
  const bool on_gpu = found.has_value() && !into.empty() && found->begin == FirstByte(into);
  if (!failed_.ok()) return;
  if (on_gpu) {
    std::vector<KeyedRange> keyed = std::move(found->keyed);
    if (absl::Status prepared = PrepareLanding(*std::move(found), &item); !prepared.ok()) {
      return Fail(&item, std::move(prepared));
    }
    failed_ = pair_->Post(item.number, item.from, keyed, MonotonicNow());
    return;
  }
  if (item.bytes == 0) {
    item.step = Step::kLanded;
    failed_ = CheckLanded();
    return;
  }
  const std::vector<KeyedRange> keyed = KeysOf(into);
  item.bounced = keyed.empty();
  failed_ =
      item.bounced ? BounceNext() : pair_->Post(item.number, item.from, keyed, MonotonicNow());
}

absl::StatusOr<std::optional<stream::RemoteMemory::Read>> RemoteRdmaMemory::Poll() {
  if (!items_.empty()) TakeLandings();
  if (items_.empty() || items_.front().step != Step::kDone) {
    if (failed_.ok() && pair_ != nullptr && state_ >= State::kProbing) failed_ = Progress();
  }
  if (!items_.empty() && items_.front().step == Step::kDone) {
    std::optional<Read> read = std::move(items_.front().read);
    items_.pop_front();
    return read;
  }
  if (!failed_.ok()) return failed_;
  return std::optional<Read>();
}

absl::Status RemoteRdmaMemory::Progress() {
  alarm_.Clear();
  std::vector<uint64_t> tags;
  const absl::Status polled = pair_->Poll(MonotonicNow(), &tags);
  for (const uint64_t tag : tags) TH_RETURN_IF_ERROR(TakeTag(tag));
  // The source has just told where its word lies; later a READ may fail because the source has
  // gone.
  if (!polled.ok() && state_ == State::kProbing) NoteBrokenWay();
  TH_RETURN_IF_ERROR(polled);
  TH_RETURN_IF_ERROR(BounceNext());
  TH_RETURN_IF_ERROR(CheckLanded());
  return WatchDeadline();
}

absl::Status RemoteRdmaMemory::TakeTag(uint64_t tag) {
  if (tag == kProbeTag) return FinishProbe();
  if ((tag & kCheckTag) != 0) {
    FinishCheck(tag & ~kCheckTag);
    return absl::OkStatus();
  }
  Item& item = items_[tag - items_.front().number];
  if (item.bounced) return Unbounce(&item);
  item.step = Step::kLanded;
  return absl::OkStatus();
}

// Gives the buffer to the first segment that waits for it.
absl::Status RemoteRdmaMemory::BounceNext() {
  if (bouncing_.has_value()) return absl::OkStatus();
  const auto item = std::find_if(items_.begin(), items_.end(), [](const Item& each) {
    return each.bounced && each.step == Step::kReading;
  });
  if (item == items_.end()) return absl::OkStatus();
  if (bounce_ == nullptr) {
    TH_ASSIGN_OR_RETURN(bounce_, RegisteredBuffer::Make(fabric_->devices()[device_], kBounceBytes));
  }
  bouncing_ = item->number;
  bounce_bytes_ = std::min<uint64_t>(kBounceBytes, item->bytes - item->bytes_bounced);
  return pair_->Post(item->number, Slice(item->from, item->bytes_bounced, bounce_bytes_),
                     {bounce_->Range(0, bounce_bytes_)}, MonotonicNow());
}

// Copies what has come to the buffer to where it belongs.
absl::Status RemoteRdmaMemory::Unbounce(Item* item) {
  uint64_t skip = item->bytes_bounced;
  const char* from = bounce_->data();
  uint64_t left = bounce_bytes_;
  for (const iovec& piece : item->into) {
    if (skip >= piece.iov_len) {
      skip -= piece.iov_len;
      continue;
    }
    const uint64_t taken = std::min<uint64_t>(left, piece.iov_len - skip);
    std::memcpy(static_cast<char*>(piece.iov_base) + skip, from, taken);
    from += taken;
    left -= taken;
    skip = 0;
    if (left == 0) break;
  }
  item->bytes_bounced += bounce_bytes_;
  fabric_->counters().bounced_bytes += bounce_bytes_;
  bouncing_.reset();
  if (item->bytes_bounced == item->bytes) item->step = Step::kLanded;
  return absl::OkStatus();
}

// One READ of the control block for all segments that have landed and are not checked.
absl::Status RemoteRdmaMemory::CheckLanded() {
  if (next_check_ - checks_done_ >= kMaxControlReads) return absl::OkStatus();
  const Item* any = nullptr;
  for (Item& item : items_) {
    if (item.step != Step::kLanded) continue;
    item.step = Step::kChecking;
    item.check = next_check_;
    any = &item;
  }
  if (any == nullptr) return absl::OkStatus();
  const size_t slot = next_check_ % kMaxControlReads;
  return pair_->Post(kCheckTag | next_check_++, {any->control},
                     {slots_->Range(slot * kControlSlotBytes, sizeof(ControlBlock))},
                     MonotonicNow());
}

void RemoteRdmaMemory::FinishCheck(uint64_t check) {
  uint64_t words[2];
  const size_t slot = check % kMaxControlReads;
  std::memcpy(words, slots_->data() + slot * kControlSlotBytes, sizeof(words));
  ++checks_done_;
  for (Item& item : items_) {
    if (item.step != Step::kChecking || item.check != check) continue;
    item.read.control = Read::Control{.generation = words[0], .life = words[1]};
    if (item.landing == nullptr) {
      item.step = Step::kDone;
    } else {
      item.step = Step::kOnGpu;
      fabric_->gpu_landings().Submit(item.landing);
    }
  }
}

// An error once the READs under way have not got on for too long.
absl::Status RemoteRdmaMemory::WatchDeadline() {
  const std::optional<absl::Time> since = pair_->waiting_since();
  if (!since.has_value()) return absl::OkStatus();
  const FabricDeadlines& deadlines = fabric_->deadlines();
  const absl::Duration allowed = state_ == State::kProbing ? deadlines.probe : deadlines.read;
  const absl::Time deadline = *since + allowed;
  const absl::Time now = MonotonicNow();
  if (now >= deadline) {
    NoteBrokenWay();
    return absl::UnavailableError(absl::StrCat("the source's memory does not answer over RDMA (",
                                               pair_->device().ToString(), ") within ",
                                               absl::FormatDuration(allowed)));
  }
  alarm_.RingBy(deadline, now);
  return absl::OkStatus();
}

}  // namespace

// ---- BrokenWays

void BrokenWays::Note(size_t device, const Gid& peer, absl::Time now) {
  const absl::MutexLock lock(&mu_);
  std::erase_if(ways_, [&](const Way& way) { return way.device == device && way.peer == peer; });
  if (ways_.size() == kMaxBrokenWays) ways_.pop_front();
  ways_.push_back({.device = device, .peer = peer, .failed_at = now});
}

bool BrokenWays::Has(size_t device, const Gid& peer, absl::Time now) const {
  const absl::MutexLock lock(&mu_);
  return std::any_of(ways_.begin(), ways_.end(), [&](const Way& way) {
    return way.device == device && way.peer == peer && now - way.failed_at < kBrokenWayTime;
  });
}

// ---- Fabric

absl::StatusOr<std::shared_ptr<const Fabric>> Fabric::Of(
    std::vector<std::shared_ptr<const RdmaDevice>> devices, FabricOptions options) {
  std::shared_ptr<Fabric> fabric(new Fabric);
  fabric->devices_ = std::move(devices);
  const auto budget = std::make_shared<RegistrationBudget>(options.max_registered_bytes);
  fabric->memory_ = std::make_shared<HostRegistrations>(
      fabric->devices_, HostRegistrations::Options{.budget = budget});
  if (options.gpus == nullptr) options.gpus = [] { return nullptr; };
  fabric->gpu_memory_ =
      std::make_shared<GpuRegistrations>(fabric->devices_, std::move(options.gpus), budget);
  fabric->gpu_landings_ = std::make_unique<GpuLandings>();
  fabric->deadlines_ = options.deadlines;
  fabric->counters_ =
      options.counters != nullptr ? options.counters : std::make_shared<ReadCounters>();
  for (const auto& device : fabric->devices_) {
    TH_ASSIGN_OR_RETURN(auto word, RegisteredBuffer::Make(device, kWordBytes));
    // Cannot fail for so few bytes once the system has booted; any value will do.
    [[maybe_unused]] const ssize_t got = getrandom(word->data(), sizeof(uint64_t), 0);
    fabric->words_.push_back(std::move(word));
  }
  return fabric;
}

std::vector<size_t> Fabric::ActiveDevices() const {
  std::vector<size_t> active;
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i]->IsPortActive()) active.push_back(i);
  }
  return active;
}

std::unique_ptr<stream::ServedMemory> ServeRdmaMemory(std::shared_ptr<const Fabric> fabric) {
  return std::make_unique<ServedRdmaMemory>(std::move(fabric));
}

std::unique_ptr<stream::RemoteMemory> ReadRdmaMemory(std::shared_ptr<const Fabric> fabric,
                                                     const ReadOptions& options) {
  return std::make_unique<RemoteRdmaMemory>(std::move(fabric), options);
}

}  // namespace th::ibverbs
