#include "th/pipeline_replicator/pipeline_replicator.h"

#include <algorithm>
#include <utility>

#include "th/pipeline_replicator/request_queue.h"
#include "tools/mutation/mutation.h"

namespace th {

struct PipelineReplicator::Source {
  SourceIndex index;
  SourceReach reach = SourceReach::kNear;
  uint32_t requests_answered = 0;
  absl::Time added_at;
  absl::Time last_heard;  // or when the first of its requests went out after a rest
  absl::Time last_asked;
  absl::Time waits_since;  // while there are requests
  RequestQueue requests;
  SegmentSet writing;  // each by one source alone
  bool lists_checksums = false;
  bool owes_list = false;
  SegmentSet corrupted;
  absl::Time withheld_until = absl::InfinitePast();  // what is corrupted is not asked again before
  uint64_t bytes = 0;
  absl::Time detached_until = absl::InfiniteFuture();  // finite: it was let go
  bool retired = false;
  bool too_corrupt = false;
  bool suspicion_reported = false;
  bool reported = false;

  bool detached() const { return detached_until != absl::InfiniteFuture(); }
  bool usable() const { return !retired && !detached() && !too_corrupt; }
  bool owes() const { return owes_list || !requests.empty(); }
  // False when `segment` was not asked of it.
  bool TakeRequested(SegmentIndex segment) {
    const size_t before = requests.size();
    if (!requests.Take(segment)) return false;
    if (requests.size() < before) ++requests_answered;
    return true;
  }
  // Seconds that so many bytes take at the rate seen so far.
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
      checksums_(spec_.held_checksums),
      list_(spec_.segment_count),
      before_(spec_.checksums ? spec_.before : SegmentSet()) {
  checksums_.resize(spec_.segment_count);
  for (const SegmentRange& range : held_.ranges()) {
    for (SegmentIndex i = range.begin; i < range.end; i = i.Next()) bytes_held_ += LengthOf(i);
    before_.Remove(range);
  }
  if (spec_.before_checksums.size() != spec_.segment_count) before_.Clear();
  resumed_ = !held_.empty();
  SegmentSet settled = unwanted_;
  settled.AddAll(held_);
  missing_ = spec_.segment_count - std::min(spec_.segment_count, settled.count());
  MoveWindow(SegmentIndex(0));
}

PipelineReplicator::~PipelineReplicator() = default;

// ---- sources

void PipelineReplicator::AddSource(SourceIndex source, absl::Time now, SourceReach reach,
                                   bool lists_checksums) {
  auto added = std::make_unique<Source>();
  added->index = source;
  added->reach = reach;
  added->added_at = added->last_heard = added->last_asked = now;
  added->lists_checksums = lists_checksums;
  list_was_offered_ |= lists_checksums;
  sources_.insert_or_assign(source, std::move(added));
}

void PipelineReplicator::DetachSource(SourceIndex source, absl::Time now) {
  Source* leaving = Find(source);
  if (leaving == nullptr || leaving->retired || leaving->detached()) return;
  leaving->detached_until = now + limits_.graceful_switch;
  LoseList(*leaving);
  // Segments on their way would be asked of another source, and arrive twice.
  TH_MUTATE(kGiveBackWhatIsOnItsWay, static_cast<void>(0), leaving->requests.Clear());
}

void PipelineReplicator::RetireSource(SourceIndex source) {
  Source* retired = Find(source);
  if (retired == nullptr) return;
  retired->retired = true;
  LoseList(*retired);
  TH_MUTATE(kKeepRequestsOfLostSource, retired->requests.Clear(), static_cast<void>(0));
}

void PipelineReplicator::RemoveSource(SourceIndex source) {
  if (Source* removed = Find(source)) LoseList(*removed);
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

// The most requests that are open at the source at any time.
uint32_t PipelineReplicator::MaxRequestWindow(const Source& source) const {
  switch (source.reach) {
    case SourceReach::kNear:
      return limits_.requests_in_flight;
    case SourceReach::kOtherSite:
      return limits_.far_requests_in_flight;
    case SourceReach::kDevice:
      break;
  }
  // Where segments are larger than request_bytes fewer requests are as many bytes; they are no
  // fewer than at other near sources.
  const uint64_t bytes = limits_.device_requests_in_flight * limits_.request_bytes;
  const uint64_t of_request = std::max<uint64_t>(1, SegmentsPerRequest() * spec_.segment_bytes);
  const uint32_t least = std::min(limits_.requests_in_flight, limits_.device_requests_in_flight);
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(bytes / of_request, least, limits_.device_requests_in_flight));
}

// The most requests that may be open at the source by now.
uint32_t PipelineReplicator::RequestWindow(const Source& source) const {
  const uint32_t most = MaxRequestWindow(source);
  if (source.reach == SourceReach::kOtherSite) return most;
  return std::min(most, limits_.requests_at_first + source.requests_answered);
}

// How many requests the segments amount to that have landed from `source` and await their verdict.
uint64_t PipelineReplicator::RequestsLanded(SourceIndex source) const {
  if (landed_.empty()) return 0;
  const auto segments = std::count_if(landed_.begin(), landed_.end(), [source](const auto& entry) {
    return entry.second == source;
  });
  return static_cast<uint64_t>(segments) / SegmentsPerRequest();
}

std::optional<PipelineReplicator::Request> PipelineReplicator::PollRequest(SourceIndex source,
                                                                           absl::Time now) {
  Source* asked = Find(source);
  if (asked == nullptr || asked->retired || asked->detached()) return std::nullopt;
  if (asked->too_corrupt || failed()) return std::nullopt;
  const uint64_t in_flight = asked->requests.size() + RequestsLanded(source);
  if (in_flight >= MaxRequestWindow(*asked)) return std::nullopt;
  SegmentRange range = held_.FirstMissing(SegmentIndex(0), window_end_.value, SegmentsPerRequest(),
                                          SkipFor(*asked, now));
  const bool given_back = asked->requests.AsksAbove(range.begin);
  if (!given_back && in_flight >= RequestWindow(*asked)) return std::nullopt;
  if (range.empty()) range = TailRange(*asked, now);
  if (range.empty()) return std::nullopt;
  // A source at rest was not silent: its time starts with this request.
  if (!asked->owes()) asked->last_heard = now;
  if (asked->requests.empty()) asked->waits_since = now;
  asked->last_asked = now;
  asked->requests.Push(range);
  return Request{range};
}

void PipelineReplicator::HandleConsumed(SegmentIndex segment) { MoveWindow(segment); }

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
  if (AwaitsList(now)) {
    if (spec_.window_segments > 0) return SegmentSet::AllOf(spec_.segment_count);
    skip.AddAll(before_);
  }
  for (const auto& [index, other] : sources_) {
    other->requests.AddOpenTo(&skip);
    skip.AddAll(other->writing);
  }
  for (const auto& [segment, writer] : landed_) skip.Add(segment);
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
    return &other != &source && other.usable() && !other.corrupted.Contains(segment);
  });
}

