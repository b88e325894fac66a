#include "th/transfer/fill.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "th/status/status_macros.h"
#include "th/transfer/hung_device.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

std::vector<std::string> OrderOf(FillSpec& spec, const std::vector<Transport*>& transports) {
  if (!spec.transport_order.empty()) return std::move(spec.transport_order);
  std::vector<std::string> order;
  order.reserve(transports.size());
  for (const Transport* transport : transports) order.emplace_back(transport->name());
  return order;
}

// The endpoints in the order of this process's transports. Those of transports that it does not use
// come first: they are passed over at once, and the result says why.
void PutInOrder(const std::vector<std::string>& transports, std::vector<Endpoint>* endpoints) {
  const auto place = [&](const Endpoint& endpoint) {
    const auto found = std::find(transports.begin(), transports.end(), endpoint.transport);
    return found == transports.end() ? -1 : found - transports.begin();
  };
  std::stable_sort(endpoints->begin(), endpoints->end(),
                   [&](const Endpoint& a, const Endpoint& b) { return place(a) < place(b); });
}

FillSession::Spec SessionSpec(const FillSpec& spec, const std::vector<Transport*>& transports) {
  const ShardLayout& layout = spec.store->layout();
  FillSession::Spec session;
  session.replicator = {.segment_count = layout.segment_count(),
                        .segment_bytes = layout.segment_bytes(),
                        .total_bytes = layout.bytes(),
                        .checksums = layout.checksum() != ChecksumAlgorithm::kNone,
                        .already_held = spec.resume,
                        .held_checksums = spec.store->checksums(),
                        .before = spec.before.of,
                        .before_checksums = spec.before.checksums};
  if (spec.ring != nullptr) {
    session.replicator.wanted = spec.ring->wanted();
    session.replicator.window_segments = spec.ring->slots();
  }
  session.reach = [transports,
                   unusable = spec.unusable_transports](const Endpoint& endpoint) -> absl::Status {
    const Transport* const transport = FindTransport(transports, endpoint.transport);
    // First, as what does not lead there need not be usable.
    if (transport != nullptr) TH_RETURN_IF_ERROR(transport->Reach(endpoint));
    const auto why = unusable.find(endpoint.transport);
    if (why != unusable.end()) return why->second;
    if (transport == nullptr) return absl::OutOfRangeError("this process does not use it");
    return absl::OkStatus();
  };
  session.strict_transport = spec.strict_transport;
  for (const Transport* const transport : transports) {
    if (transport->copies_by_device()) session.device_transports.emplace(transport->name());
  }
  session.root = spec.root;
  return session;
}

// As the owner of the buffer attaches it.
std::shared_ptr<const std::vector<MemoryRegion>> DestinationOf(const SegmentStore& store,
                                                               const SegmentRing* ring) {
  auto regions = std::make_shared<std::vector<MemoryRegion>>(store.regions());
  if (ring != nullptr) regions->push_back(ring->region());
  return regions;
}

}  // namespace

// Takes the bytes of one source. Called on data threads.
class Fill::Sink final : public PullSink {
 public:
  Sink(Fill* fill, SourceIndex source) : fill_(fill), source_(source) {}
  void OnAdmitted(BufferGeneration, bool lists_checksums) override {
    fill_->Admitted(source_, lists_checksums);
  }
  void OnChecksums(SegmentIndex first, absl::Span<const SegmentChecksum> checksums) override {
    fill_->ChecksumsCame(source_, first, checksums);
  }
  bool OnSegmentBegins(SegmentIndex segment, std::vector<iovec>* iov) override {
    return fill_->SegmentBegins(source_, segment, /*can_write=*/nullptr, iov);
  }
  bool OnSegmentBeginsInPlace(SegmentIndex segment, CanWrite can_write,
                              std::vector<iovec>* iov) override {
    return fill_->SegmentBegins(source_, segment, &can_write, iov);
  }
  void OnSegment(SegmentIndex segment, SegmentChecksum sent, SegmentChecksum computed) override {
    fill_->SegmentLanded(source_, segment, sent, computed);
  }
  void OnAlive() override { fill_->Alive(source_); }
  void OnDeviceHangs(absl::Status why) override { fill_->DeviceHangs(std::move(why)); }
  void OnClosed(SourceFailure failure, std::string detail) override {
    fill_->Closed(source_, failure, std::move(detail));
  }

