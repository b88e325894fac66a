#include "th/transfer/mapping_fill.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "th/pipeline_replicator/fill_session.h"
#include "th/transfer/monotonic_clock.h"

namespace th {

void MappingTarget::Put(MappedContent content) {
  absl::MutexLock lock(&mu_);
  content_ = std::move(content);
}

MappedContent MappingTarget::Take() {
  absl::MutexLock lock(&mu_);
  return std::exchange(content_, {});
}

// Hears one source, on data threads.
class MappingFill::Sink final : public PullSink {
 public:
  Sink(MappingFill* fill, size_t attempt) : fill_(fill), attempt_(attempt) {}
  void OnAdmitted(BufferGeneration, bool lists_checksums) override {
    fill_->Admitted(attempt_, lists_checksums);
  }
  void OnChecksums(SegmentIndex first, absl::Span<const SegmentChecksum> checksums) override {
    fill_->ChecksumsCame(attempt_, first, checksums);
  }
  void OnMapped(absl::StatusOr<std::shared_ptr<const MappedShard>> shard) override {
    fill_->Mapped(attempt_, std::move(shard));
  }
  bool OnSegmentBegins(SegmentIndex, std::vector<iovec>*) override { return false; }
  void OnSegment(SegmentIndex, SegmentChecksum, SegmentChecksum) override {}
  void OnAlive() override { fill_->Alive(attempt_); }
  void OnClosed(SourceFailure failure, std::string detail) override {
    fill_->Closed(attempt_, failure, std::move(detail));
  }

