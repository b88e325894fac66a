// Checks what the server receives and sends against rules that its state alone cannot show.
//
// - A reader is not given a source that was told to drain or said that it has drained, that has
//   just failed it, or whose sums are known to differ from the version's.
// - Nor one that keeps nothing (a streaming reader).
// - No update is resolved to a version that a roll-back has withdrawn.
// - Nobody publishes into a lineage that its group has not been told of.
// - A worker whose stream is up is replaced only by a process that first joined after it, and
//   before its last join.
// - A live worker is put out only when another process has its rank or its lease has expired. A
//   membership that the server has forgotten has no lease to expire.
//
// The watch reports each broken rule to the cluster's checker. Not thread-safe.
#ifndef TH_SIMULATOR_SERVER_WATCH_H_
#define TH_SIMULATOR_SERVER_WATCH_H_

#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/messages.h"
#include "th/registry_state/registry_types.h"
#include "th/weights/digest.h"

namespace th {

class Cluster;
class SimulatedWorker;

class ServerWatch {
 public:
  explicit ServerWatch(Cluster* cluster) : cluster_(cluster) {}  // outlives it

  void Began();  // an epoch: forgets what belongs to the one before
  // The server's disk was replaced: it has forgotten every member that no epoch of `identity` has
  // confirmed.
  // What it learns again of `forgotten` is no news to those who join then.
  void LostWhatIsNotIn(const StateIdentity& identity, const DurableState& forgotten);
  // The server's verdict on a message.
  struct Outcome {
    bool refused = false;
    // It says that a source failed, and the server believes it. A report of an assignment that was
    // replaced since is not believed.
    bool source_failed = false;
  };
  // In the order in which the server hears and says it.
  void Heard(const SimulatedWorker& from, const WorkerMessage& message, Outcome outcome);
  void Said(const SimulatedWorker& to, const ServerMessage& message, const DurableState& durable);
  // The worker's membership is over, and it has not left.
  void JudgeEnd(const SimulatedWorker& worker) const;
  // Its stream stands, and the server says that another process has its rank.
  void JudgeReplaced(const SimulatedWorker& worker) const;

 private:
  struct OperationOf {
    const SimulatedWorker* worker;
    OperationKey key;
    friend auto operator<=>(const OperationOf&, const OperationOf&) = default;
  };
  struct BufferOf {
    const SimulatedWorker* worker;
    BufferId buffer;
    friend auto operator<=>(const BufferOf&, const BufferOf&) = default;
  };
  // A source, at one generation of its buffer, that failed a reader's update.
  struct Failure {
    OperationOf update;
    BufferAddress source;
    BufferGeneration generation;
    friend auto operator<=>(const Failure&, const Failure&) = default;
  };

  void NoteStart(const SimulatedWorker& from, const StartOperation& start);
  void NoteSources(const SimulatedWorker& from, const JoinRequest& join);
  void NoteHeld(const SimulatedWorker& from, const AnnouncedBuffer& announced);
  void NotePublished(const SimulatedWorker& worker, const OperationKey& publish);
  void NoteDrained(const SimulatedWorker& worker, const OperationKey& unpublish);
  void NoteEnd(const SimulatedWorker& to, const OperationFinished& finished);
  void BumpGroupGeneration(const SimulatedWorker& worker, GroupGeneration generation);
  void JudgeSources(const SimulatedWorker& to, const AssignSources& assigned);
  // True when the reader pulls from the source already, and may finish that.
  bool Pulls(const OperationOf& update, const AssignedSource& source) const;
  bool HasJustFailed(const OperationOf& update, const AssignedSource& source) const;
  bool HasOtherChecksums(const AssignedSource& source, VersionSequence version,
                         const Digest& layout) const;
  void JudgeResolved(const SimulatedWorker& to, const OperationResolved& resolved,
                     const DurableState& durable);
  void JudgeFinished(const SimulatedWorker& to, const OperationFinished& finished);
  void NoteLineageSent(const SimulatedWorker& to, Lineage lineage);
  void NoteJoined(const SimulatedWorker& to, const Joined& joined);
  void NoteHeard(const SimulatedWorker& from);
  // True when the server that runs remembers the worker and has not heard it for a lease.
  bool HasLapsed(const SimulatedWorker& worker) const;
  // True when another process of the same rank is alive, was started after `worker`, or has joined
  // after it did.
  bool HasRival(const SimulatedWorker& worker) const;

  Cluster* const cluster_;
  std::set<OperationOf> unpublishes_;  // that have not ended
  // Buffers that must not be assigned any more, each with the unpublish that it has drained for.
  std::map<BufferOf, OperationNumber> drained_;
  std::map<BufferOf, OperationNumber> published_;  // the last publish that its rank asked for
  std::map<Failure, absl::Time> failed_at_;
  // The generation of each source that was sent to a reader, until that operation ends.
  std::map<std::pair<OperationOf, BufferAddress>, BufferGeneration> assigned_;
  // Whom a reader named as the sources of a buffer when it joined in this epoch, until the
  // operation that fills it has ended.
  std::set<std::pair<BufferOf, BufferAddress>> resumed_;
  std::map<std::pair<VersionSequence, Digest>, Digest> roots_;           // by version and layout
  std::map<std::pair<BufferAddress, VersionSequence>, Digest> claimed_;  // of publishers
  std::map<const SimulatedWorker*, GroupGeneration> generations_;        // of its group, told last
  std::map<std::string, Lineage> reported_;                              // by group
  // The highest lineage that the server knew when it lost its state. Every process that joins for
  // the first time later counts as knowing it.
  Lineage forgotten_;
  // The members that the server remembers, each with the epoch that confirmed it last.
  std::map<const SimulatedWorker*, EpochId> members_;
  struct JoinedAt {
    absl::Time first, last;
  };
  std::map<const SimulatedWorker*, JoinedAt> joined_at_;
  std::map<const SimulatedWorker*, absl::Time> heard_at_;
  std::set<const SimulatedWorker*>
      lapsed_;  // have been silent for a lease, and not confirmed since
  // A server has told them that their lease is over, and it was. They may hear it once that server
  // has lost its state.
  std::set<const SimulatedWorker*> put_out_;
};

}  // namespace th

#endif  // TH_SIMULATOR_SERVER_WATCH_H_