 private:
  Fill* const fill_;  // outlives every call, see Fill::links_
  const SourceIndex source_;
};

std::shared_ptr<Fill> Fill::Start(FillSpec spec, std::vector<Transport*> transports,
                                  FillObserver* observer) {
  std::shared_ptr<Fill> fill(new Fill(std::move(spec), std::move(transports), observer));
  if (fill->ring_ != nullptr) {
    fill->ring_->OnRoom([hands_on = std::weak_ptr<Fill>(fill)](SegmentIndex end) {
      if (const auto held = hands_on.lock()) held->Consumed(end);
    });
  }
  absl::MutexLock lock(&fill->mu_);
  fill->ApplyToStore();
  if (fill->staging_ == nullptr) {
    fill->Wake();
  } else {
    fill->PrepareSlots();
  }
  return fill;
}

// Nothing that the session wants is carried out before there are slots: what came would be thrown
// away.
void Fill::PrepareSlots() {
  woken_ = preparing_ = true;
  device_moved_at_ = MonotonicNow();
  WatchDevice();
  staging_->PostPinning([self = shared_from_this()] {
    self->SlotsPrepared(self->staging_->PrepareLanding(*self->store_));
  });
}

void Fill::SlotsPrepared(absl::Status prepared) {
  {
    absl::MutexLock lock(&mu_);
    preparing_ = false;
    if (!prepared.ok()) session_.HandleBufferLost(std::move(prepared));
  }
  thread_->Post([self = shared_from_this()] { self->CarryOut(); });
}

Fill::Fill(FillSpec spec, std::vector<Transport*> transports, FillObserver* observer)
    : store_(spec.store),
      ring_(spec.ring),
      transports_(std::move(transports)),
      transport_order_(OrderOf(spec, transports_)),
      observer_(observer),
      into_(DestinationOf(*store_, ring_.get())),
      staging_(ring_ == nullptr && store_->device() != nullptr ? SharedDeviceStaging() : nullptr),
      device_time_(spec.device_time),
      session_(SessionSpec(spec, transports_), spec.limits, MonotonicNow()) {}

// ---- the owner

void Fill::SetSources(AssignmentId assignment, std::vector<AssignedSource> sources) {
  for (AssignedSource& source : sources) PutInOrder(transport_order_, &source.endpoints);
  absl::MutexLock lock(&mu_);
  session_.SetSources(assignment, std::move(sources), MonotonicNow());
  Wake();
}

void Fill::SetRoot(Digest root) {
  absl::MutexLock lock(&mu_);
  session_.SetRoot(root);
  ApplyToStore();
  Wake();
}

void Fill::Stop() {
  absl::MutexLock lock(&mu_);
  session_.Stop();
  Wake();
}

FillStatus Fill::status() const {
  absl::MutexLock lock(&mu_);
  FillStatus status = session_.status(MonotonicNow());
  status.reread_bytes += cut_bytes_->load();
  status.packing_overhead_bytes = packing_overhead_bytes_->load();
  status.peak_extra_bytes = extra_->peak();
  return status;
}

bool Fill::wrote() const {
  absl::MutexLock lock(&mu_);
  return session_.wrote();
}

bool Fill::stopping() const {
  absl::MutexLock lock(&mu_);
  return session_.stopping();
}

bool Fill::completed() const {
  absl::MutexLock lock(&mu_);
  return session_.completed();
}

// ---- data threads, and the consumer's