 private:
  MappingFill* const fill_;  // outlives every call, see MappingFill::attempts_
  const size_t attempt_;
};

std::shared_ptr<MappingFill> MappingFill::Start(Spec spec, std::vector<Transport*> transports,
                                                FillObserver* observer) {
  std::shared_ptr<MappingFill> fill(
      new MappingFill(std::move(spec), std::move(transports), observer));
  absl::MutexLock lock(&fill->mu_);
  fill->root_ = fill->spec_.root;
  return fill;
}

MappingFill::MappingFill(Spec spec, std::vector<Transport*> transports, FillObserver* observer)
    : spec_(std::move(spec)), transports_(std::move(transports)), observer_(observer) {}

MappingFill::~MappingFill() = default;

// ---- the owner

void MappingFill::SetSources(AssignmentId assignment, std::vector<AssignedSource> sources) {
  {
    absl::MutexLock lock(&mu_);
    assignment_ = assignment;
    sources_ = std::move(sources);
    Attempt* const open = Open();
    if (open != nullptr) {
      const auto same =
          std::find_if(sources_.begin(), sources_.end(), [&](const AssignedSource& source) {
            return source.buffer == open->source.buffer &&
                   source.generation == open->source.generation;
          });
      open->assignment = assignment;
      if (same != sources_.end()) sources_.erase(same);
    }
  }
  Post();
}

void MappingFill::SetRoot(Digest root) {
  {
    absl::MutexLock lock(&mu_);
    root_ = root;
  }
  Post();
}

void MappingFill::Stop() {
  {
    absl::MutexLock lock(&mu_);
    if (life_ != Life::kComplete) life_ = Life::kStopped;
  }
  Post();
}

FillStatus MappingFill::status() const {
  absl::MutexLock lock(&mu_);
  FillStatus status;
  status.peak_extra_bytes = extra_->peak();
  for (const Attempt& attempt : attempts_) {
    FillSourceReport report{.source = attempt.source.buffer,
                            .name = attempt.source.name,
                            .peer = attempt.pull == nullptr ? "" : attempt.pull->peer(),
                            .transport = attempt.endpoint.transport,
                            .distance = attempt.source.distance};
    report.failed = attempt.failure.has_value();
    if (report.failed) report.failure = attempt.failure->second;
    status.sources.push_back(std::move(report));
  }
  return status;
}

bool MappingFill::stopping() const {
  absl::MutexLock lock(&mu_);
  return life_ == Life::kComplete || life_ == Life::kStopped;
}

bool MappingFill::completed() const {
  absl::MutexLock lock(&mu_);
  return life_ == Life::kComplete;
}

// ---- data threads

void MappingFill::Admitted(size_t attempt, bool lists_checksums) {
  {
    absl::MutexLock lock(&mu_);
    Attempt& admitted = attempts_[attempt];
    admitted.admitted = true;
    admitted.heard = MonotonicNow();
    if (!lists_checksums && TakesChecksums()) {
      admitted.failure = Failure(SourceFailure::kRefused, "it does not list its sums");
    }
  }
  AskIfAdmitted(attempt);
}

// The admission and the pull's own pointer come in either order.
void MappingFill::AskIfAdmitted(size_t attempt) {
  std::shared_ptr<Pull> pull;
  {
    absl::MutexLock lock(&mu_);
    Attempt& asked = attempts_[attempt];
    if (asked.pull == nullptr || !asked.admitted || asked.failure.has_value()) return Post();
    if (std::exchange(asked.asked, true)) return;
    pull = asked.pull;
  }
  pull->AskMapping();
  if (TakesChecksums()) pull->AskChecksums();
}

void MappingFill::ChecksumsCame(size_t attempt, SegmentIndex first,
                                absl::Span<const SegmentChecksum> checksums) {
  bool all = false;
  {
    absl::MutexLock lock(&mu_);
    Attempt& listing = attempts_[attempt];
    listing.heard = MonotonicNow();
    const uint64_t segments = spec_.layout->segment_count();
    if (first.value != listing.checksums.size() || checksums.size() > segments - first.value) {
      listing.failure = Failure(SourceFailure::kCorrupt, "its list of sums has gaps");
    } else {
      listing.checksums.insert(listing.checksums.end(), checksums.begin(), checksums.end());
    }
    all = listing.failure.has_value() || listing.checksums.size() == segments;
  }
  if (all) Post();
}

void MappingFill::Mapped(size_t attempt, absl::StatusOr<std::shared_ptr<const MappedShard>> shard) {
  const bool covers = shard.ok() && CoversTheShard(**shard);
  {
    absl::MutexLock lock(&mu_);
    Attempt& mapped = attempts_[attempt];
    mapped.heard = MonotonicNow();
    if (covers) {
      mapped.shard = *std::move(shard);
    } else if (shard.ok()) {
      mapped.failure = Failure(SourceFailure::kCorrupt, "what it lets be mapped is not all of it");
    } else {
      mapped.failure = Failure(SourceFailure::kRefused, std::string(shard.status().message()));
    }
  }
  Post();
}

bool MappingFill::CoversTheShard(const MappedShard& shard) const {
  const std::vector<ShardLayout::Storage>& storages = spec_.layout->storages();
  return std::all_of(storages.begin(), storages.end(), [&](const ShardLayout::Storage& storage) {
    return storage.bytes == 0 || shard.At(storage.stream_offset, storage.bytes) != nullptr;
  });
}

void MappingFill::Alive(size_t attempt) {
  absl::MutexLock lock(&mu_);
  attempts_[attempt].heard = MonotonicNow();
}

void MappingFill::Closed(size_t attempt, SourceFailure failure, std::string detail) {
  // There, because TryNextSource may not have the pull yet.
  thread_->Post([self = shared_from_this(), attempt, failure, detail = std::move(detail)] {
    std::shared_ptr<Pull> dead;
    {
      absl::MutexLock lock(&self->mu_);
      Attempt& ended = self->attempts_[attempt];
      dead = std::exchange(ended.pull, nullptr);
      ended.closed = true;
      ended.shard.reset();  // unless it is the target's already
      if (!ended.closing) ended.failure = Failure(failure, detail);
    }
    // Outside of the lock, and before the owner may hear that the fill has stopped.
    dead.reset();
    self->CarryOn();
  });
}

void MappingFill::Post() {
  thread_->Post([self = shared_from_this()] { self->CarryOn(); });
}

// ---- th-fill

MappingFill::Attempt* MappingFill::Open() {
  if (attempts_.empty() || attempts_.back().closed) return nullptr;
  return &attempts_.back();
}

bool MappingFill::Owes(const Attempt& attempt) const {
  if (!attempt.asked || attempt.failure.has_value()) return false;
  return attempt.shard == nullptr ||
         (TakesChecksums() && attempt.checksums.size() < spec_.layout->segment_count());
}

bool MappingFill::HasAll(Attempt& attempt) {
  if (attempt.failure.has_value() || !attempt.asked || Owes(attempt)) return false;
  if (!TakesChecksums()) return true;
  if (!root_.has_value()) return false;  // the version is not sealed yet
  if (RootOfChecksums(attempt.checksums) == *root_) return true;
  attempt.failure =
      Failure(SourceFailure::kCorrupt, "its list of sums is not that of the version's root");
  return false;
}

void MappingFill::CarryOn() {
  while (Finish() || CloseWhatIsOver() || TryNextSource()) continue;
  GiveUpInTime();
}

bool MappingFill::Finish() {
  Digest root;
  {
    absl::MutexLock lock(&mu_);
    Attempt* const open = Open();
    if (life_ == Life::kRunning && open != nullptr && !open->closing && HasAll(*open)) {
      life_ = Life::kComplete;
      spec_.target->Put({.shard = std::move(open->shard),
                         .checksums = open->checksums,
                         .source = open->source.name});
    }
    if (life_ != Life::kComplete || std::exchange(reported_complete_, true)) return false;
    if (TakesChecksums()) root = *root_;
  }
  observer_->OnComplete(root);
  return true;
}

// Closes the attempt that has ended well or not, and reports what is closed.
bool MappingFill::CloseWhatIsOver() {
  std::shared_ptr<Pull> closing;
  Attempt* lost = nullptr;
  bool stopped = false;
  {
    absl::MutexLock lock(&mu_);
    Attempt* const open = Open();
    if (open != nullptr) {
      const bool over = life_ != Life::kRunning || open->failure.has_value();
      if (!over || open->closing || open->pull == nullptr) return false;
      open->closing = true;
      open->shard.reset();  // of a fill that ended otherwise
      closing = open->pull;
    } else if (!attempts_.empty() && life_ == Life::kRunning &&
               attempts_.back().failure.has_value() &&
               !std::exchange(attempts_.back().reported, true)) {
      lost = &attempts_.back();
    } else if ((life_ == Life::kComplete || life_ == Life::kStopped) &&
               !std::exchange(reported_stopped_, true)) {
      stopped = true;
    } else {
      return false;
    }
  }
  if (closing != nullptr) closing->Close();
  // Nobody but this thread changes an attempt that is closed.
  if (lost != nullptr) ReportLost(*lost, *lost->failure);
  if (stopped) observer_->OnStopped();
  return !stopped;
}

void MappingFill::ReportLost(const Attempt& attempt, const Failure& failure) {
  {
    absl::MutexLock lock(&mu_);
    refusals_[attempt.source.name.ToString()] = failure.second;
    if (give_up_at_ == absl::InfiniteFuture()) {
      give_up_at_ = MonotonicNow() + spec_.other_source_wait;
    }
  }
  observer_->OnSourceFailed({.assignment = attempt.assignment,
                             .source = attempt.source.buffer,
                             .failure = failure.first,
                             .detail = failure.second,
                             .endpoint = attempt.endpoint});
}

absl::StatusOr<Endpoint> MappingFill::MappableEndpoint(const AssignedSource& source) const {
  const bool maps = std::any_of(transports_.begin(), transports_.end(),
                                [](const Transport* transport) { return transport->maps(); });
  std::string why = absl::StrCat(maps ? "it" : "this reader",
                                 " has no transport over which memory can be used in place");
  for (const Endpoint& endpoint : source.endpoints) {
    const Transport* const transport = FindTransport(transports_, endpoint.transport);
    if (transport == nullptr) {
      const auto absent = spec_.absent_transports.find(endpoint.transport);
      if (absent != spec_.absent_transports.end()) {
        why = absl::StrCat(endpoint.transport, ": ", absent->second.message());
      }
      continue;
    }
    if (!transport->maps()) continue;
    const absl::Status reach = transport->Reach(endpoint);
    if (reach.ok()) return endpoint;
    why = absl::StrCat(endpoint.transport, ": ", reach.message());
  }
  return absl::FailedPreconditionError(why);
}

bool MappingFill::TryNextSource() {
  AssignedSource source;
  size_t number = 0;
  Sink* sink = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (life_ != Life::kRunning || sources_.empty() || Open() != nullptr) return false;
    source = std::move(sources_.front());
    sources_.erase(sources_.begin());
    number = attempts_.size();
    attempts_.push_back({.assignment = assignment_, .source = source, .endpoint = {}});
    attempts_.back().sink = std::make_unique<Sink>(this, number);
    sink = attempts_.back().sink.get();
  }
  const absl::StatusOr<Endpoint> endpoint = MappableEndpoint(source);
  if (!endpoint.ok()) {
    absl::MutexLock lock(&mu_);
    attempts_.back().closed = true;
    attempts_.back().failure =
        Failure(SourceFailure::kRefused, std::string(endpoint.status().message()));
    return true;
  }
  Transport* const transport = FindTransport(transports_, endpoint->transport);
  std::shared_ptr<Pull> pull = transport->Open({.endpoint = *endpoint,
                                                .source = source.buffer,
                                                .generation = source.generation,
                                                .capability = source.capability,
                                                .layout = spec_.layout,
                                                .to_map = true,
                                                .extra_bytes = extra_},
                                               sink);
  {
    absl::MutexLock lock(&mu_);
    attempts_.back().endpoint = *endpoint;
    attempts_.back().pull = std::move(pull);
    give_up_at_ = absl::InfiniteFuture();
  }
  AskIfAdmitted(number);
  Tick();
  return true;
}

