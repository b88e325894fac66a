// One process of a World: a worker session, one buffer, and a data plane in memory.
#ifndef TH_WORKER_SESSION_WORLD_NODE_H_
#define TH_WORKER_SESSION_WORLD_NODE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/reference_registry/registry.h"
#include "th/worker_session/worker_session.h"

namespace th {

class World;

inline constexpr uint64_t kWorldSegments = 16;

class WorldNode {
 public:
  WorldNode(World* world, SessionOptions options, int layout);

  // ---- the caller's part. Each begins a call; `done` has its end.
  CallId Publish(const std::string& label);  // writes the label's content first
  CallId Update(const VersionSelector& selector = LatestVersion{},
                absl::Duration timeout = absl::Seconds(60));
  CallId Unpublish();
  CallId Command(RunCommand command);

  const RankName& name() const { return name_; }
  BufferId buffer() const { return buffer_; }
  BufferState state() const { return session.buffer_state(buffer_); }
  // The label whose content every segment has; empty: none.
  std::string held_content(const std::vector<std::string>& labels) const;
  bool Holds(const std::string& label) const;
  double held_fraction() const;
  const std::map<std::string, int>& segments_from() const { return segments_from_; }
  int torn_segments() const { return torn_segments_; }
  int sources_lost() const { return sources_lost_; }
  int corrupt_segments() const { return corrupt_segments_; }
  // The next copy of `segment` that this node sends has a bit flipped on its way.
  void FlipNext(uint64_t segment) { flips_.insert(segment); }

  WorkerSession session;
  std::map<CallId, OperationDone> done;
  std::map<CallId, CommandFinished> commands;
  std::vector<PublicationLost> lost_publications;
  std::optional<SessionEnded> ended;
  std::vector<absl::Status> refusals;  // of verbs

  // ---- for the world
  void Start();
  void Drain();  // carries out what the session asks
  bool alive = true;
  bool stopped = false;
  std::vector<std::function<void()>> backlog;  // what came while it was stopped
  std::optional<ConnectionId> stream;
  bool opening = false;
  // Everything that reads from it, and everything it reads from, as seen when it dies.
  void BreakTransfers();

 private:
  struct Transfer {  // of ours, from one source
    TransferId id;
    AssignmentId assignment;
    bool open = false;
    absl::Time heard;
    std::optional<uint64_t> asked;  // segment
  };
  struct Fill {
    OperationKey key;
    VersionInfo version;
    SegmentSet held;
    std::optional<Digest> root;
    std::map<BufferAddress, Transfer> transfers;
    std::map<BufferAddress, SegmentSet>
        corrupt;  // not asked of it again while there may be another
    bool wrote = false;
    bool received = false;
    bool complete = false;
  };
  struct Served {  // of a reader's
    WorldNode* reader = nullptr;
    BufferAddress source;  // as the reader names it
    VersionSequence version;
  };

  void Do(const SessionOutput& output);
  void Begin(const StartFill& start);
  void SetSourcesOf(const SetSources& set);
  void CloseTransfer(BufferAddress source);
  void EndFill();
  void Seal(const StartSealing& sealing);

  // The reader's side.
  void Open(const AssignedSource& source, AssignmentId assignment);
  void Opened(BufferAddress source, TransferId id, absl::Status status);
  void AskNext(const BufferAddress& source);
  void Arrived(BufferAddress source, TransferId id, uint64_t segment, uint64_t value, uint64_t sum,
               const std::string& from);
  void Suspect(const BufferAddress& source, uint64_t segment);
  void KeptAlive(BufferAddress source, TransferId id);
  void Watch(BufferAddress source, TransferId id);
  void Lose(BufferAddress source, TransferId id, SourceFailure failure, const std::string& detail);
  void CheckComplete();
  Transfer* FindTransfer(const BufferAddress& source, TransferId transfer);

  // The source's side.
  void Asked(WorldNode* reader, BufferAddress as, TransferId transfer, Capability capability,
             BufferGeneration generation);
  void Decided(const AdmissionDecided& decided);
  void Serve(TransferId transfer, uint64_t segment);
  void ReaderGone(TransferId transfer);
  bool Readable(uint64_t segment) const;

  Digest RootOfSegments() const;

  World* world_;  // outlives the node
  RankName name_;
  int layout_;
  BufferId buffer_;
  uint64_t calls_ = 0;
  std::vector<uint64_t> segments_ = std::vector<uint64_t>(kWorldSegments, 0);
  std::optional<Fill> fill_;
  SegmentSet checked_;  // of what an undefined buffer holds
  std::map<TransferId, Served> asking_;
  std::map<TransferId, Served> serving_;
  std::map<std::string, int> segments_from_;
  int torn_segments_ = 0;
  int sources_lost_ = 0;
  int corrupt_segments_ = 0;
  std::set<uint64_t> flips_;
};

}  // namespace th

#endif  // TH_WORKER_SESSION_WORLD_NODE_H_