// The range that an idle source takes over from the one that would take longest to the end.
SegmentRange PipelineReplicator::TailRange(const Source& helper, absl::Time now) const {
  SegmentRange range;
  if (!helper.requests.empty() || helper.bytes == 0) return range;
  double longest = 0;
  for (const auto& [index, slow] : sources_) {
    if (slow.get() == &helper || slow->requests.empty() || slow->detached()) continue;
    if (!TakingOverHelps(helper, *slow, now)) continue;
    const SegmentRange candidate = RangeToTakeOver(*slow);
    const double seconds = SecondsToFinish(*slow, now);
    if (candidate.empty() || seconds <= longest) continue;
    longest = seconds;
    range = candidate;
  }
  return range;
}

// The end of what it was asked last: it comes to that last, unless it is a relay that holds it.
SegmentRange PipelineReplicator::RangeToTakeOver(const Source& slow) const {
  SegmentSet open;
  slow.requests.AddOpenTo(&open);
  SegmentSet elsewhere = held_;
  for (const auto& [index, other] : sources_) {
    if (other.get() != &slow) other->requests.AddOpenTo(&elsewhere);
    elsewhere.AddAll(other->writing);
  }
  for (const SegmentRange& range : elsewhere.ranges()) open.Remove(range);
  if (open.empty()) return {};
  SegmentRange last = open.ranges().back();
  if (last.count() > SegmentsPerRequest()) {
    last.begin = SegmentIndex(last.end.value - SegmentsPerRequest());
  }
  return last;
}

double PipelineReplicator::SecondsToFinish(const Source& source, absl::Time now) const {
  return source.SecondsFor(source.requests.segments() * spec_.segment_bytes, now);
}

bool PipelineReplicator::TakingOverHelps(const Source& helper, const Source& slow,
                                         absl::Time now) const {
  if (now - slow.last_asked < limits_.tail_patience) return false;
  const double helper_seconds = helper.SecondsFor(limits_.request_bytes, now);
  return SecondsToFinish(slow, now) > 2 * helper_seconds;
}