void Fill::Asking::Send() const {
  if (checksums) pull->AskChecksums();
  for (const SegmentRange& range : ranges) pull->Ask(range);
}

Fill::Asking Fill::RequestsOf(SourceIndex source, absl::Time now) {
  Asking asking;
  const Link& link = links_[source.value];
  if (link.pull == nullptr) return asking;  // just being opened: Do(OpenPull) asks
  asking.checksums = session_.PollChecksums(source, now);
  while (const auto range = session_.PollRequest(source, now)) asking.ranges.push_back(*range);
  if (asking.checksums || !asking.ranges.empty()) asking.pull = link.pull;
  return asking;
}

void Fill::ApplyToStore() {
  const bool started_over = session_.PollStartedOver();
  const SegmentSet unchanged = session_.TakeUnchanged();
  if (ring_ != nullptr) return;
  if (started_over) store_->ForgetAll();
  if (!unchanged.empty()) store_->MarkHeld(unchanged, session_.checksums());
  const PipelineReplicator::ListedChecksums listed = session_.TakeListed();
  if (!listed.checksums.empty()) store_->SetListed(listed.first, listed.checksums);
}

void Fill::Wake() {
  if (!session_.has_output() || std::exchange(woken_, true)) return;
  thread_->Post([self = shared_from_this()] { self->CarryOut(); });
}

void Fill::Admitted(SourceIndex source, bool lists_checksums) {
  Asking asking;
  {
    absl::MutexLock lock(&mu_);
    const absl::Time now = MonotonicNow();
    session_.HandleAdmitted(source, now, lists_checksums);
    asking = RequestsOf(source, now);
  }
  asking.Send();
}

void Fill::ChecksumsCame(SourceIndex source, SegmentIndex first,
                         absl::Span<const SegmentChecksum> checksums) {
  Asking asking;
  {
    absl::MutexLock lock(&mu_);
    const absl::Time now = MonotonicNow();
    session_.HandleChecksums(source, first, checksums, now);
    ApplyToStore();
    asking = RequestsOf(source, now);
    Wake();
  }
  asking.Send();
}

bool Fill::SegmentBegins(SourceIndex source, SegmentIndex segment,
                         const PullSink::CanWrite* can_write, std::vector<iovec>* iov) {
  Asking asking;
  {
    absl::MutexLock lock(&mu_);
    const absl::Time now = MonotonicNow();
    if (LandsInSlot(segment) && !LandsInPlace(segment, can_write)) {
      if (BeginInSlot(source, segment, iov, now)) return true;
    } else if (session_.BeginSegment(source, segment, now)) {
      Wake();
      if (ring_ != nullptr) {
        ring_->AppendSlot(segment, iov);
      } else {
        store_->AppendPieces(segment, iov);
      }
      return true;
    }
    asking = RequestsOf(source, now);  // it is answered, if for nothing
  }
  asking.Send();
  return false;
}

void Fill::SegmentLanded(SourceIndex source, SegmentIndex segment, SegmentChecksum sent,
                         SegmentChecksum computed) {
  Asking asking;
  {
    absl::MutexLock lock(&mu_);
    const absl::Time now = MonotonicNow();
    std::shared_ptr<StagingSlot> slot = LandsInSlot(segment) ? TakeSlot(source, segment) : nullptr;
    if (slot != nullptr && device_given_up_) {
      // It does not get to its place any more.
      extra_->Change(slot->size(), 0);
    } else if (slot != nullptr && session_.HandleLanded(source, segment, now)) {
      if (!DeviceOwes()) device_moved_at_ = now;
      landed_.push_back({source, segment, sent, computed, std::move(slot)});
      WatchDevice();
      staging_->Post(store_->device_names(),
                     [self = shared_from_this()] { self->PutNextInPlace(); });
    } else {
      if (slot != nullptr) extra_->Change(slot->size(), 0);
      Arrived(source, segment, sent, computed, now);
    }
    asking = RequestsOf(source, now);
    Wake();
  }
  asking.Send();
}

