// When a reader should leave a source that is slow but not silent: policy only, pure functions of
// what was measured.
//
//   switch (JudgeSource(evidence)) {
//     case SourceVerdict::kLeave: if (WouldBeFaster(evidence, other)) ...
//
// A source is to be left when all of this holds:
//  1. The reader gets less than kSlowFraction of what comparable readers get at this or a greater
//     distance, over kLeastWaited at least: a fleet that is slow as a whole stays as it is.
//  2. Nor would the source's uplink give that much if each of its readers had as much as this one:
//     who shares an uplink fairly has no slow source.
//  3. It holds the shard whole, or receives it kFasterBy as fast as it gives it on: a relay that
//     waits for its own source is not to blame. So the reader right below the slow uplink leaves,
//     and those below it stay. Of what it has received, kSegmentsInPassing count as on their way.
//  4. What is missing would take longer than kWorthLeaving to come from it.
//  5. Another source would give kFasterBy as much (WouldBeFaster).
// A reader leaves one source every kLeaveEvery at most. One that is no better off by what it next
// measures within kJudgedFor is slow itself (its own link, its own disk): it stays where it is for
// kReaderSlowLasts, and the source that it left is cleared.
#ifndef TH_SCHEDULER_SLOW_SOURCE_H_
#define TH_SCHEDULER_SLOW_SOURCE_H_

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace th {

inline constexpr double kSlowFraction = 0.4;  // below a half: two may share an uplink
inline constexpr double kFasterBy = 1.5;
// A reader that gets less than this of what others do, of a source that has more, may change places
// with its own readers: that costs less than leaving.
inline constexpr double kHeldBackFraction = 0.7;
// Shorter looks at a source say more about requests and segments than about its throughput.
inline constexpr absl::Duration kLeastWaited = absl::Milliseconds(150);
inline constexpr absl::Duration kWorthLeaving = absl::Milliseconds(300);
// A relay gives a segment on once it holds it whole, to who has heard of it and asks: at the start
// of a fill the readers of a long chain differ by about so many segments, without one being slow.
inline constexpr uint64_t kSegmentsInPassing = 3;
inline constexpr absl::Duration kLeaveEvery = absl::Seconds(2);
inline constexpr absl::Duration kJudgedFor = absl::Seconds(8);
inline constexpr absl::Duration kReaderSlowLasts = absl::Minutes(1);

// A throughput is known up to the segment under way: between its bounds, in bytes a second.
struct Throughput {
  double least = 0;
  double most = 0;
};
// The throughput of `bytes` that arrived in `waited`, and perhaps most of one segment more.
// `waited` is positive.
Throughput ThroughputOf(uint64_t bytes, uint64_t segment_bytes, absl::Duration waited);
// At which a relay whose segments arrive at `least` could give them on. `waited` is positive.
double PassingThroughput(double least, uint64_t segment_bytes, absl::Duration waited);

struct SlowSourceEvidence {
  double reader_most = 0;       // from all its sources together
  Throughput source;            // from this one
  absl::Duration waited;        // for this one, in the look that is judged
  uint32_t source_readers = 1;  // of the source's uplink, this one too
  // The best that comparable readers get; none: not known (yet).
  std::optional<double> comparable;
  bool source_whole = false;  // it holds everything
  std::optional<double>
      source_intake;           // its PassingThroughput, when it does not; none: not known (yet)
  uint64_t bytes_missing = 0;  // of the reader
};

enum class SourceVerdict : uint8_t {
  kKeep = 1,
  kUnknown = 2,  // look again when others have told their throughput
  kLeave = 3,    // if another would be faster
};
// `fraction`: of what comparable readers get, below which a reader is held back; at most
// kHeldBackFraction.
SourceVerdict JudgeSource(const SlowSourceEvidence& evidence, double fraction = kSlowFraction);

struct OtherSource {
  uint32_t readers = 0;  // of its uplink, without this one
  bool whole = false;
  std::optional<double> intake;  // as above
};
// Rule 5. What nobody knows about the other counts for it. `evidence.comparable` is known.
bool WouldBeFaster(const SlowSourceEvidence& evidence, const OtherSource& other);

}  // namespace th

#endif  // TH_SCHEDULER_SLOW_SOURCE_H_
