// One shard on its way into one buffer, and on to others: what is received and checked, what to ask
// from which source next, what may be served to readers, how it resumes after a source is lost.
//
//   PipelineReplicator fill({.segment_count = n, .segment_bytes = b, .total_bytes = t}, limits);
//   fill.AddSource(SourceIndex(0), now);
//   while (auto request = fill.PollRequest(SourceIndex(0), now)) Send(*request);  // windowed
//   // bytes come
//   if (!fill.BeginSegment(source, index)) fill.HandleDiscarded(source, index, now);
//   // bytes landed, where they are to stay
//   switch (fill.HandleSegment(source, index, sum_received, sum_computed, now)) ...
//   // or on their way there (into a GPU's memory), and later in place
//   fill.HandleLanded(source, index, now);
//   switch (fill.HandleSegment(source, index, sum_received, sum_computed, now)) ...
//   // all checked and the root agrees
//   if (fill.complete()) ...
//
// States of a segment: missing -> requested (of one source) -> being written -> received and
// checked; between the last two it may have landed, which needs its source no more. A segment whose
// sum does not match goes back to missing and is asked from another source; while there is none it
// waits for one, for another_source_wait at most, and is then asked from the same. Only one source
// writes a segment at a time, and none writes one that is held.
//
// The list of the version's sums is asked of one source beside the bytes. A list that agrees with
// the root is the authority from then on: what is received is compared with it, what was received
// before too, and a segment whose listed sum is that of the bytes that the buffer has from before
// is held without being moved. Where there are such bytes they are not asked for before the list
// has told about them.
//
// Pure; not thread-safe: the owner serialises calls.
#ifndef TH_PIPELINE_REPLICATOR_PIPELINE_REPLICATOR_H_
#define TH_PIPELINE_REPLICATOR_PIPELINE_REPLICATOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/identifiers/identifiers.h"
#include "th/pipeline_replicator/checksum_list.h"
#include "th/weights/checksum.h"
#include "th/weights/digest.h"
#include "th/weights/segments.h"

namespace th {

struct ReplicatorLimits {
  // The size of one pull request: at most so many bytes and segments, and at least one segment.
  // Sources take so many open segments of a reader (ServingLimits::max_segments_queued):
  // far_requests_in_flight, or device_requests_in_flight, of these.
  uint64_t request_bytes = uint64_t{4} << 20;
  uint64_t request_segments = 128;
  // Requests in flight at one source at first; each answer allows one more, up to the most for its
  // reach. A second source usually comes a moment after the first: had the first been asked for all
  // by then, the two would send ranges far apart, and a reader that relays them in order would get
  // half of the rate. What another source has given back, and lies below what is asked already, is
  // asked for at once, up to that most: whoever reads from this reader waits for that.
  uint32_t requests_at_first = 1;
  uint32_t requests_in_flight = 4;
  // At a source of another site, from the start: 128 MiB carry 10 Gbit/s over a round trip of
  // 100 ms, the 16 MiB of a near source 1.3 Gbit/s.
  uint32_t far_requests_in_flight = 32;
  // At a source whose bytes a GPU of this process fetches: so many of request_bytes, and where
  // segments are larger as many bytes, but at least requests_in_flight requests. Some 0.3 ms pass
  // between a request and the word that its bytes have landed (docs/benchmarks/gpu.md), in which
  // NVLink moves 128 MiB.
  uint32_t device_requests_in_flight = 32;
  // A source that has sent neither segment nor keep-alive for this long is lost.
  absl::Duration silence = absl::Milliseconds(400);
  // A source is given up with this many segments that failed their sum.
  uint32_t corrupt_segments_per_source = 2;
  // How long a segment that failed its sum waits for another source before the same one is asked
  // again. The owner's word that there is no other ends the wait (AllowAgain).
  absl::Duration another_source_wait = absl::Seconds(1);
  // Rounds of starting over after the root disagreed with what was received, and lists of sums that
  // disagreed with it.
  uint32_t root_mismatches = 2;
  // How long bytes that the buffer may have from before wait for the next sums of the list. Later
  // they are asked for: a list that comes slowly must not cost more than it saves.
  absl::Duration list_patience = absl::Milliseconds(500);
  // How long a source may sit on a request before an idle, faster one is asked for the same (the
  // tail).
  absl::Duration tail_patience = absl::Milliseconds(50);
  // How long a detached source may take to send what it has begun.
  absl::Duration graceful_switch = absl::Seconds(1);
};

// How the bytes of a source come, which decides how much is asked of it at once.
enum class SourceReach : uint8_t {
  kNear,
  kOtherSite,
  kDevice,  // a GPU of this process fetches them
};

class PipelineReplicator {
 public:
  struct Spec {
    uint64_t segment_count = 0;
    uint64_t segment_bytes = 0;
    uint64_t total_bytes = 0;
    bool checksums = true;    // false: sums are not compared and no root is awaited
    SegmentSet already_held;  // checked before (a resumed fill), with their sums
    std::vector<SegmentChecksum> held_checksums;  // by segment; empty or segment_count long
    // Sums of the bytes that the buffer has from before the fill, by segment, and the segments
    // whose sums are known. Nobody but this fill has written them since.
    SegmentSet before;
    std::vector<SegmentChecksum> before_checksums;
    // The segments that are received at all; none: everything. A part is compared with the list of
    // sums, and that with the root. Where no source gives the list the segments' own sums have to
    // suffice.
    std::optional<SegmentSet> wanted;
    // The fill hands on what it receives, in canonical order, and keeps this many segments at a
    // time (HandleConsumed makes room). 0: it keeps all.
    uint64_t window_segments = 0;
  };
  PipelineReplicator(Spec spec, ReplicatorLimits limits);
  ~PipelineReplicator();