void Fill::Arrived(SourceIndex source, SegmentIndex segment, SegmentChecksum sent,
                   SegmentChecksum computed, absl::Time now) {
  using Verdict = PipelineReplicator::SegmentVerdict;
  const Verdict verdict = session_.HandleSegment(source, segment, sent, computed, now);
  // Under mu_, so that the store never serves what the session has already taken back. Who waits
  // at the store only posts to its own loop.
  ApplyToStore();
  const bool held = verdict == Verdict::kAccepted && session_.held().Contains(segment);
  if (held && ring_ != nullptr) {
    ring_->Arrived(segment);
  } else if (held) {
    store_->MarkHeld(segment, session_.ChecksumOf(segment));
  }
}

// ---- segments that do not all lie in host memory

bool Fill::LandsInPlace(SegmentIndex segment, const PullSink::CanWrite* can_write) const {
  if (can_write == nullptr) return false;
  std::vector<iovec> place;
  store_->AppendPieces(segment, &place);
  return (*can_write)(place);
}

bool Fill::BeginInSlot(SourceIndex source, SegmentIndex segment, std::vector<iovec>* iov,
                       absl::Time now) {
  const uint64_t bytes = store_->layout().SegmentLength(segment);
  std::shared_ptr<StagingSlot> slot = std::exchange(kept_slot_, nullptr);
  if (slot == nullptr) slot = staging_->TryTakeLandingSlot(store_->layout());
  if (slot == nullptr) {
    session_.HandleNoRoom(source, segment, now);
    AwaitSlot();
    return false;
  }
  if (!session_.BeginSegment(source, segment, now)) return false;
  Wake();
  iov->push_back({slot->bytes(bytes).data(), bytes});
  extra_->Change(0, slot->size());
  landing_[{source.value, segment.value}] = std::move(slot);
  return true;
}

// Others may have taken the slots that the fill had prepared, or had them given up for ones of
// another size.
void Fill::AwaitSlot() {
  if (std::exchange(awaits_slot_, true)) return;
  staging_->AwaitLandingSlot(
      {.store = store_,
       .wanted = weak_from_this(),
       .done = [weak = weak_from_this()](absl::StatusOr<std::shared_ptr<StagingSlot>> slot) {
         if (const auto self = weak.lock()) self->SlotCame(std::move(slot));
       }});
}

void Fill::SlotCame(absl::StatusOr<std::shared_ptr<StagingSlot>> slot) {
  absl::MutexLock lock(&mu_);
  awaits_slot_ = false;
  if (!slot.ok()) {
    session_.HandleBufferLost(slot.status());
  } else {
    if (!session_.stopping()) kept_slot_ = *std::move(slot);
    session_.HandleRoom();
  }
  Wake();
}

std::shared_ptr<StagingSlot> Fill::TakeSlot(SourceIndex source, SegmentIndex segment) {
  const auto found = landing_.find({source.value, segment.value});
  if (found == landing_.end()) return nullptr;
  std::shared_ptr<StagingSlot> slot = std::move(found->second);
  landing_.erase(found);
  return slot;
}

// Segments that were landing from a source that has ended do not arrive.
void Fill::ForgetLanding(SourceIndex source) {
  const auto begin = landing_.lower_bound({source.value, 0});
  const auto end = landing_.lower_bound({source.value + 1, 0});
  for (auto it = begin; it != end; ++it) extra_->Change(it->second->size(), 0);
  landing_.erase(begin, end);
}

// Bytes that are wrong by their own sum are not worth a copy.
absl::Status Fill::CopyIn(absl::Span<const Landed> landed) {
  if (stopping()) return absl::OkStatus();
  const bool checksummed = store_->layout().checksum() != ChecksumAlgorithm::kNone;
  std::vector<SegmentStore::Incoming> segments;
  for (const Landed& each : landed) {
    if (checksummed && each.sent != each.computed) continue;
    const uint64_t bytes = store_->layout().SegmentLength(each.segment);
    segments.push_back({each.segment, each.slot->bytes(bytes)});
  }
  return store_->CopyIn(segments);
}