// ---- receiving

bool PipelineReplicator::WantsSegment(SourceIndex source, SegmentIndex segment) const {
  const Source* sender = Find(source);
  if (sender == nullptr || sender->retired || !sender->requests.Contains(segment)) return false;
  const bool another_writes = std::any_of(sources_.begin(), sources_.end(), [&](const auto& entry) {
    return entry.first != source && entry.second->writing.Contains(segment);
  });
  if (another_writes) return false;
  if (landed_.contains(segment)) return false;
  return TH_MUTATE(kWriteHeldSegmentAgain, !held_.Contains(segment), true);
}

bool PipelineReplicator::BeginSegment(SourceIndex source, SegmentIndex segment) {
  if (!WantsSegment(source, segment)) return false;
  Find(source)->writing.Add(segment);
  TH_MUTATE(kTrustBytesThatWereWritten, before_.Remove({segment, segment.Next()}),
            static_cast<void>(0));
  return true;
}

bool PipelineReplicator::HandleDiscarded(SourceIndex source, SegmentIndex segment, absl::Time now) {
  Source* sender = Find(source);
  if (sender == nullptr) return false;
  sender->last_heard = now;
  // Segments that were asked of a retired source still arrive until it is closed.
  return Answer(*sender, segment, now) || sender->retired;
}

bool PipelineReplicator::Answer(Source& source, SegmentIndex segment, absl::Time now) {
  if (!source.TakeRequested(segment)) return false;
  if (source.requests.empty()) accounts_[source.index].waited += now - source.waits_since;
  return true;
}

bool PipelineReplicator::HandleLanded(SourceIndex source, SegmentIndex segment, absl::Time now) {
  Source* const sender = Find(source);
  if (sender == nullptr || !sender->writing.Contains(segment)) return false;
  sender->writing.Remove({segment, segment.Next()});
  landed_.insert_or_assign(segment, source);
  sender->last_heard = now;
  Answer(*sender, segment, now);
  return true;
}

PipelineReplicator::SegmentVerdict PipelineReplicator::HandleSegment(SourceIndex source,
                                                                     SegmentIndex segment,
                                                                     SegmentChecksum sent,
                                                                     SegmentChecksum computed,
                                                                     absl::Time now) {
  const auto landed = landed_.find(segment);
  const bool has_landed = landed != landed_.end() && landed->second == source;
  Source* sender = Find(source);
  if (segment.value >= spec_.segment_count) return SegmentVerdict::kUnexpected;
  if (sender == nullptr && !has_landed) return SegmentVerdict::kUnexpected;
  const bool wrote = sender != nullptr && sender->writing.Contains(segment);
  if (has_landed) {
    landed_.erase(landed);
  } else {
    const bool answered = Answer(*sender, segment, now);
    if (!answered && !wrote) return SegmentVerdict::kUnexpected;
    sender->last_heard = now;
  }
  if (held_.Contains(segment)) return SegmentVerdict::kDuplicate;
  if (wrote) sender->writing.Remove({segment, segment.Next()});
  const bool listed = TH_MUTATE(kTrustChecksumsThatComeAlong, list_.checked(), false);
  const SegmentChecksum expected = listed ? list_.checksums()[segment.value] : sent;
  if (TH_MUTATE(kAcceptAnyChecksum, spec_.checksums && expected != computed, false)) {
    CountCorrupt(source, segment, now);
    return SegmentVerdict::kCorrupt;
  }
  Accept(source, segment, expected);
  return SegmentVerdict::kAccepted;
}

void PipelineReplicator::Accept(SourceIndex source, SegmentIndex segment,
                                SegmentChecksum checksum) {
  const uint64_t length = LengthOf(segment);
  Hold(segment, checksum);
  if (Source* sender = Find(source)) sender->bytes += length;
  accounts_[source].bytes += length;
  contributors_.insert(source);
  CheckRoot();
}

void PipelineReplicator::Hold(SegmentIndex segment, SegmentChecksum checksum) {
  held_.Add(segment);
  --missing_;
  checksums_[segment.value] = checksum;
  bytes_held_ += LengthOf(segment);
}

void PipelineReplicator::CountCorrupt(SourceIndex source, SegmentIndex segment, absl::Time now) {
  ++corrupt_segments_;
  const uint32_t count = ++accounts_[source].corrupt_segments;
  Source* sender = Find(source);
  if (sender == nullptr) return;  // it has gone since this landed
  sender->corrupted.Add(segment);
  sender->withheld_until = now + limits_.another_source_wait;
  if (count >= limits_.corrupt_segments_per_source) sender->too_corrupt = true;
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
  if (list_heard_at_ < absl::InfiniteFuture()) list_heard_at_ += pause;
}

