#include "th/reference_registry/pace.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "th/reference_registry/assignment.h"
#include "th/reference_registry/holders.h"
#include "th/scheduler/comparable_paces.h"
#include "th/scheduler/scheduler.h"
#include "th/scheduler/slow_source.h"
#include "th/topology/location.h"

namespace th::registry {
namespace {

enum class Look { kAtReport, kAgain };  // kAgain: takes what is remembered, asks for no more

Buffer* HolderAt(const Shard& shard, const BufferAddress& address) {
  auto found = shard.holders.find(address);
  return found == shard.holders.end() ? nullptr : found->second;
}

uint64_t SegmentBytes(const Buffer& buffer) {
  return buffer.segment_count == 0 ? 0 : buffer.bytes / buffer.segment_count;
}

// None: it has not told lately what it receives.
std::optional<double> IntakeOf(const Turn& turn, const Buffer& source) {
  if (source.fill == nullptr) return std::nullopt;
  const FillPace& pace = source.fill->pace;
  if (turn.now - pace.told_at > 2 * kPaceWindow) return std::nullopt;
  return pace.passing;
}

Distance DistanceTo(const Buffer& reader, const Buffer& source) {
  return DistanceBetween(reader.worker->location, source.worker->location);
}

ComparablePaces& PacesOf(Buffer& buffer) {
  auto& paces = buffer.replica->group->model->paces;
  if (paces.size() >= kMaxFormsCompared && !paces.contains(buffer.form)) paces.clear();
  return paces[buffer.form];
}

std::optional<double> Comparable(const Turn& turn, Buffer& reader, Distance distance, Look look) {
  const ComparablePaces& paces = PacesOf(reader);
  auto best = paces.BestOfOthers(distance, reader.address.worker, turn.now);
  if (!best.has_value() && look == Look::kAgain) best = paces.BestRemembered(distance, turn.now);
  return best;
}

SlowSourceEvidence EvidenceOf(const Turn& turn, Buffer& reader, const Buffer& source,
                              const FillPace::OfSource& told, Look look) {
  const uint64_t held =
      std::min(reader.bytes, reader.content->segments.count() * SegmentBytes(reader));
  return {.reader_most = reader.fill->pace.most,
          .source = told.pace,
          .waited = told.report.waited,
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

// Whether the reader is no better off since it left a source: then that one was not to blame.
bool IsSlowItself(const Turn& turn, const Buffer& reader) {
  const FillPace& pace = reader.fill->pace;
  const bool measured = std::any_of(pace.sources.begin(), pace.sources.end(), [](const auto& one) {
    return one.report.waited >= kLeastWaited;
  });
  return measured && turn.now - pace.left_at < kJudgedFor && pace.most < kFasterBy * pace.pace_then;
}

void BlameReader(Turn& turn, Buffer& reader) {
  reader.worker->slow_reader_until = turn.now + kReaderSlowLasts;
  reader.fill->pace.left_at = absl::InfinitePast();  // judged once
  Buffer* left = HolderAt(*reader.shard, reader.fill->pace.left);
  if (left == nullptr) return;
  left->worker->slow_until = absl::InfinitePast();
  ReindexAll(turn, *left->worker);
}

void Leave(Turn& turn, Buffer& reader, const Buffer& source, const SlowSourceEvidence& evidence) {
  FillPace& pace = reader.fill->pace;
  pace.left_at = turn.now;
  pace.left = source.address;
  pace.pace_then = evidence.reader_most;
  constexpr double kMegabyte = 1e6;
  LeaveSource(
      turn, reader, source, turn.now + kSlowLasts,
      absl::StrFormat("%.1f MB/s where others get %.1f MB/s", evidence.source.most / kMegabyte,
                      evidence.comparable.value_or(0) / kMegabyte));
}

// Leaves the slowest source if it is to be left.
void LookAt(Turn& turn, Buffer& reader, Look look) {
  FillPace& pace = reader.fill->pace;
  const auto slowest =
      std::min_element(pace.sources.begin(), pace.sources.end(),
                       [](const auto& a, const auto& b) { return a.pace.most < b.pace.most; });
  const bool may_leave =
      turn.now >= reader.worker->slow_reader_until && turn.now - pace.left_at >= kLeaveEvery;
  if (slowest == pace.sources.end() || !may_leave) return;
  const Buffer* source = HolderAt(*reader.shard, slowest->report.source);
  const bool has_it = FillsFrom(*reader.shard, reader.address, slowest->report.source);
  if (source == nullptr || !has_it) return;  // it has moved since it told
  const SlowSourceEvidence evidence = EvidenceOf(turn, reader, *source, *slowest, look);
  const SourceVerdict verdict = JudgeSource(evidence);
  if (verdict == SourceVerdict::kUnknown && look == Look::kAtReport) {
    return SetLook(turn, reader, turn.now + kLookAgain);
  }
  if (verdict != SourceVerdict::kLeave) return;
  if (OtherWouldBeFaster(turn, reader, *source, evidence)) Leave(turn, reader, *source, evidence);
}

// With what was told before of the same source, as long as that is too few segments to say much.
SourcePace WithEarlier(const FillPace& before, SourcePace told, uint64_t segment_bytes) {
  for (const FillPace::OfSource& earlier : before.sources) {
    if (earlier.report.source != told.source) continue;
    if (earlier.report.bytes >= kSegmentsOfAPace * segment_bytes) continue;
    told.bytes += earlier.report.bytes;
    told.waited += earlier.report.waited;
  }
  return told;
}

// What the reader has told, of the sources that it has.
void Record(Turn& turn, Buffer& buffer, const std::vector<SourcePace>& paces) {
  const uint64_t segment_bytes = SegmentBytes(buffer);
  FillPace& own = buffer.fill->pace;
  std::vector<FillPace::OfSource> all;
  all.reserve(paces.size());
  double least = 0;
  absl::Duration longest;
  own.most = own.passing = 0;
  for (const SourcePace& told : paces) {
    const bool assigned = FillsFrom(*buffer.shard, buffer.address, told.source);
    if (!assigned || told.waited <= absl::ZeroDuration()) continue;
    const SourcePace known = WithEarlier(own, told, segment_bytes);
    const Pace pace = PaceOf(known.bytes, segment_bytes, known.waited);
    all.push_back({known, pace});
    least += pace.least;
    own.most += pace.most;
    longest = std::max(longest, known.waited);
    const Buffer* source = HolderAt(*buffer.shard, told.source);
    if (source == nullptr || pace.least <= 0 || known.waited < kLeastWaited) continue;
    PacesOf(buffer).Note(DistanceTo(buffer, *source), buffer.address.worker, pace.least, turn.now);
  }
  if (!all.empty()) own.passing = PassingPace(least, segment_bytes, longest);
  own.sources = std::move(all);
  own.told_at = turn.now;
}

}  // namespace

void NotePaces(Turn& turn, Buffer& buffer, const std::vector<SourcePace>& paces) {
  if (turn.state.limits.scheduler.policy != SchedulerPolicy::kNearest) return;
  if (paces.empty() || buffer.content->complete) return;
  FillPace& pace = buffer.fill->pace;
  const bool others_follow = pace.told_at == absl::InfinitePast();
  Record(turn, buffer, paces);
  if (pace.sources.empty()) return;
  if (IsSlowItself(turn, buffer)) BlameReader(turn, buffer);
  // Who began together tells at about the same time, and those that are well off perhaps last.
  if (others_follow) SetLook(turn, buffer, turn.now + kLookAgain);
  LookAt(turn, buffer, Look::kAtReport);
}

void LookAgain(Turn& turn, Buffer& buffer) {
  if (buffer.fill == nullptr || buffer.shard == nullptr) return;
  buffer.fill->pace.look_at = absl::InfiniteFuture();
  LookAt(turn, buffer, Look::kAgain);
}

}  // namespace th::registry
