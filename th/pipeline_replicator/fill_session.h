// All decisions of one fill of one buffer: which assigned source is opened, at which of its
// endpoints, what is asked of it, when it is let finish, closed or given up; when everything is
// received, and whether the fill is complete, has failed or has stopped. The PipelineReplicator
// within decides about segments.
//
//   FillSession fill({.replicator = shard, .reach = what_transports_say}, limits, now);
//   fill.SetSources(assignment, sources, now);
//   fill.HandleAdmitted(source, now);  // and what else the pulls and the owner have to say
//   if (fill.PollChecksums(source, now)) AskSums(source);
//   while (auto range = fill.PollRequest(source, now)) Ask(source, *range);
//   while (auto output = fill.PollOutput(now)) Do(*output);  // after everything that happens
//   if (now >= fill.NextDeadline()) fill.HandleTick(now);
//
// A source is being opened, at one endpoint after the other while none answers; then admitted; then
// finishing (it sends what it has begun, because a newer assignment omits it) or closing; then
// closed, which only its pull can say. Each is a source of its own, even where it is the same
// buffer as one before.
//
// An output is decided on when it is polled: what was polled before Stop has happened. After Stop
// only sources are closed, and a first write that was not polled yet is still reported.
//
// Pure; not thread-safe: the owner serialises calls.
#ifndef TH_PIPELINE_REPLICATOR_FILL_SESSION_H_
#define TH_PIPELINE_REPLICATOR_FILL_SESSION_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "th/identifiers/identifiers.h"
#include "th/pipeline_replicator/pipeline_replicator.h"
#include "th/protocol/cost.h"
#include "th/protocol/messages.h"
#include "th/topology/location.h"
#include "th/weights/checksum.h"
#include "th/weights/digest.h"
#include "th/weights/segments.h"