// ---- the list of sums

bool PipelineReplicator::GivesList(const Source& source) const {
  return source.lists_checksums && source.usable();
}

// A whole that has neither a root to check the list against nor bytes to compare with it gets
// nothing from it.
bool PipelineReplicator::WantsList() const {
  if (!spec_.checksums || list_.complete() || failed()) return false;
  return receives_a_part() || (missing_ > 0 && (root_.has_value() || !spec_.before.empty()));
}

// Not where every source that is there cannot give it.
bool PipelineReplicator::ListMayCome() const {
  bool any = false;
  for (const auto& [index, source] : sources_) {
    if (GivesList(*source)) return true;
    any |= source->usable();
  }
  return list_was_offered_ && !any;
}

// True while nothing is asked for because the list of sums is awaited. Segments that were handed on
// cannot be taken back, so where they can be compared with the root the list comes first.
bool PipelineReplicator::AwaitsList(absl::Time now) const {
  const bool hands_on = spec_.window_segments > 0 && root_.has_value();
  if (!hands_on && before_.empty()) return false;
  if (!WantsList() || !ListMayCome()) return false;
  return hands_on || now - list_heard_at_ < limits_.list_patience;
}

bool PipelineReplicator::PollChecksums(SourceIndex source, absl::Time now) {
  Source* asked = Find(source);
  if (asked == nullptr || !GivesList(*asked) || !WantsList() || list_.coming()) return false;
  if (!asked->owes()) asked->last_heard = now;
  asked->owes_list = true;
  list_.Ask(source);
  list_heard_at_ = now;
  listed_taken_ = 0;
  return true;
}

void PipelineReplicator::HandleChecksums(SourceIndex source, SegmentIndex first,
                                         absl::Span<const SegmentChecksum> checksums,
                                         absl::Time now) {
  Source* sender = Find(source);
  if (sender == nullptr) return;
  sender->last_heard = now;
  if (!list_.Append(source, first, checksums)) return;
  list_heard_at_ = now;
  if (list_.complete()) sender->owes_list = false;
  // Against a root that is known the whole list counts or nothing of it.
  if (!root_.has_value()) HoldUnchanged({first, SegmentIndex(first.value + checksums.size())});
  CheckList();
  CheckRoot();
}

// Whoever is asked next begins anew.
void PipelineReplicator::LoseList(Source& source) {
  source.owes_list = false;
  if (list_.coming() && list_.source() == source.index) list_.Drop();
}

void PipelineReplicator::CheckList() {
  if (!root_.has_value() || !list_.complete() || spec_.segment_count == 0) return;
  if (!list_.Check(*root_)) return RejectList();
  if (!HoldsOnlyListed()) StartOver();
  HoldUnchanged({SegmentIndex(0), SegmentIndex(spec_.segment_count)});
}

bool PipelineReplicator::HoldsOnlyListed() const {
  for (const SegmentRange& range : held_.ranges()) {
    for (SegmentIndex i = range.begin; i < range.end; i = i.Next()) {
      if (checksums_[i.value] != list_.checksums()[i.value]) return false;
    }
  }
  return true;
}

void PipelineReplicator::RejectList() {
  ++list_mismatches_;
  const SourceIndex culprit = *list_.source();
  list_.Drop();
  Blame(culprit);
  if (std::exchange(list_used_, false)) StartOver();
}

void PipelineReplicator::Blame(SourceIndex source) {
  RetireSource(source);
  if (std::find(culprits_.begin(), culprits_.end(), source) == culprits_.end()) {
    culprits_.push_back(source);
  }
}

// The buffer has the bytes of those among `listed` whose sum is the listed one. Others are asked
// for from now on.
void PipelineReplicator::HoldUnchanged(SegmentRange listed) {
  const SegmentSet before = before_;
  for (const SegmentRange& range : before.ranges()) {
    const SegmentIndex end = std::min(range.end, listed.end);
    for (SegmentIndex i = std::max(range.begin, listed.begin); i < end; i = i.Next()) {
      const SegmentChecksum checksum = list_.checksums()[i.value];
      if (held_.Contains(i)) continue;
      if (TH_MUTATE(kTakeWhatWasThere, spec_.before_checksums[i.value] != checksum, false)) {
        before_.Remove({i, i.Next()});
        continue;
      }
      Hold(i, checksum);
      unchanged_.Add(i);
      bytes_unchanged_ += LengthOf(i);
      list_used_ = true;
      if (!list_.checked()) contributors_.insert(*list_.source());
    }
  }
}

