#include "th/pipeline_replicator/pipeline_replicator.h"

#include <algorithm>
#include <utility>

#include "th/weights/request_queue.h"
#include "tools/mutation/mutation.h"

namespace th {

SourceReach ReachOf(Distance distance) {
  return distance == Distance::kOtherSite ? SourceReach::kOtherSite : SourceReach::kNear;
}

struct PipelineReplicator::Source {
  SourceIndex index;
  bool far = false;  // of another site
  uint32_t requests_answered = 0;
  absl::Time added_at;
  absl::Time last_heard;  // or when the first of its requests went out after a rest
  absl::Time last_asked;
  absl::Time waits_since;  // while there are requests
  RequestQueue requests;
  SegmentSet corrupted;
  absl::Time withheld_until = absl::InfinitePast();  // what is corrupted is not asked again before
  uint64_t bytes = 0;
  absl::Time let_go_until = absl::InfiniteFuture();  // finite: it was let go
  bool retired = false;
  bool too_corrupt = false;
  bool suspicion_told = false;
  bool told = false;

  bool let_go() const { return let_go_until != absl::InfiniteFuture(); }
  // False when `segment` was not asked of it.
  bool Answer(SegmentIndex segment) {
    const size_t before = requests.size();
    if (!requests.Take(segment)) return false;
    if (requests.size() < before) ++requests_answered;
    return true;
  }
  // Seconds that `amount` bytes take at the rate seen so far.
  double SecondsFor(uint64_t amount, absl::Time now) const {
    if (bytes == 0) return absl::ToDoubleSeconds(absl::InfiniteDuration());
    return absl::ToDoubleSeconds(now - added_at) * static_cast<double>(amount) /
           static_cast<double>(bytes);
  }
};

PipelineReplicator::PipelineReplicator(Spec spec, ReplicatorLimits limits)
    : spec_(std::move(spec)),
      limits_(limits),
      unwanted_(spec_.wanted.has_value() ? spec_.wanted->Complement(spec_.segment_count)
                                         : SegmentSet()),
      held_(spec_.already_held),
      sums_(spec_.held_sums) {
  sums_.resize(spec_.segment_count);
  for (const SegmentRange& range : held_.ranges()) {
    for (SegmentIndex i = range.begin; i < range.end; i = i.Next()) bytes_held_ += LengthOf(i);
  }
  resumed_ = !held_.empty();
  SegmentSet settled = unwanted_;
  settled.AddAll(held_);
  missing_ = spec_.segment_count - std::min(spec_.segment_count, settled.count());
  MoveWindow(SegmentIndex(0));
}

PipelineReplicator::~PipelineReplicator() = default;

// ---- sources

void PipelineReplicator::AddSource(SourceIndex source, absl::Time now, SourceReach reach) {
  auto added = std::make_unique<Source>();
  added->index = source;
  added->far = reach == SourceReach::kOtherSite;
  added->added_at = added->last_heard = added->last_asked = now;
  sources_.insert_or_assign(source, std::move(added));
}

void PipelineReplicator::LetGoSource(SourceIndex source, absl::Time now) {
  Source* leaving = Find(source);
  if (leaving == nullptr || leaving->retired || leaving->let_go()) return;
  leaving->let_go_until = now + limits_.soft_switch;
  // What is on its way would be asked of another source, and arrive twice.
  TH_MUTATE(kGiveBackWhatIsOnItsWay, static_cast<void>(0), leaving->requests.Clear());
}

void PipelineReplicator::RetireSource(SourceIndex source) {
  Source* retired = Find(source);
  if (retired == nullptr) return;
  retired->retired = true;
  TH_MUTATE(kKeepRequestsOfLostSource, retired->requests.Clear(), static_cast<void>(0));
}

void PipelineReplicator::RemoveSource(SourceIndex source) {
  std::erase_if(writing_, [&](const auto& entry) { return entry.second == source; });
  sources_.erase(source);
}

PipelineReplicator::Source* PipelineReplicator::Find(SourceIndex source) {
  auto it = sources_.find(source);
  return it == sources_.end() ? nullptr : it->second.get();
}

const PipelineReplicator::Source* PipelineReplicator::Find(SourceIndex source) const {
  auto it = sources_.find(source);
  return it == sources_.end() ? nullptr : it->second.get();
}

// ---- asking

uint64_t PipelineReplicator::LengthOf(SegmentIndex segment) const {
  const uint64_t begin = segment.value * spec_.segment_bytes;
  return std::min(spec_.segment_bytes, spec_.total_bytes - std::min(begin, spec_.total_bytes));
}

uint64_t PipelineReplicator::SegmentsPerRequest() const {
  if (spec_.segment_bytes == 0) return 1;
  const uint64_t wanted = std::max<uint64_t>(1, limits_.request_bytes / spec_.segment_bytes);
  return std::min(wanted, limits_.request_segments);
}

uint32_t PipelineReplicator::RequestsInFlight(const Source& source) const {
  if (source.far) return limits_.far_requests_in_flight;
  return std::min(limits_.requests_in_flight, limits_.requests_at_first + source.requests_answered);
}

std::optional<PipelineReplicator::Request> PipelineReplicator::PollRequest(SourceIndex source,
                                                                           absl::Time now) {
  Source* asked = Find(source);
  if (asked == nullptr || asked->retired || asked->let_go()) return std::nullopt;
  if (asked->too_corrupt || failed()) return std::nullopt;
  if (asked->requests.size() >= RequestsInFlight(*asked)) return std::nullopt;
  SegmentRange range = held_.FirstMissing(SegmentIndex(0), window_end_.value, SegmentsPerRequest(),
                                          SkipFor(*asked, now));
  if (range.empty()) range = TailRange(*asked, now);
  if (range.empty()) return std::nullopt;
  // A source at rest was not silent: its time starts with this request.
  if (asked->requests.empty()) asked->last_heard = asked->waits_since = now;
  asked->last_asked = now;
  asked->requests.Push(range);
  return Request{range};
}

void PipelineReplicator::HandleHandedOn(SegmentIndex segment) { MoveWindow(segment); }

// The window reaches from `begin` over as many wanted segments as are kept at a time.
void PipelineReplicator::MoveWindow(SegmentIndex begin) {
  window_end_ = SegmentIndex(spec_.segment_count);
  if (spec_.window_segments == 0) return;
  uint64_t room = spec_.window_segments;
  while (begin.value < spec_.segment_count) {
    const SegmentRange run = unwanted_.FirstMissing(begin, spec_.segment_count, room, SegmentSet());
    if (run.empty()) return;
    room -= run.count();
    begin = run.end;
    if (room > 0) continue;
    window_end_ = run.end;
    return;
  }
}

void PipelineReplicator::AllowAgain(SourceIndex source) {
  if (Source* allowed = Find(source)) allowed->withheld_until = absl::InfinitePast();
}

SegmentSet PipelineReplicator::SkipFor(const Source& source, absl::Time now) const {
  SegmentSet skip = unwanted_;
  for (const auto& [index, other] : sources_) {
    for (const SegmentRange& range : other->requests.Unanswered()) skip.Add(range);
  }
  for (const auto& [segment, writer] : writing_) skip.Add(segment);
  const bool waits = TH_MUTATE(kAskTheCorruptSourceAgainAtOnce, now < source.withheld_until, false);
  for (const SegmentRange& range : source.corrupted.ranges()) {
    for (SegmentIndex i = range.begin; i < range.end; i = i.Next()) {
      if (waits || CanComeFromAnother(source, i)) skip.Add(i);
    }
  }
  return skip;
}

bool PipelineReplicator::CanComeFromAnother(const Source& source, SegmentIndex segment) const {
  return std::any_of(sources_.begin(), sources_.end(), [&](const auto& entry) {
    const Source& other = *entry.second;
    return &other != &source && !other.retired && !other.let_go() && !other.too_corrupt &&
           !other.corrupted.Contains(segment);
  });
}

// What an idle source takes over from the one that would take longest to the end.
SegmentRange PipelineReplicator::TailRange(const Source& helper, absl::Time now) const {
  SegmentRange range;
  if (!helper.requests.empty() || helper.bytes == 0) return range;
  double longest = 0;
  for (const auto& [index, slow] : sources_) {
    if (slow.get() == &helper || slow->requests.empty() || slow->let_go()) continue;
    if (!TakingOverHelps(helper, *slow, now)) continue;
    const SegmentRange candidate = RangeToTakeOver(*slow);
    const double seconds = slow->SecondsFor(slow->requests.segments(), now);
    if (candidate.empty() || seconds <= longest) continue;
    longest = seconds;
    range = candidate;
  }
  return range;
}

// The end of what it was asked last: it comes to that last, unless it is a relay that holds it.
SegmentRange PipelineReplicator::RangeToTakeOver(const Source& slow) const {
  SegmentSet open;
  for (const SegmentRange& range : slow.requests.Unanswered()) open.Add(range);
  for (const auto& [index, other] : sources_) {
    if (other.get() == &slow) continue;
    for (const SegmentRange& range : other->requests.Unanswered()) open.Remove(range);
  }
  for (const SegmentRange& range : held_.ranges()) open.Remove(range);
  for (const auto& [segment, writer] : writing_) open.Remove({segment, segment.Next()});
  if (open.empty()) return {};
  SegmentRange last = open.ranges().back();
  if (last.count() > SegmentsPerRequest()) {
    last.begin = SegmentIndex(last.end.value - SegmentsPerRequest());
  }
  return last;
}

bool PipelineReplicator::TakingOverHelps(const Source& helper, const Source& slow,
                                         absl::Time now) const {
  if (now - slow.last_asked < limits_.tail_patience) return false;
  const double slow_seconds = slow.SecondsFor(slow.requests.segments() * spec_.segment_bytes, now);
  const double helper_seconds = helper.SecondsFor(limits_.request_bytes, now);
  return slow_seconds > 2 * helper_seconds;
}

// ---- receiving

bool PipelineReplicator::WantsSegment(SourceIndex source, SegmentIndex segment) const {
  const Source* sender = Find(source);
  if (sender == nullptr || sender->retired || !sender->requests.Contains(segment)) return false;
  const auto writer = writing_.find(segment);
  if (writer != writing_.end() && writer->second != source) return false;
  return TH_MUTATE(kWriteHeldSegmentAgain, !held_.Contains(segment), true);
}

bool PipelineReplicator::BeginSegment(SourceIndex source, SegmentIndex segment) {
  if (!WantsSegment(source, segment)) return false;
  writing_.insert_or_assign(segment, source);
  return true;
}

bool PipelineReplicator::HandleDiscarded(SourceIndex source, SegmentIndex segment, absl::Time now) {
  Source* sender = Find(source);
  if (sender == nullptr) return false;
  sender->last_heard = now;
  // What was asked of a retired source still arrives until it is closed.
  return Answer(*sender, segment, now) || sender->retired;
}

bool PipelineReplicator::Answer(Source& source, SegmentIndex segment, absl::Time now) {
  if (!source.Answer(segment)) return false;
  if (source.requests.empty()) accounts_[source.index].waited += now - source.waits_since;
  return true;
}

PipelineReplicator::SegmentVerdict PipelineReplicator::HandleSegment(SourceIndex source,
                                                                     SegmentIndex segment,
                                                                     SegmentSum sent,
                                                                     SegmentSum computed,
                                                                     absl::Time now) {
  Source* sender = Find(source);
  if (sender == nullptr || segment.value >= spec_.segment_count) return SegmentVerdict::kUnexpected;
  const auto writer = writing_.find(segment);
  const bool wrote = writer != writing_.end() && writer->second == source;
  const bool answered = Answer(*sender, segment, now);
  if (!answered && !wrote) return SegmentVerdict::kUnexpected;
  sender->last_heard = now;
  if (held_.Contains(segment)) return SegmentVerdict::kDuplicate;
  if (wrote) writing_.erase(writer);
  if (TH_MUTATE(kAcceptAnySum, spec_.checksums && sent != computed, false)) {
    CountCorrupt(*sender, segment, now);
    return SegmentVerdict::kCorrupt;
  }
  Accept(*sender, segment, sent);
  return SegmentVerdict::kAccepted;
}

void PipelineReplicator::Accept(Source& source, SegmentIndex segment, SegmentSum sum) {
  const uint64_t length = LengthOf(segment);
  held_.Add(segment);
  --missing_;
  sums_[segment.value] = sum;
  bytes_held_ += length;
  source.bytes += length;
  accounts_[source.index].bytes += length;
  contributors_.insert(source.index);
  CheckRoot();
}

void PipelineReplicator::CountCorrupt(Source& source, SegmentIndex segment, absl::Time now) {
  ++corrupt_segments_;
  source.corrupted.Add(segment);
  source.withheld_until = now + limits_.another_source_wait;
  const uint32_t count = ++accounts_[source.index].corrupt_segments;
  if (count >= limits_.corrupt_segments_per_source) source.too_corrupt = true;
}

void PipelineReplicator::HandleAlive(SourceIndex source, absl::Time now) {
  Source* sender = Find(source);
  if (sender == nullptr) return;
  TH_MUTATE(kIgnoreKeepAlive, static_cast<void>(sender->last_heard = now), static_cast<void>(0));
}

void PipelineReplicator::HandlePause(absl::Duration pause) {
  for (auto& [index, source] : sources_) {
    source->last_heard += pause;
    source->waits_since += pause;
  }
}

// ---- the root

void PipelineReplicator::HandleRoot(const Digest& root) {
  root_ = root;
  agreed_ = false;
  CheckRoot();
}

void PipelineReplicator::CheckRoot() {
  if (receives_a_part()) return;
  if (!spec_.checksums || !root_.has_value() || !all_received() || failed()) return;
  agreed_ = TH_MUTATE(kTrustTheList, RootOfSums(sums_) == *root_, true);
  if (!agreed_) StartOver();
}

// Nobody knows which sum is wrong, so nothing of the list counts. When it all came from one source,
// that is the culprit.
void PipelineReplicator::StartOver() {
  ++root_mismatches_;
  if (contributors_.size() == 1 && !resumed_) {
    culprit_ = *contributors_.begin();
    RetireSource(*culprit_);
  }
  held_.Clear();
  bytes_held_ = 0;
  missing_ = spec_.segment_count;
  contributors_.clear();
  resumed_ = false;
}

// ---- losses

std::vector<PipelineReplicator::LostSource> PipelineReplicator::PollLost(absl::Time now) {
  std::vector<LostSource> lost;
  if (culprit_.has_value()) {
    if (Source* source = Find(*culprit_)) source->told = true;
    lost.push_back({.source = *std::exchange(culprit_, std::nullopt), .corrupt = true});
  }
  for (auto& [index, source] : sources_) {
    if (source->told || source->retired) continue;
    const absl::Duration silent_for = now - source->last_heard;
    const bool silent = !source->requests.empty() && silent_for >= limits_.silence;
    const bool done = source->let_go() && (source->requests.empty() || now >= source->let_go_until);
    if (!silent && !done && !source->too_corrupt) continue;
    source->told = true;
    lost.push_back({.source = index,
                    .corrupt = source->too_corrupt,
                    .silent_for = source->too_corrupt ? absl::ZeroDuration() : silent_for,
                    .let_go = source->let_go()});
    RetireSource(index);
  }
  return lost;
}

std::vector<PipelineReplicator::Suspicion> PipelineReplicator::PollSuspected() {
  std::vector<Suspicion> suspected;
  for (auto& [index, source] : sources_) {
    if (source->corrupted.empty() || source->retired || source->too_corrupt) continue;
    if (std::exchange(source->suspicion_told, true)) continue;
    suspected.push_back({index, source->corrupted.ranges().front().begin});
  }
  return suspected;
}

absl::Time PipelineReplicator::NextDeadline() const {
  if (culprit_.has_value()) return absl::InfinitePast();
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [index, source] : sources_) {
    if (source->told || source->retired) continue;
    if (source->too_corrupt) return absl::InfinitePast();
    if (source->let_go() && source->requests.empty()) return absl::InfinitePast();
    next = std::min(next, source->let_go_until);
    if (!source->requests.empty()) next = std::min(next, source->last_heard + limits_.silence);
  }
  return next;
}

