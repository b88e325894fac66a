#include "th/transfer/fake_transport.h"

#include <atomic>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "th/pipeline_replicator/request_queue.h"
#include "th/pipeline_replicator/serving_session.h"
#include "th/transfer/monotonic_clock.h"

namespace th::testing {

class FakeTransport;

constexpr size_t kChecksumsInStep = 256;

// One pull, both ends of it. The network's thread only, but for `closing`.
struct FakePull : std::enable_shared_from_this<FakePull> {
  FakeNetwork* network = nullptr;
  PullTarget target;
  PullSink* sink = nullptr;
  TransportLimits limits;
  FakeTransport* reader = nullptr;
  FakeTransport* source = nullptr;
  HolderDelegate* delegate = nullptr;
  TransferId transfer;
  std::shared_ptr<SegmentStore> store;
  BufferGeneration generation;
  bool deciding = false;
  bool admitted = false;
  bool closed = false;
  bool stepping = false;  // a step is posted, or a segment is awaited
  SegmentStore::WaitId wait = 0;
  RequestQueue asks;
  SegmentRange checksums_asked;  // that are not sent yet
  uint64_t bytes_sent = 0;

  void Connect();
  void Decided(Admission admission);
  void Ask(SegmentRange range);
  void AskChecksums();
  void StepSoon();
  bool owes() const { return !asks.empty() || !checksums_asked.empty(); }
  bool ReportChecksums(bool compute);
  void Step();
  void Move(SegmentIndex segment);
  void AwaitSegments();
  void KeepAlive();
  void Close(SourceFailure failure, std::string detail);
  void Post(void (FakePull::*step)());
};

struct FakeNetwork::State {
  TaskThread thread{"fake-network"};
  // The network's thread only.
  std::map<std::string, FakeTransport*> transports;
  std::set<std::shared_ptr<FakePull>> pulls;
  std::map<std::string, std::set<SegmentIndex>> corrupt;
  std::map<std::string, uint64_t> silent_after;
  std::set<std::string> forged_lists;
  bool lists_checksums = true;
  uint64_t next_address = 0;
};

class FakeTransport : public Transport {
 public:
  FakeTransport(FakeNetwork* network, TransportLimits limits, std::string address)
      : network_(network), limits_(std::move(limits)), address_(std::move(address)) {}
  ~FakeTransport() override;

  absl::string_view name() const override { return "fake"; }
  absl::Status Reach(const Endpoint&) const override { return absl::OkStatus(); }
  std::vector<Endpoint> endpoints() const override {
    return {{.address = address_, .transport = "fake"}};
  }
  absl::StatusOr<std::unique_ptr<AttachedMemory>> Attach(absl::Span<const MemoryRegion>) override {
    return std::make_unique<AttachedMemory>();
  }
  bool AddHolder(WorkerId worker, HolderDelegate* delegate) override;
  void RemoveHolder(WorkerId worker) override;
  void FinishTransfer(TransferId transfer) override { CutTransfer(transfer); }
  void CutTransfer(TransferId transfer) override;
  std::unique_ptr<Pull> Open(PullTarget target, PullSink* sink) override;
  Counters counters() const override {
    return {bytes_sent.load(), bytes_received.load(), served.load(), refused.load()};
  }

  std::map<WorkerId, HolderDelegate*> holders;  // the network's thread only
  std::atomic<uint64_t> bytes_sent{0}, bytes_received{0}, served{0}, refused{0};

 private:
  void CloseWhere(const std::function<bool(const FakePull&)>& condition, const std::string& detail);

  FakeNetwork* const network_;
  const TransportLimits limits_;
  const std::string address_;
};

namespace {

class FakePullHandle : public Pull {
 public:
  FakePullHandle(TaskThread* thread, std::shared_ptr<FakePull> pull, std::string peer)
      : thread_(thread), pull_(std::move(pull)), peer_(std::move(peer)) {}
  ~FakePullHandle() override { Close(); }
  void Ask(SegmentRange range) override {
    thread_->Post([pull = pull_, range] { pull->Ask(range); });
  }
  void AskChecksums() override {
    thread_->Post([pull = pull_] { pull->AskChecksums(); });
  }
  // Whole segments move in one step: nothing is ever half sent.
  void Finish() override {
    thread_->Post([pull = pull_] { pull->Close(SourceFailure::kClosed, "finished"); });
  }
  void Close() override {
    thread_->Post([pull = pull_] { pull->Close(SourceFailure::kClosed, "closed by the reader"); });
  }
  std::string peer() const override { return peer_; }

