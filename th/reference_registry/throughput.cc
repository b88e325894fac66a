#include "th/reference_registry/throughput.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "th/reference_registry/assignment.h"
#include "th/reference_registry/link_order.h"
#include "th/registry_state/holders.h"
#include "th/scheduler/comparable_throughputs.h"
#include "th/scheduler/link_rate.h"
#include "th/scheduler/scheduler.h"
#include "th/scheduler/slow_source.h"
#include "th/topology/location.h"

namespace th::registry {
namespace {

// For so long the last reader of a chain is looked at before its link is taken for a slow one.
constexpr absl::Duration kWaitedAtTheEnd = absl::Milliseconds(600);

enum class Look { kAtReport, kAgain };  // kAgain: takes what is remembered, asks for no more

uint64_t SegmentBytes(const Buffer& buffer) {
  return buffer.segment_count == 0 ? 0 : buffer.bytes / buffer.segment_count;
}

// None: it has not told lately what it receives.
std::optional<double> IntakeOf(const Turn& turn, const Buffer& source) {
  if (source.fill == nullptr) return std::nullopt;
  const FillThroughput& throughput = source.fill->throughput;
  if (turn.now - throughput.reported_at > 2 * kThroughputWindow) return std::nullopt;
  return throughput.passing;
}

ComparableThroughputs& ThroughputsOf(Buffer& buffer) {
  auto& throughputs = buffer.replica->group->model->throughputs;
  if (throughputs.size() >= kMaxFormsCompared && !throughputs.contains(buffer.form))
    throughputs.clear();
  return throughputs[buffer.form];
}

std::optional<double> Comparable(const Turn& turn, Buffer& reader, Distance distance, Look look) {
  const ComparableThroughputs& throughputs = ThroughputsOf(reader);
  auto best = throughputs.BestOfOthers(distance, reader.address.worker, turn.now);
  if (!best.has_value() && look == Look::kAgain)
    best = throughputs.BestRemembered(distance, turn.now);
  const std::optional<double> limit = reader.worker->link.limit();
  if (best.has_value() && limit.has_value()) return std::min(*best, *limit);
  return best;
}

SlowSourceEvidence EvidenceOf(const Turn& turn, Buffer& reader, const Buffer& source,
                              const FillThroughput::OfSource& reported, Look look) {
  const uint64_t held =
      std::min(reader.bytes, reader.content->segments.count() * SegmentBytes(reader));
  return {.reader_most = reader.fill->throughput.most,
          .source = reported.throughput,
          .waited = reported.report.waited,
          .source_readers = ReaderCount(*reader.shard, source.address),
          .comparable = Comparable(turn, reader, DistanceTo(reader, source), look),
          .source_whole = source.content->complete,
          .source_intake = IntakeOf(turn, source),
          .bytes_missing = reader.bytes - held};
}

bool OtherWouldBeFaster(const Turn& turn, const Buffer& reader, const Buffer& source,
                        const SlowSourceEvidence& evidence) {
  const auto choice = BestOtherThan(turn, reader, source.address);
  if (!choice.has_value() || choice->at_limit) return false;
  if (choice->distance > std::max(DistanceTo(reader, source), Distance::kSameSite)) return false;
  const Buffer& other = *HolderAt(*reader.shard, choice->source);
  if (IsSuspected(*other.worker, turn.now)) return false;
  return WouldBeFaster(evidence, {.readers = ReaderCount(*reader.shard, choice->source),
                                  .whole = other.content->complete,
                                  .intake = IntakeOf(turn, other)});
}

// True if the source held what the reader lacked during the whole measurement. One that is behind
// its reader, which has been moved there, is not slow: it has nothing for it yet.
bool WasAhead(const Turn& turn, const Buffer& reader, const FillThroughput::OfSource& reported) {
  const Buffer* source = HolderAt(*reader.shard, reported.report.source);
  if (source == nullptr || source->content->complete) return source != nullptr;
  const uint64_t segment_bytes = SegmentBytes(reader);
  const double received = source->fill == nullptr ? 0 : source->fill->throughput.passing;
  const double had = static_cast<double>(ExpectedBytes(turn, *source)) -
                     received * absl::ToDoubleSeconds(reported.report.waited);
  const double reader_had = static_cast<double>(segment_bytes * reader.content->segments.count()) -
                            static_cast<double>(reported.report.bytes);
  const double on_its_way = static_cast<double>(kSegmentsInPassing * segment_bytes);
  return std::max(0.0, had) + on_its_way >= reader_had;
}

// True when the reader is no better off since it left a source: then that one was not to blame.
bool IsSlowItself(const Turn& turn, const Buffer& reader) {
  const FillThroughput& throughput = reader.fill->throughput;
  const auto is_reporting = [&](const FillThroughput::OfSource& one) {
    return one.report.waited >= kLeastWaited && WasAhead(turn, reader, one);
  };
  const bool measured =
      std::any_of(throughput.sources.begin(), throughput.sources.end(), is_reporting);
  return measured && turn.now - throughput.left_at < kJudgedFor &&
         throughput.most < kFasterBy * throughput.throughput_then;
}

// True if what the reader gets of the source says something about the reader's own link: within a
// host nothing does, and what sites are connected by is shared.
bool IsOverItsLink(const Buffer& reader, const Buffer& source) {
  const Distance distance = DistanceTo(reader, source);
  return distance > Distance::kSameHost && distance < Distance::kOtherSite;
}

// The throughput that a reader had at least while another one was looked at, from `began` on, if it
// got `ceiling` before that; 0 where the two looks hardly meet.
double ThroughputSince(const FillThroughput& throughput, const FillThroughput::OfSource& reported,
                       absl::Time began, double ceiling) {
  const absl::Duration before =
      std::max(absl::ZeroDuration(), began - (throughput.reported_at - reported.report.waited));
  const absl::Duration since = reported.report.waited - before;
  if (since < kLeastWaited) return 0;
  const double bytes =
      static_cast<double>(reported.report.bytes) - ceiling * absl::ToDoubleSeconds(before);
  return bytes / absl::ToDoubleSeconds(since);
}

// True if another reader of the source gets kFasterBy as much of it at the same time.
bool AnotherGetsMore(const Buffer& reader, const FillThroughput::OfSource& reported,
                     double comparable) {
  if (reader.sources.size() > 1) return false;
  const absl::Time began = reader.fill->throughput.reported_at - reported.report.waited;
  const std::vector<Buffer*> readers = ReadersOf(*reader.shard, reported.report.source);
  return std::any_of(readers.begin(), readers.end(), [&](const Buffer* other) {
    if (other == &reader || other->fill == nullptr) return false;
    const FillThroughput& throughput = other->fill->throughput;
    return std::any_of(throughput.sources.begin(), throughput.sources.end(), [&](const auto& one) {
      const double ceiling = std::max(comparable, one.throughput.least);
      return one.report.source == reported.report.source &&
             ThroughputSince(throughput, one, began, ceiling) >=
                 reported.throughput.most * kFasterBy;
    });
  });
}

void BlameReader(Turn& turn, Buffer& reader) {
  reader.worker->slow_reader_until = turn.now + kReaderSlowLasts;
  reader.fill->throughput.left_at = absl::InfinitePast();  // judged once
  if (Buffer* left = HolderAt(*reader.shard, reader.fill->throughput.left)) {
    left->worker->slow_until = absl::InfinitePast();
    left->worker->doubted_at = absl::InfinitePast();
    ReindexAll(turn, *left->worker);
  }
  const std::vector<BufferAddress>& sources = reader.sources;
  const bool over_link = std::all_of(sources.begin(), sources.end(), [&](const auto& address) {
    const Buffer* source = HolderAt(*reader.shard, address);
    return source != nullptr && IsOverItsLink(reader, *source);
  });
  if (over_link) NoteLimitedLink(turn, reader, reader.fill->throughput.most);
}

void Leave(Turn& turn, Buffer& reader, const Buffer& source, const SlowSourceEvidence& evidence) {
  FillThroughput& throughput = reader.fill->throughput;
  throughput.left_at = turn.now;
  throughput.left = source.address;
  throughput.throughput_then = evidence.reader_most;
  constexpr double kMegabyte = 1e6;
  LeaveSource(
      turn, reader, source, turn.now + kSlowLasts,
      absl::StrFormat("%.1f MB/s where others get %.1f MB/s", evidence.source.most / kMegabyte,
                      evidence.comparable.value_or(0) / kMegabyte));
}

// It left a source of late, which has to show first what that was good for.
bool MayLeave(const Turn& turn, const Buffer& reader) {
  return turn.now >= reader.worker->slow_reader_until &&
         turn.now - reader.fill->throughput.left_at >= kLeaveEvery;
}

// The throughput drops from the source to the reader. `again`: as it did for the one before it
// there.
void Act(Turn& turn, Buffer& reader, Buffer& source, const SlowSourceEvidence& evidence,
         bool again) {
  const bool over_link = IsOverItsLink(reader, source);
  const bool slow = JudgeSource(evidence) == SourceVerdict::kLeave && MayLeave(turn, reader) &&
                    OtherWouldBeFaster(turn, reader, source, evidence);
  if (slow && again) {
    ForgetLimits(turn, *reader.shard, evidence.source.most);
    return Leave(turn, reader, source, evidence);
  }
  if (over_link && StepAside(turn, reader, source, evidence.source.most)) return;
  if (slow) return Leave(turn, reader, source, evidence);
  // At the end of a chain it costs nothing to take its own link for the slow one.
  if (over_link && evidence.waited >= kWaitedAtTheEnd && !HoldsBackOthers(reader)) {
    NoteLimitedLink(turn, reader, evidence.source.most);
  }
}

// Leaves the slowest source if it is to be left, or changes places.
void CheckSources(Turn& turn, Buffer& reader, Look look) {
  if (Overtake(turn, reader)) return;
  MakeWay(turn, reader);
  FillThroughput& throughput = reader.fill->throughput;
  const auto slowest = std::min_element(
      throughput.sources.begin(), throughput.sources.end(),
      [](const auto& a, const auto& b) { return a.throughput.most < b.throughput.most; });
  if (slowest == throughput.sources.end()) return;
  Buffer* source = HolderAt(*reader.shard, slowest->report.source);
  const bool has_it = FillsFrom(*reader.shard, reader.address, slowest->report.source);
  if (source == nullptr || !has_it) return;  // it has moved since it told
  if (!WasAhead(turn, reader, *slowest)) return;
  const SlowSourceEvidence evidence = EvidenceOf(turn, reader, *source, *slowest, look);
  const bool over_link = evidence.waited >= kLeastWaited && IsOverItsLink(reader, *source);
  if (over_link && AnotherGetsMore(reader, *slowest, evidence.comparable.value_or(0))) {
    return NoteLimitedLink(turn, reader, throughput.most);
  }
  const bool again = over_link && ConcludeTrial(turn, reader, *source, evidence.source.most);
  const SourceVerdict verdict = JudgeSource(evidence, kHeldBackFraction);
  if (verdict == SourceVerdict::kUnknown && look == Look::kAtReport) {
    return SetRecheck(turn, reader, turn.now + kRecheckAfter);
  }
  if (verdict == SourceVerdict::kLeave) return Act(turn, reader, *source, evidence, again);
  // A reader that gets more than all others holds none of them back.
  const bool alike =
      evidence.comparable.has_value() && throughput.passing <= *evidence.comparable * kLinksAlike;
  if (over_link && alike) TryAnother(turn, reader, *source, evidence.source.most);
}

// The report together with the earlier ones of the same source, as long as those are of too few
// segments to say much.
SourceThroughput WithEarlier(const FillThroughput& before, SourceThroughput reported,
                             uint64_t segment_bytes) {
  for (const FillThroughput::OfSource& earlier : before.sources) {
    if (earlier.report.source != reported.source) continue;
    if (earlier.report.bytes >= kLeastSegmentsMeasured * segment_bytes) continue;
    reported.bytes += earlier.report.bytes;
    reported.waited += earlier.report.waited;
  }
  return reported;
}

// Records the reader's report, for the sources that it has.
void Record(Turn& turn, Buffer& buffer, const std::vector<SourceThroughput>& throughputs) {
  const uint64_t segment_bytes = SegmentBytes(buffer);
  FillThroughput& own = buffer.fill->throughput;
  std::vector<FillThroughput::OfSource> all;
  all.reserve(throughputs.size());
  double least = 0;
  absl::Duration longest;
  own.most = own.passing = 0;
  for (const SourceThroughput& reported : throughputs) {
    const bool assigned = FillsFrom(*buffer.shard, buffer.address, reported.source);
    if (!assigned || reported.waited <= absl::ZeroDuration()) continue;
    const SourceThroughput known = WithEarlier(own, reported, segment_bytes);
    const Throughput throughput = ThroughputOf(known.bytes, segment_bytes, known.waited);
    all.push_back({known, throughput});
    least += throughput.least;
    own.most += throughput.most;
    longest = std::max(longest, known.waited);
    const Buffer* source = HolderAt(*buffer.shard, reported.source);
    if (source == nullptr || throughput.least <= 0 || known.waited < kLeastWaited) continue;
    ThroughputsOf(buffer).Note(DistanceTo(buffer, *source), buffer.address.worker, throughput.least,
                               turn.now);
  }
  if (!all.empty()) own.passing = PassingThroughput(least, segment_bytes, longest);
  if (longest >= kLeastWaited) NoteReceived(turn, buffer, least);
  own.sources = std::move(all);
  own.reported_at = turn.now;
}

}  // namespace

void NoteThroughputs(Turn& turn, Buffer& buffer, const std::vector<SourceThroughput>& throughputs) {
  if (turn.state.limits.scheduler.policy != SchedulerPolicy::kNearest) return;
  if (throughputs.empty() || buffer.content->complete) return;
  FillThroughput& throughput = buffer.fill->throughput;
  const bool others_follow = throughput.reported_at == absl::InfinitePast();
  Record(turn, buffer, throughputs);
  if (throughput.sources.empty()) return;
  if (IsSlowItself(turn, buffer)) BlameReader(turn, buffer);
  // Readers that began together report at about the same time, and those that are well off perhaps
  // last.
  if (others_follow) SetRecheck(turn, buffer, turn.now + kRecheckAfter);
  CheckSources(turn, buffer, Look::kAtReport);
}

void RecheckSources(Turn& turn, Buffer& buffer) {
  if (buffer.fill == nullptr || buffer.shard == nullptr) return;
  buffer.fill->throughput.recheck_at = absl::InfiniteFuture();
  CheckSources(turn, buffer, Look::kAgain);
}

}  // namespace th::registry