namespace th {

// The most endpoints that one fill remembers as broken.
inline constexpr size_t kMaxBrokenEndpoints = 64;
// How often silence, progress and slow sources are looked at.
inline constexpr absl::Duration kFillTick = absl::Milliseconds(20);
// A tick that is later than this means that this process did not run: no source is blamed for it.
inline constexpr absl::Duration kLateFillTick = absl::Milliseconds(100);
inline constexpr absl::Duration kFillProgressInterval = absl::Milliseconds(50);
// While nothing arrives: how long sources have been waited for is news too.
inline constexpr absl::Duration kQuietFillProgressInterval = absl::Milliseconds(250);

// ---- outputs

// Open a pull from `source` at this endpoint of it. Answered by HandleAdmitted or HandleClosed.
struct OpenPull {
  SourceIndex source;
  Endpoint endpoint;
};
struct AskPull {
  SourceIndex source;
  SegmentRange range;
};
// Ask for the whole list of sums. Answered by HandleChecksums, as it becomes known there.
struct AskPullChecksums {
  SourceIndex source;
};
// Let it send what it has begun and no more; HandleClosed follows.
struct FinishPull {
  SourceIndex source;
};
// End it; HandleClosed follows.
struct ClosePull {
  SourceIndex source;
};
struct FillFirstWrite {};
// At most every kFillProgressInterval.
struct FillProgressed {
  SegmentSet held;
  uint64_t bytes_held = 0;
  std::vector<SourceThroughput> throughputs;  // of the sources in use, since each was opened
  TransportsUsed transports;                  // of all sources that are in use or have given bytes
};
// All received and checked; the sources are closed. Again after a list that was wrong.
struct FillReceived {};
// All received and checked, the root agrees. The fill stops by itself. No root where it receives
// but a part.
struct FillCompleted {
  Digest root;
};
// It cannot end well: the list was wrong too often, or the buffer's memory is lost. Nothing more
// happens until Stop.
struct FillFailed {
  absl::Status why;
};
struct FillSourceFailed {
  SourceIndex index;
  AssignmentId assignment;  // the newest that named it
  BufferAddress source;
  SourceFailure failure = SourceFailure::kClosed;
  std::string detail;
  Endpoint endpoint;  // where it was opened last; empty: none of its endpoints is within reach
};
// It sent a corrupt segment and stays in use; the segment waits for another source. SetSources with
// a newer assignment gives one, or says (naming this source alone) that there is none. Once a
// source.
struct FillSourceSuspected {
  AssignmentId assignment;
  BufferAddress source;
  std::string detail;
};
// Every source is closed, nothing is written any more. The last output.
struct FillStopped {};
using FillOutput = std::variant<OpenPull, AskPull, AskPullChecksums, FinishPull, ClosePull,
                                FillFirstWrite, FillProgressed, FillReceived, FillCompleted,
                                FillFailed, FillSourceFailed, FillSourceSuspected, FillStopped>;

// ---- what a fill came to

// One source's share of a fill, for results and the demo's table.
struct FillSourceReport {
  BufferAddress source;
  RankName name;
  std::string peer;       // "tcp 10.0.0.7:4711"; where it was opened last
  std::string transport;  // "tcp"
  // The endpoints before it, and why not over these. Empty: it was the first.
  std::vector<PassedOver> passed_over;
  uint64_t bytes = 0;             // accepted
  uint32_t corrupt_segments = 0;  // any: the source is suspected; too many: it has failed
  absl::Duration active;          // from the first to the last byte
  absl::Duration waited;          // something asked of it was outstanding
  bool failed = false;
  std::string failure;
  bool replaced = false;  // let go for the sources of a newer assignment
  Distance distance = Distance::kSameSite;
  bool publisher = false;  // not a relay
};
struct FillStatus {
  SegmentSet held;
  uint64_t bytes_held = 0;
  uint64_t bytes_unchanged = 0;  // of these: they were there before, and were not moved
  uint64_t corrupt_segments = 0;
  uint32_t reroutes = 0;        // sources that were lost or replaced while bytes were missing
  uint64_t rerouted_bytes = 0;  // accepted after the first re-route
  // Received and thrown away, so received again: segments that another source had brought meanwhile
  // and those with a wrong sum; and, as the owner of the pulls knows, the part of a segment that
  // had come when its source was closed.
  uint64_t reread_bytes = 0;
  // Received beside the segments and thrown away: what lies between tensors of a source that are
  // read together. The owner knows it.
  uint64_t packing_overhead_bytes = 0;
  // The most that the fill has held outside of its destination at one time; the owner knows it.
  uint64_t peak_extra_bytes = 0;
  std::vector<FillSourceReport> sources;  // in the order of their assignment
};

class FillSession {
 public:
  struct Spec {
    PipelineReplicator::Spec replicator;
    // Says if an endpoint can be opened here: OK, or why not. OUT_OF_RANGE: its transport does not
    // lead there or is not chosen; other codes: it should, and something is amiss. Pure: the same
    // answer each time.
    std::function<absl::Status(const Endpoint&)> reach;
    // A source is read over the first of its transports that leads there (that `reach` does not
    // find OUT_OF_RANGE at all its endpoints), or lost with the reason, rather than read over the
    // next one.
    bool strict_transport = false;
    // The names of the transports over which a GPU of this process fetches the bytes.
    std::set<std::string> device_transports;
    std::optional<Digest> root;
  };
  enum class SourceState : uint8_t { kOpening, kAdmitted, kFinishing, kClosing, kClosed };

  FillSession(Spec spec, ReplicatorLimits limits, absl::Time now);

  // ---- the owner
  // Sources that are in use already and are named again go on undisturbed. Others are let go
  // softly: nothing new is asked of them, what they have begun to send is taken, for
  // ReplicatorLimits::graceful_switch at most; the rest is asked of the new ones.
  void SetSources(AssignmentId assignment, std::vector<AssignedSource> sources, absl::Time now);
  void SetRoot(const Digest& root);
  // Everything wanted before `end` was handed on, and its room is free. With a window only.
  void HandleConsumed(SegmentIndex end);
  // Closes all sources; FillStopped follows when they are. Idempotent.
  void Stop();

