// Watches what a server hears and says, from outside: rules of its answers that no look at its
// state shows.
//
// - A reader is not given a source that drains, that has just failed it, or whose sums are known to
//   differ from the version's.
// - No answer names a version that a roll-back has withdrawn.
// - Nobody publishes into a lineage that its group has not been told of.
//
// What is broken is told to the cluster's judge. Not thread-safe.
#ifndef TH_SIMULATOR_SERVER_WATCH_H_
#define TH_SIMULATOR_SERVER_WATCH_H_

#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/reference_registry/registry.h"
#include "th/weights/digest.h"
#include "th/weights/identifiers.h"

namespace th {

class Cluster;
class SimulatedWorker;

class ServerWatch {
 public:
  explicit ServerWatch(Cluster* cluster) : cluster_(cluster) {}  // outlives it

  void Began();  // a reign
  // In the order in which the server hears and says it. `source_failed`: the message says that a
  // source failed, and the server believes it; a report of an assignment that it has replaced since
  // is refused.
  void Heard(const SimulatedWorker& from, const WorkerMessage& message, bool source_failed);
  void Said(const SimulatedWorker& to, const ServerMessage& message, const Registry& registry,
            const DurableState& durable);

 private:
  void NoteSources(const SimulatedWorker& from, const JoinRequest& join);
  void JudgeSources(const SimulatedWorker& to, const AssignSources& assigned,
                    const Registry& registry);
  void JudgeVersion(const SimulatedWorker& to, const VersionInfo& version,
                    const DurableState& durable);
  void JudgeFinished(const SimulatedWorker& to, const OperationFinished& finished,
                     const DurableState& durable);
  void Tell(const SimulatedWorker& to, Lineage lineage);

  Cluster* const cluster_;
  using OperationOf = std::pair<const SimulatedWorker*, OperationKey>;
  using Failure = std::pair<OperationOf, std::pair<BufferAddress, BufferGeneration>>;
  std::map<Failure, absl::Time> failed_at_;
  // Which generation a reader was told of, of each source, in an operation that goes on.
  std::map<std::pair<OperationOf, BufferAddress>, BufferGeneration> assigned_;
  // Whom a reader named as the sources of a buffer when it joined in this reign, until the
  // operation that fills it has ended.
  std::set<std::pair<std::pair<const SimulatedWorker*, BufferId>, BufferAddress>> resumed_;
  std::map<std::pair<VersionSequence, Digest>, Digest> roots_;           // by version and layout
  std::map<std::pair<BufferAddress, VersionSequence>, Digest> claimed_;  // of publishers
  std::map<std::string, Lineage> told_;                                  // by group
};

}  // namespace th

#endif  // TH_SIMULATOR_SERVER_WATCH_H_