PipelineReplicator::ListedChecksums PipelineReplicator::TakeListed() {
  const bool may = list_.checked() || !root_.has_value();
  const uint64_t first = listed_taken_;
  if (!may || first >= list_.checksums().size()) return {};
  listed_taken_ = list_.checksums().size();
  list_used_ = true;
  return {SegmentIndex(first), absl::MakeConstSpan(list_.checksums()).subspan(first)};
}

// ---- the root

void PipelineReplicator::HandleRoot(const Digest& root) {
  root_ = root;
  agreed_ = false;
  CheckList();
  CheckRoot();
}

void PipelineReplicator::CheckRoot() {
  if (receives_a_part()) return;
  if (!spec_.checksums || !root_.has_value() || !all_received() || failed()) return;
  // Each segment was compared with a checked list already.
  agreed_ =
      list_.checked() || TH_MUTATE(kTrustTheList, RootOfChecksums(checksums_) == *root_, true);
  if (!agreed_) StartOver();
}

// Nobody knows which sum is wrong, so nothing of the list counts. When it all came from one source,
// that is the culprit.
void PipelineReplicator::StartOver() {
  ++root_mismatches_;
  if (contributors_.size() == 1 && !resumed_) Blame(*contributors_.begin());
  held_.Clear();
  unchanged_.Clear();
  bytes_held_ = bytes_unchanged_ = 0;
  missing_ = spec_.segment_count - unwanted_.count();
  listed_taken_ = 0;
  contributors_.clear();
  resumed_ = false;
}

// ---- losses

std::vector<PipelineReplicator::LostSource> PipelineReplicator::PollLost(absl::Time now) {
  std::vector<LostSource> lost;
  for (const SourceIndex culprit : std::exchange(culprits_, {})) {
    Source* const source = Find(culprit);
    if (source != nullptr && std::exchange(source->reported, true)) continue;
    lost.push_back({.source = culprit, .corrupt = true});
  }
  for (auto& [index, source] : sources_) {
    if (source->reported || source->retired) continue;
    const absl::Duration silent_for = now - source->last_heard;
    const bool silent = source->owes() && silent_for >= limits_.silence;
    const bool done =
        source->detached() && (source->requests.empty() || now >= source->detached_until);
    if (!silent && !done && !source->too_corrupt) continue;
    source->reported = true;
    lost.push_back({.source = index,
                    .corrupt = source->too_corrupt,
                    .silent_for = source->too_corrupt ? absl::ZeroDuration() : silent_for,
                    .detached = source->detached()});
    RetireSource(index);
  }
  return lost;
}

std::vector<PipelineReplicator::Suspicion> PipelineReplicator::PollSuspected() {
  std::vector<Suspicion> suspected;
  for (auto& [index, source] : sources_) {
    if (source->corrupted.empty() || source->retired || source->too_corrupt) continue;
    if (std::exchange(source->suspicion_reported, true)) continue;
    suspected.push_back({index, source->corrupted.ranges().front().begin});
  }
  return suspected;
}

absl::Time PipelineReplicator::NextDeadline() const {
  if (!culprits_.empty()) return absl::InfinitePast();
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [index, source] : sources_) {
    if (source->reported || source->retired) continue;
    if (source->too_corrupt) return absl::InfinitePast();
    if (source->detached() && source->requests.empty()) return absl::InfinitePast();
    next = std::min(next, source->detached_until);
    if (source->owes()) next = std::min(next, source->last_heard + limits_.silence);
  }
  return next;
}

// ---- state

bool PipelineReplicator::all_received() const {
  const bool lacks_list = receives_a_part() && WantsList() && ListMayCome();
  return missing_ == 0 && TH_MUTATE(kCompleteAPartWithoutList, !lacks_list, true);
}

bool PipelineReplicator::complete() const {
  const bool part_agrees = list_.checked() || !list_.complete();
  const bool agrees = !spec_.checksums || (receives_a_part() ? part_agrees : agreed_);
  return all_received() && TH_MUTATE(kCompleteWithoutRoot, agrees, true);
}

bool PipelineReplicator::failed() const {
  const uint32_t allowed = spec_.window_segments > 0 ? 0 : limits_.root_mismatches;
  return root_mismatches_ > allowed || list_mismatches_ > limits_.root_mismatches;
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