// ---- state

bool PipelineReplicator::all_received() const { return missing_ == 0; }

bool PipelineReplicator::complete() const {
  const bool agrees = !spec_.checksums || receives_a_part() || agreed_;
  return all_received() && TH_MUTATE(kCompleteWithoutRoot, agrees, true);
}

bool PipelineReplicator::failed() const {
  const uint32_t allowed = spec_.window_segments > 0 ? 0 : limits_.root_mismatches;
  return root_mismatches_ > allowed;
}

uint64_t PipelineReplicator::bytes_from(SourceIndex source) const {
  const auto it = accounts_.find(source);
  return it == accounts_.end() ? 0 : it->second.bytes;
}

absl::Duration PipelineReplicator::waited_for(SourceIndex source, absl::Time now) const {
  const auto account = accounts_.find(source);
  absl::Duration waited =
      account == accounts_.end() ? absl::ZeroDuration() : account->second.waited;
  const Source* waiting = Find(source);
  if (waiting != nullptr && !waiting->requests.empty()) {
    waited += std::max(now - waiting->waits_since, absl::ZeroDuration());
  }
  return waited;
}

uint32_t PipelineReplicator::corrupt_from(SourceIndex source) const {
  const auto it = accounts_.find(source);
  return it == accounts_.end() ? 0 : it->second.corrupt_segments;
}

}  // namespace th