  // ---- the pulls, each by the number that OpenPull gave
  // `lists_checksums`: it answers AskPullChecksums.
  void HandleAdmitted(SourceIndex index, absl::Time now, bool lists_checksums = false);
  // The next sums of its list, in canonical order.
  void HandleChecksums(SourceIndex index, SegmentIndex first,
                       absl::Span<const SegmentChecksum> checksums, absl::Time now);
  // True: the bytes of `segment`, which come next, may be written. False: they are thrown away.
  bool BeginSegment(SourceIndex index, SegmentIndex segment, absl::Time now);
  // All of them have landed.
  PipelineReplicator::SegmentVerdict HandleSegment(SourceIndex index, SegmentIndex segment,
                                                   SegmentChecksum sent, SegmentChecksum computed,
                                                   absl::Time now);
  // The same in two steps, where the bytes have to go on from where they landed (into a GPU's
  // memory): they have landed, and no longer need their source; then HandleSegment, once they are
  // in the buffer or have been found wrong, also after HandleClosed. FillStopped waits for it.
  // False: the segment was not begun, and HandleSegment must not follow.
  bool HandleLanded(SourceIndex index, SegmentIndex segment, absl::Time now);
  // A landed segment is given up, because the fill is being stopped.
  void HandleLandedDropped() { --under_way_, undecided_ = true; }
  // A landed segment could not be brought into the buffer, whose memory is lost. The fill fails.
  void HandleLandedLost(absl::Status why);
  // The same of none in particular.
  void HandleBufferLost(absl::Status why);
  // There is no place where `segment`, which comes next, could land: its bytes are thrown away, and
  // it is asked for again. Nothing is asked for before HandleRoom.
  void HandleNoRoom(SourceIndex index, SegmentIndex segment, absl::Time now);
  void HandleRoom();
  void HandleAlive(SourceIndex index, absl::Time now);
  // The pull is dead: nothing of it touches the buffer any more.
  void HandleClosed(SourceIndex index, SourceFailure failure, std::string detail);
  void HandleTick(absl::Time now);

  // ---- what to do
  // What to ask of the source next: the list of sums, then segments. To be polled after each event
  // of a source; what time, or the end of another source, makes possible comes as AskPullChecksums
  // and AskPull.
  bool PollChecksums(SourceIndex index, absl::Time now);
  std::optional<SegmentRange> PollRequest(SourceIndex index, absl::Time now);
  // True once after the list of sums was found wrong: what is served must be forgotten before
  // anything else happens, also the segment that was accepted just now. After HandleSegment,
  // HandleChecksums and SetRoot, and at the beginning.
  bool PollStartedOver();
  // Segments that are held now without having been moved, each once. After the same, and after
  // PollStartedOver.
  SegmentSet TakeUnchanged() { return replicator_.TakeUnchanged(); }
  // Sums that readers of this buffer may be told, each once. After TakeUnchanged; valid until the
  // next call.
  PipelineReplicator::ListedChecksums TakeListed() { return replicator_.TakeListed(); }
  std::optional<FillOutput> PollOutput(absl::Time now);
  // PollOutput may have something. False after most segments.
  bool has_output() const { return !outputs_.empty() || undecided_ || ask_all_; }
  // When HandleTick is due; InfiniteFuture while nothing depends on time.
  absl::Time NextDeadline() const { return tick_at_; }

  // ---- state
  const SegmentSet& held() const { return replicator_.held(); }
  // The sum of a held segment.
  SegmentChecksum ChecksumOf(SegmentIndex segment) const { return replicator_.ChecksumOf(segment); }
  const std::vector<SegmentChecksum>& checksums() const {
    return replicator_.checksums();
  }  // by segment
  bool wrote() const { return wrote_; }
  bool stopping() const { return life_ != Life::kRunning; }  // or stopped
  bool completed() const { return stage_ == Stage::kComplete; }
  // Segments are missing (or the list of sums, where the end waits for it), and sources could bring
  // them.
  bool lacks_segments() const;
  bool has_source() const;  // one that is opened or admitted
  SourceState state(SourceIndex index) const { return sources_[index.value].state; }
  const AssignedSource& assigned(SourceIndex index) const { return sources_[index.value].assigned; }
  FillStatus status(absl::Time now) const;