  // A source leaves in one of three ways:
  //   DetachSource  asks nothing more of it; what was asked of it stays its own. The owner has it
  //                 send no more than it has begun. PollLost names it once it owes nothing, is
  //                 silent, or graceful_switch is over.
  //   RetireSource  gives what was asked of it to the others; what it is writing stays its own.
  //   RemoveSource  gives that back too. Call it once it can write the buffer no more.
  // `lists_checksums`: the source answers a request for the list of sums.
  void AddSource(SourceIndex source, absl::Time now, SourceReach reach = SourceReach::kNear,
                 bool lists_checksums = false);
  void DetachSource(SourceIndex source, absl::Time now);
  void RetireSource(SourceIndex source);
  void RemoveSource(SourceIndex source);

  // True when this source is to be asked for the whole list of sums now. Poll before PollRequest.
  bool PollChecksums(SourceIndex source, absl::Time now);
  // The next sums of the list from `source`, in canonical order.
  void HandleChecksums(SourceIndex source, SegmentIndex first,
                       absl::Span<const SegmentChecksum> checksums, absl::Time now);
  // Segments that are held now because the buffer had their bytes before; each is told once. After
  // HandleChecksums and HandleRoot, and whenever the fill has started over.
  SegmentSet TakeUnchanged() { return std::exchange(unchanged_, SegmentSet()); }
  // Sums of the list that may be told to readers of this buffer: of a checked list, and as long as
  // no root is known of any. Each is told once, in order. Valid until the next call.
  struct ListedChecksums {
    SegmentIndex first;
    absl::Span<const SegmentChecksum> checksums;
  };
  ListedChecksums TakeListed();

  struct Request {
    SegmentRange range;
  };
  // The next pull request for this source, while its window has room and something is missing.
  // Ranges come in canonical order; several sources get disjoint ones. When nothing is missing but
  // requested ranges of a slower source remain, a faster one may ask for them too (the tail).
  // Time alone may make something more to be asked (another_source_wait, the tail): poll again.
  std::optional<Request> PollRequest(SourceIndex source, absl::Time now);
  // Everything wanted before `segment` has been handed on, and its room is free. With a window
  // only.
  void HandleConsumed(SegmentIndex segment);
  // Nobody else can serve: what was corrupt from `source` may be asked of it again at once.
  void AllowAgain(SourceIndex source);