void MappingFill::GiveUpInTime() {
  std::string why;
  {
    absl::MutexLock lock(&mu_);
    if (life_ != Life::kRunning || Open() != nullptr || !sources_.empty()) return;
    if (give_up_at_ == absl::InfiniteFuture()) return;
    const absl::Time now = MonotonicNow();
    // As in Tick: while this process did not run it has not waited for anybody.
    if (now - give_up_at_ > kLateFillTick) give_up_at_ = now + spec_.other_source_wait;
    if (now < give_up_at_) return ScheduleTick(give_up_at_);
    life_ = Life::kFailed;
    why = absl::StrCat("no holder of the version can be attached: ",
                       absl::StrJoin(refusals_, "; ", absl::PairFormatter(": ")));
  }
  observer_->OnFailed(absl::FailedPreconditionError(why));
}

// Looks after a source that owes an answer.
void MappingFill::Tick() {
  {
    absl::MutexLock lock(&mu_);
    const absl::Time now = MonotonicNow();
    Attempt* const open = Open();
    if (life_ != Life::kRunning || open == nullptr || open->closing) return;
    // A tick that comes late means that this process did not run: the source is not blamed for it.
    const bool late = tick_due_ != absl::Time() && now - tick_due_ > kLateFillTick;
    if (late) open->heard = now;
    if (Owes(*open) && now - open->heard >= spec_.silence) {
      open->failure =
          Failure(SourceFailure::kStalled,
                  absl::StrCat("it was silent for ", absl::FormatDuration(spec_.silence)));
    }
    ScheduleTick(now + kFillTick);
  }
}

// The earliest that is wanted; what else is due later is scheduled anew by that one.
void MappingFill::ScheduleTick(absl::Time due) {
  if (ticking_ && tick_due_ <= due) return;
  ticking_ = true;
  tick_due_ = due;
  thread_->PostAt(due, [self = shared_from_this(), tick = ++last_tick_] {
    {
      absl::MutexLock lock(&self->mu_);
      if (tick != self->last_tick_) return;  // an earlier one has taken its place
      self->ticking_ = false;
    }
    self->Tick();  // another source may be under way by now
    self->CarryOn();
  });
}

}  // namespace th