std::vector<Fill::Landed> Fill::TakeLanded() {
  std::vector<Landed> taken;
  uint64_t bytes = 0;
  while (!landed_.empty()) {
    bytes += store_->layout().SegmentLength(landed_.front().segment);
    if (!taken.empty() && bytes > kDeviceBytesCopiedAtOnce) break;
    taken.push_back(std::move(landed_.front()));
    landed_.pop_front();
  }
  return taken;
}

void Fill::PutNextInPlace() {
  std::vector<Landed> landed;
  {
    absl::MutexLock lock(&mu_);
    landed = TakeLanded();
    if (landed.empty()) return;  // they have gone along with others, or were given up
    placing_ = landed.size();
    device_moved_at_ = MonotonicNow();
  }
  const absl::Status in_place = CopyIn(landed);
  for (const Landed& each : landed) extra_->Change(each.slot->size(), 0);
  absl::MutexLock lock(&mu_);
  placing_ = 0;
  if (device_given_up_) return;  // it has ended after all, when nobody waited any more
  device_moved_at_ = MonotonicNow();
  for (const Landed& each : landed) {
    if (!in_place.ok()) {
      session_.HandleLandedLost(in_place);
    } else if (session_.stopping()) {
      session_.HandleLandedDropped();
    } else {
      Arrived(each.source, each.segment, each.sent, each.computed, device_moved_at_);
    }
  }
  Wake();
}

// ---- a device that hangs

void Fill::WatchDevice() {
  if (std::exchange(watching_device_, true)) return;
  const absl::Time due = device_moved_at_ + device_time_;
  thread_->PostAt(due, [weak = weak_from_this(), due] {
    if (const auto self = weak.lock()) self->LookAtDevice(due);
  });
}

void Fill::LookAtDevice(absl::Time due) {
  {
    absl::MutexLock lock(&mu_);
    watching_device_ = false;
    if (device_given_up_ || !DeviceOwes()) return;
    const absl::Time now = MonotonicNow();
    // This process did not run, and so did not see what the device has done.
    if (now - due > kLateFillTick) device_moved_at_ = now;
    if (now - device_moved_at_ < device_time_) return WatchDevice();
    GiveUpDevice();
  }
  CarryOut();
}

// Stopping does not wait for what the device still has either. The slot of what it copies just now
// stays in use until it ends.
void Fill::GiveUpDevice() {
  device_given_up_ = true;
  const size_t given_up = landed_.size() + placing_;
  for (const Landed& landed : landed_) extra_->Change(landed.slot->size(), 0);
  landed_.clear();
  session_.HandleBufferLost(
      HungDevice(store_->device_names(), "copies into the buffer", device_time_));
  for (size_t i = 0; i < given_up; ++i) session_.HandleLandedDropped();
}

void Fill::Alive(SourceIndex source) {
  absl::MutexLock lock(&mu_);
  session_.HandleAlive(source, MonotonicNow());
}

void Fill::DeviceHangs(absl::Status why) {
  absl::MutexLock lock(&mu_);
  session_.HandleBufferLost(std::move(why));
  Wake();
}

void Fill::Closed(SourceIndex source, SourceFailure failure, std::string detail) {
  // There, because Do(OpenPull) may not have the pull yet.
  thread_->Post([self = shared_from_this(), source, failure, detail = std::move(detail)]() mutable {
    self->ClosedOnFillThread(source, failure, std::move(detail));
  });
}

void Fill::Consumed(SegmentIndex end) {
  absl::MutexLock lock(&mu_);
  session_.HandleConsumed(end);
  Wake();
}

// ---- th-fill