  enum class SegmentVerdict : uint8_t {
    kAccepted,    // counted; may be served on
    kDuplicate,   // held already: nothing changes (the bytes were equal, both matched their sums)
    kCorrupt,     // not what its sum, or the checked list, says: asked again, elsewhere where
                  // possible; the source is suspected
    kUnexpected,  // not asked from this source: the owner drops the source
  };
  // True when the bytes of `segment` from `source` may be written into the buffer now: it was
  // asked, is not held yet (a held segment is being served and must not be written again), and no
  // other source is writing it.
  bool WantsSegment(SourceIndex source, SegmentIndex segment) const;
  // The same, and takes the segment for `source` until HandleSegment or RemoveSource.
  bool BeginSegment(SourceIndex source, SegmentIndex segment);
  // `source` answered a request, but the bytes were thrown away because they were not wanted. False
  // when it was not even asked: the owner drops the source.
  bool HandleDiscarded(SourceIndex source, SegmentIndex segment, absl::Time now);
  SegmentVerdict HandleSegment(SourceIndex source, SegmentIndex segment, SegmentChecksum sent,
                               SegmentChecksum computed, absl::Time now);
  // All bytes of a segment that was begun are here and no longer depend on `source`, but not yet in
  // the buffer. HandleSegment follows with the verdict, also after the source has been removed. Up
  // to then they count as being asked of the source, as far as its window goes. False: it was not
  // begun.
  bool HandleLanded(SourceIndex source, SegmentIndex segment, absl::Time now);
  uint64_t landed() const { return landed_.size(); }
  // Part of a segment arrived, or the source said that it waits for its own upstream.
  void HandleAlive(SourceIndex source, absl::Time now);
  // This process itself did not run for so long (stopped, starved): no source is blamed for that.
  void HandlePause(absl::Duration pause);

  // The authority's root. A list that disagrees starts the fill over (bounded): nothing is held. A
  // fill with a window cannot start over: it fails.
  void HandleRoot(const Digest& root);
  // How often the fill started over. The owner forgets what it serves whenever this rises.
  uint32_t rounds_restarted() const { return root_mismatches_; }
  // How often a list of sums disagreed with the root. The next source is asked for its own.
  uint32_t lists_rejected() const { return list_mismatches_; }

  // Sources that are lost by now, or were let go and are done: silent, or with too many corrupt
  // segments, the one whose list of sums disagreed with the root, or the only one behind segments
  // that did (these two possibly removed before). Each is told once and is retired by that; the
  // owner closes and removes it.
  struct LostSource {
    SourceIndex source;
    bool corrupt = false;
    absl::Duration silent_for;
    bool detached = false;  // before: no failure, it is closed and that is all
    friend bool operator==(const LostSource&, const LostSource&) = default;
  };
  std::vector<LostSource> PollLost(absl::Time now);
  // Sources that have sent a corrupt segment and are not lost for it, each told once: the owner
  // asks for another source, and the next reader should have another too.
  struct Suspicion {
    SourceIndex source;
    SegmentIndex segment;
    friend bool operator==(const Suspicion&, const Suspicion&) = default;
  };
  std::vector<Suspicion> PollSuspected();
  // When PollLost has something to tell, if nothing else happens.
  absl::Time NextDeadline() const;

  const SegmentSet& held() const { return held_; }
  // The list of sums counts too for a part, if it can be had.
  bool all_received() const;
  // All received and, with checksums, the root known and in agreement.
  bool complete() const;
  bool receives_a_part() const { return !unwanted_.empty(); }
  // The list was wrong too often. The fill cannot end well.
  bool failed() const;
  uint64_t bytes_held() const { return bytes_held_; }
  // Those of the held bytes that were not moved.
  uint64_t bytes_unchanged() const { return bytes_unchanged_; }
  uint64_t corrupt_segments() const { return corrupt_segments_; }
  uint64_t bytes_from(SourceIndex source) const;    // accepted; kept after the source is gone
  uint32_t corrupt_from(SourceIndex source) const;  // likewise
  // For how long, in all, the source had something to answer; kept after it is gone. bytes_from
  // divided by this is its throughput while this fill waited for it.
  absl::Duration waited_for(SourceIndex source, absl::Time now) const;
  uint64_t LengthOf(SegmentIndex segment) const;  // bytes
  // The sum of a held segment, as the publisher made it: the listed one, or that which came along.
  SegmentChecksum ChecksumOf(SegmentIndex segment) const { return checksums_[segment.value]; }
  const std::vector<SegmentChecksum>& checksums() const { return checksums_; }