 private:
  TaskThread* const thread_;
  const std::shared_ptr<FakePull> pull_;
  const std::string peer_;
};

}  // namespace

// ---- FakePull

void FakePull::Post(void (FakePull::*step)()) {
  network->thread().Post([self = shared_from_this(), step] { (self.get()->*step)(); });
}

void FakePull::Connect() {
  const auto& transports = network->state_->transports;
  const auto it = transports.find(target.endpoint.address);
  if (it == transports.end()) return Close(SourceFailure::kConnect, "nobody listens there");
  source = it->second;
  const auto holder = source->holders.find(target.source.worker);
  if (holder == source->holders.end()) {
    source->refused.fetch_add(1);
    return Close(SourceFailure::kRefused, "no such worker serves here");
  }
  delegate = holder->second;
  deciding = true;
  transfer = NextTransferId();
  network->thread().PostAt(MonotonicNow() + limits.admission_timeout, [self = shared_from_this()] {
    if (!self->admitted) self->Close(SourceFailure::kStalled, "not admitted in time");
  });
  delegate->OnAdmission({transfer, target.source.buffer, target.capability, target.generation},
                        [self = shared_from_this()](Admission admission) {
                          self->network->thread().Post([self, admission = std::move(admission)] {
                            self->Decided(admission);
                          });
                        });
}

void FakePull::Decided(Admission admission) {
  deciding = false;
  if (!admission.status.ok()) {
    if (closed) return;
    source->refused.fetch_add(1);
    return Close(SourceFailure::kRefused, std::string(admission.status.message()));
  }
  const bool fits = admission.store->layout().digest() == target.layout->digest();
  if (closed || !fits) {
    if (delegate != nullptr) delegate->OnReaderReleased(transfer, 0, /*why=*/"");
    return Close(SourceFailure::kRefused, "the layouts differ");
  }
  store = admission.store;
  generation = admission.generation;
  admitted = true;
  source->served.fetch_add(1);
  sink->OnAdmitted(generation, network->state_->lists_checksums);
  if (!closed && owes()) Post(&FakePull::Step);
}

void FakePull::Ask(SegmentRange range) {
  if (closed || range.empty()) return;
  const absl::Status may = CheckRequest(range, asks, target.layout->segment_count(), limits);
  if (!may.ok()) return Close(SourceFailure::kClosed, std::string(may.message()));
  asks.Push(range);
  StepSoon();
}

void FakePull::AskChecksums() {
  if (closed || !checksums_asked.empty()) return;
  checksums_asked = {SegmentIndex(0), SegmentIndex(target.layout->segment_count())};
  StepSoon();
}

void FakePull::StepSoon() {
  if (wait != 0) {
    store->CancelNotify(std::exchange(wait, 0));
    stepping = false;
  }
  if (admitted && !std::exchange(stepping, true)) Post(&FakePull::Step);
}

// One step's worth. False when nothing of what is owed is known.
bool FakePull::ReportChecksums(bool compute) {
  if (checksums_asked.empty()) return false;
  std::vector<SegmentChecksum> checksums =
      store->ChecksumsOf(checksums_asked, kChecksumsInStep, compute);
  if (checksums.empty()) return false;
  const SegmentIndex first = checksums_asked.begin;
  checksums_asked.begin.value += checksums.size();
  const auto forged = network->state_->forged_lists.find(target.endpoint.address);
  if (forged != network->state_->forged_lists.end()) checksums[0] ^= 1;
  sink->OnChecksums(first, checksums);
  return true;
}

void FakePull::Step() {
  stepping = false;
  wait = 0;
  if (closed || !owes()) return;
  auto& silent_after = network->state_->silent_after;
  const auto silence = silent_after.find(target.endpoint.address);
  if (silence != silent_after.end() && silence->second == 0) return;
  if (store->closed()) {
    return Close(SourceFailure::kClosed, "the holder serves this buffer no longer");
  }
  const std::optional<SegmentIndex> segment = store->FirstReady(asks);
  const bool reported = ReportChecksums(/*compute=*/!segment.has_value());
  if (closed) return;
  if (!segment.has_value()) {
    if (!reported && owes()) return AwaitSegments();
    if (!std::exchange(stepping, true)) Post(&FakePull::Step);
    return;
  }
  if (silence != silent_after.end()) --silence->second;
  asks.Take(*segment);
  Move(*segment);
  if (!closed && !std::exchange(stepping, true)) Post(&FakePull::Step);
}

void FakePull::AwaitSegments() {
  stepping = true;
  const auto listed = checksums_asked.empty() ? std::nullopt : std::optional(checksums_asked.begin);
  wait = store->NotifyWhenReady(
      asks, [self = shared_from_this()] { self->Post(&FakePull::Step); }, listed);
  if (wait == 0) Post(&FakePull::Step);
  KeepAlive();
}

void FakePull::KeepAlive() {
  if (closed || !owes() || store->closed() || store->FirstReady(asks).has_value()) return;
  sink->OnAlive();
  network->thread().PostAt(MonotonicNow() + limits.keep_alive,
                           [self = shared_from_this()] { self->KeepAlive(); });
}

void FakePull::Move(SegmentIndex segment) {
  if (store->generation() != generation) {
    return Close(SourceFailure::kGenerationChanged, "the buffer has another generation");
  }
  std::vector<iovec> from, to;
  store->AppendPieces(segment, &from);
  std::string bytes;
  for (const iovec& piece : from) {
    bytes.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
  }
  if (network->state_->corrupt[target.endpoint.address].erase(segment) > 0) bytes[0] ^= 1;
  bytes_sent += bytes.size();
  source->bytes_sent.fetch_add(bytes.size());
  reader->bytes_received.fetch_add(bytes.size());
  delegate->OnReaderBytes(transfer, bytes_sent);
  // Here a segment crosses as a copy.
  target.extra_bytes->Change(0, bytes.size());
  const bool lands = sink->OnSegmentBegins(segment, &to);
  size_t at = 0;
  for (const iovec& piece : to) {
    bytes.copy(static_cast<char*>(piece.iov_base), piece.iov_len, at);
    at += piece.iov_len;
  }
  target.extra_bytes->Change(bytes.size(), 0);
  if (!lands) return;
  const bool checked = target.layout->checksum() != ChecksumAlgorithm::kNone;
  sink->OnSegment(segment, store->ChecksumOf(segment),
                  checked ? ChecksumBytes(bytes.data(), bytes.size()) : 0);
}

void FakePull::Close(SourceFailure failure, std::string detail) {
  if (std::exchange(closed, true)) return;
  const auto self = shared_from_this();
  network->state_->pulls.erase(self);
  sink->OnClosed(failure, std::move(detail));
  if (!admitted) return;
  store->CancelNotify(wait);  // the store would keep this pull, which keeps the store
  store.reset();
  delegate->OnReaderReleased(transfer, bytes_sent, /*why=*/"");
}

// ---- FakeTransport

FakeTransport::~FakeTransport() {
  network_->RunAndWait([this] {
    network_->state_->transports.erase(address_);
    CloseWhere([&](const FakePull& p) { return p.source == this || p.reader == this; },
               "the transport was shut down");
  });
}

void FakeTransport::CloseWhere(const std::function<bool(const FakePull&)>& condition,
                               const std::string& detail) {
  const std::set<std::shared_ptr<FakePull>> pulls = network_->state_->pulls;
  for (const auto& pull : pulls) {
    if (condition(*pull)) pull->Close(SourceFailure::kClosed, detail);
  }
}

bool FakeTransport::AddHolder(WorkerId worker, HolderDelegate* delegate) {
  bool added = false;
  network_->RunAndWait([&] { added = holders.try_emplace(worker, delegate).second; });
  return added;
}

void FakeTransport::RemoveHolder(WorkerId worker) {
  network_->RunAndWait([this, worker] {
    holders.erase(worker);
    const auto pulls = network_->state_->pulls;
    for (const auto& pull : pulls) {
      if (pull->source != this || pull->target.source.worker != worker) continue;
      pull->Close(SourceFailure::kClosed, "the holder is gone");
      pull->delegate = nullptr;
    }
  });
}

void FakeTransport::CutTransfer(TransferId transfer) {
  network_->thread().Post([this, transfer] {
    CloseWhere([&](const FakePull& p) { return p.transfer == transfer; },
               "the holder cut the transfer");
  });
}

std::unique_ptr<Pull> FakeTransport::Open(PullTarget target, PullSink* sink) {
  auto pull = std::make_shared<FakePull>();
  pull->network = network_;
  pull->target = std::move(target);
  pull->sink = sink;
  pull->limits = limits_;
  pull->reader = this;
  auto handle = std::make_unique<FakePullHandle>(
      &network_->thread(), pull, absl::StrCat("fake ", pull->target.endpoint.address));
  network_->thread().Post([network = network_, pull] {
    network->state_->pulls.insert(pull);
    pull->Connect();
  });
  return handle;
}

// ---- FakeNetwork

FakeNetwork::FakeNetwork() : state_(std::make_unique<State>()) {}
FakeNetwork::~FakeNetwork() = default;

TaskThread& FakeNetwork::thread() { return state_->thread; }

void FakeNetwork::RunAndWait(std::function<void()> task) {
  absl::Notification done;
  state_->thread.Post([&] {
    task();
    done.Notify();
  });
  done.WaitForNotification();
}

std::unique_ptr<Transport> FakeNetwork::NewTransport(const TransportLimits& limits) {
  std::unique_ptr<FakeTransport> transport;
  RunAndWait([&] {
    std::string address = absl::StrCat("node-", state_->next_address++);
    transport = std::make_unique<FakeTransport>(this, limits, address);
    state_->transports[address] = transport.get();
  });
  return transport;
}

void FakeNetwork::CorruptNext(const std::string& address, SegmentIndex segment) {
  RunAndWait([&] { state_->corrupt[address].insert(segment); });
}

void FakeNetwork::FallSilentAfter(const std::string& address, uint64_t segments) {
  RunAndWait([&] { state_->silent_after[address] = segments; });
}

void FakeNetwork::ForgeListOf(const std::string& address) {
  RunAndWait([&] { state_->forged_lists.insert(address); });
}

void FakeNetwork::ListNoChecksums() {
  RunAndWait([&] { state_->lists_checksums = false; });
}

void FakeNetwork::Kill(const std::string& address) {
  RunAndWait([&] {
    FakeTransport* dead = state_->transports[address];
    state_->transports.erase(address);
    const auto pulls = state_->pulls;
    for (const auto& pull : pulls) {
      if (pull->source == dead) pull->Close(SourceFailure::kClosed, "connection reset");
    }
  });
}

}  // namespace th::testing