void Fill::ClosedOnFillThread(SourceIndex source, SourceFailure failure, std::string detail) {
  std::shared_ptr<Pull> dead;
  {
    absl::MutexLock lock(&mu_);
    dead = std::exchange(links_[source.value].pull, nullptr);
    ForgetLanding(source);
    session_.HandleClosed(source, failure, std::move(detail));
  }
  // It ends outside of the lock, and before the owner may hear that the fill has stopped: the
  // transport may go from then on.
  dead.reset();
  CarryOut();
}

void Fill::TickOnFillThread() {
  {
    absl::MutexLock lock(&mu_);
    ticking_ = false;
    session_.HandleTick(MonotonicNow());
  }
  CarryOut();
}

void Fill::CarryOut() {
  while (std::optional<FillOutput> output = TakeOutput()) {
    std::visit([this](auto& each) { Do(std::move(each)); }, *output);
  }
}

std::optional<FillOutput> Fill::TakeOutput() {
  absl::MutexLock lock(&mu_);
  std::optional<FillOutput> output = session_.PollOutput(MonotonicNow());
  if (session_.stopping()) kept_slot_ = nullptr;
  if (output.has_value()) return output;
  woken_ = false;
  const absl::Time due = session_.NextDeadline();
  if (due == absl::InfiniteFuture() || std::exchange(ticking_, true)) return output;
  thread_->PostAt(due, [self = shared_from_this()] { self->TickOnFillThread(); });
  return output;
}

std::shared_ptr<Pull> Fill::PullOf(SourceIndex source) const {
  absl::MutexLock lock(&mu_);
  return links_[source.value].pull;
}

void Fill::Do(OpenPull open) {
  Sink* sink = nullptr;
  PullTarget target{.endpoint = open.endpoint,
                    .layout = store_->shared_layout(),
                    .into = into_,
                    .begin_device_write =
                        [store = store_](std::string device) {
                          return SegmentStore::BeginDeviceWrite(store, std::move(device));
                        },
                    .extra_bytes = extra_,
                    .cut_bytes = cut_bytes_,
                    .packing_overhead_bytes = packing_overhead_bytes_};
  {
    absl::MutexLock lock(&mu_);
    const AssignedSource& assigned = session_.assigned(open.source);
    target.source = assigned.buffer;
    target.generation = assigned.generation;
    target.capability = assigned.capability;
    target.far = assigned.distance == Distance::kOtherSite;
    if (links_.size() <= open.source.value) links_.resize(open.source.value + 1);
    Link& link = links_[open.source.value];
    if (link.sink == nullptr) link.sink = std::make_unique<Sink>(this, open.source);
    sink = link.sink.get();
  }
  Transport* const transport = FindTransport(transports_, open.endpoint.transport);
  std::shared_ptr<Pull> pull = transport->Open(std::move(target), sink);
  Asking asking;
  {
    absl::MutexLock lock(&mu_);
    links_[open.source.value].pull = std::move(pull);
    asking = RequestsOf(open.source, MonotonicNow());  // it may be admitted already
  }
  asking.Send();
}

void Fill::Do(AskPull ask) {
  if (const auto pull = PullOf(ask.source)) pull->Ask(ask.range);
}

void Fill::Do(AskPullChecksums ask) {
  if (const auto pull = PullOf(ask.source)) pull->AskChecksums();
}

void Fill::Do(FinishPull finish) {
  if (const auto pull = PullOf(finish.source)) pull->Finish();
}

void Fill::Do(ClosePull close) {
  if (const auto pull = PullOf(close.source)) pull->Close();
}

void Fill::Do(FillCompleted completed) {
  if (ring_ == nullptr) store_->MarkComplete();
  observer_->OnComplete(completed.root);
}

void Fill::Do(FillSourceFailed lost) { observer_->OnSourceFailed(std::move(lost)); }

void Fill::Do(FillSourceSuspected suspected) {
  observer_->OnSourceSuspected(suspected.assignment, suspected.source, std::move(suspected.detail));
}

}  // namespace th