 private:
  struct Source;
  struct Account {
    uint64_t bytes = 0;
    uint32_t corrupt_segments = 0;
    absl::Duration waited;  // up to when nothing asked of it was outstanding for the last time
  };

  Source* Find(SourceIndex source);
  const Source* Find(SourceIndex source) const;
  void MoveWindow(SegmentIndex begin);
  uint64_t SegmentsPerRequest() const;
  uint32_t MaxRequestWindow(const Source& source) const;
  uint32_t RequestWindow(const Source& source) const;
  // The segments that `source` must not be asked for now: asked or being written elsewhere, or bad
  // from here.
  SegmentSet SkipFor(const Source& source, absl::Time now) const;
  bool CanComeFromAnother(const Source& source, SegmentIndex segment) const;
  SegmentRange TailRange(const Source& helper, absl::Time now) const;
  SegmentRange RangeToTakeOver(const Source& slow) const;
  double SecondsToFinish(const Source& source, absl::Time now) const;
  bool TakingOverHelps(const Source& helper, const Source& slow, absl::Time now) const;
  void Accept(SourceIndex source, SegmentIndex segment, SegmentChecksum checksum);
  uint64_t RequestsLanded(SourceIndex source) const;
  void Hold(SegmentIndex segment, SegmentChecksum checksum);
  bool GivesList(const Source& source) const;
  bool WantsList() const;
  bool ListMayCome() const;
  bool AwaitsList(absl::Time now) const;
  void LoseList(Source& source);
  void CheckList();
  void RejectList();
  void Blame(SourceIndex source);
  bool HoldsOnlyListed() const;
  void HoldUnchanged(SegmentRange listed);
  void CountCorrupt(SourceIndex source, SegmentIndex segment, absl::Time now);
  bool Answer(Source& source, SegmentIndex segment, absl::Time now);
  void CheckRoot();
  void StartOver();

  const Spec spec_;
  const ReplicatorLimits limits_;
  const SegmentSet unwanted_;
  uint64_t missing_ = 0;     // wanted and not held
  SegmentIndex window_end_;  // nothing from here on is asked for yet
  SegmentSet held_;
  std::vector<SegmentChecksum> checksums_;
  uint64_t bytes_held_ = 0;
  std::map<SourceIndex, std::unique_ptr<Source>> sources_;
  std::map<SegmentIndex, SourceIndex> landed_;
  std::map<SourceIndex, Account> accounts_;
  uint64_t corrupt_segments_ = 0;
  std::optional<Digest> root_;
  bool agreed_ = false;
  uint32_t root_mismatches_ = 0;
  // The sources of the held list: they name the culprit when there was only one.
  std::set<SourceIndex> contributors_;
  bool resumed_ = false;
  std::vector<SourceIndex> culprits_;  // not told yet

  ChecksumList list_;
  SegmentSet before_;     // bytes from before that the list has not told about
  SegmentSet unchanged_;  // held by it, and not told yet
  uint64_t bytes_unchanged_ = 0;
  uint64_t listed_taken_ = 0;                          // sums that TakeListed has told
  bool list_used_ = false;                             // by TakeListed, or to hold something
  bool list_was_offered_ = false;                      // there was a source that gives it
  absl::Time list_heard_at_ = absl::InfiniteFuture();  // or asked; the future: not yet
  uint32_t list_mismatches_ = 0;
};

}  // namespace th

#endif  // TH_PIPELINE_REPLICATOR_PIPELINE_REPLICATOR_H_