 private:
  struct Source {
    SourceIndex index;
    AssignedSource assigned;
    AssignmentId assignment;
    SourceState state = SourceState::kClosed;
    size_t next_endpoint = 0;
    Endpoint endpoint;                    // opened last
    std::vector<PassedOver> passed_over;  // those before it, which are not used
    // Where transports are strict: the first endpoint that should lead there and does not. No other
    // transport is used.
    std::optional<PassedOver> missed;
    bool replaced = false;
    bool failed = false;
    std::string failure;
    absl::Time first_byte = absl::InfiniteFuture();
    absl::Time last_byte = absl::InfinitePast();

    bool in_use() const {
      return state == SourceState::kOpening || state == SourceState::kAdmitted;
    }
  };
  enum class Stage : uint8_t { kFilling, kReceived, kComplete, kFailed };
  enum class Life : uint8_t { kRunning, kStopping, kStopped };

  SourceReach ReachOf(const Source& source) const;
  Source* FindInUse(const AssignedSource& wanted);
  void OpenAssigned(absl::Time now);
  bool OpenNextEndpoint(Source& source);
  static std::string WhyNoneIsOpened(const Source& source);
  bool MayTryElsewhere(const Source& source, SourceFailure failure) const;
  bool GoOnElsewhere(Source& source, const std::string& detail);
  void PutBrokenLast(Source& source) const;
  void NoteBroken(const Endpoint& endpoint, const std::string& detail);
  const std::string* WhyBroken(const Endpoint& endpoint) const;
  void Detach(Source& source, absl::Time now);
  void Close(Source& source);
  void CloseAll();
  void Fail(Source& source, SourceFailure failure, std::string detail);
  void CountReroute();
  bool any_open() const;
  // How often sources may be needed again after everything was received.
  uint32_t rounds() const { return replicator_.rounds_restarted() + replicator_.lists_rejected(); }
  bool StartedOver() const { return rounds_opened_ != rounds(); }

  void Decide(absl::Time now);
  void ReportLost(absl::Time now);
  void ReportSuspected();
  void ReportProgress(absl::Time now);
  void AskAll(absl::Time now);
  std::vector<SourceThroughput> Throughputs(absl::Time now) const;
  TransportsUsed Transports() const;

  const std::function<absl::Status(const Endpoint&)> reach_;
  const bool strict_transport_;
  const std::set<std::string> device_transports_;
  const absl::Time began_at_;
  PipelineReplicator replicator_;
  std::optional<Digest> root_;
  AssignmentId assignment_;
  std::vector<AssignedSource> assigned_;  // but for those that have failed since
  std::deque<Source> sources_;            // by index; closed ones stay
  // Endpoints that did not connect in this fill, or whose path broke, with the reason; the newest
  // last. They are tried after a source's others.
  struct BrokenEndpoint {
    Endpoint endpoint;
    std::string why;
  };
  std::deque<BrokenEndpoint> broken_;  // at most kMaxBrokenEndpoints
  std::deque<FillOutput> outputs_;
  Stage stage_ = Stage::kFilling;
  Life life_ = Life::kRunning;
  bool wrote_ = false;
  uint64_t under_way_ = 0;  // segments that have landed and are not in the buffer yet
  std::optional<absl::Status> buffer_lost_;  // and not told yet
  bool undecided_ = true;          // Decide may find something: a resumed fill may have everything
  bool no_room_ = false;           // since HandleNoRoom
  bool ask_all_ = false;           // more than one source may have something to be asked
  uint32_t rounds_forgotten_ = 0;  // started over, as PollStartedOver has said
  uint32_t rounds_opened_ = 0;     // and for which sources were opened again
  uint32_t reroutes_ = 0;
  uint64_t rerouted_bytes_ = 0;
  uint64_t discarded_bytes_ = 0;  // of whole segments
  absl::Time tick_at_ = absl::InfiniteFuture();
  absl::Time progress_at_;
  uint64_t progress_bytes_ = 0;
};

}  // namespace th

#endif  // TH_PIPELINE_REPLICATOR_FILL_SESSION_H_
