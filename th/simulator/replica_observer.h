// Looks at a registry from outside and notes which cells of the replicas' table
// (docs/protocol/registry.md) a run has been in: which event found a replica in which phase. Of
// every group the replica of its callers' buffer; copies are let be.
//
// Not thread-safe.
#ifndef TH_SIMULATOR_REPLICA_OBSERVER_H_
#define TH_SIMULATOR_REPLICA_OBSERVER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/messages.h"
#include "th/reference_registry/registry.h"
#include "th/simulator/transition_coverage.h"
#include "th/topology/location.h"

namespace th {

class ReplicaObserver {
 public:
  // It outlives this. Null: nothing is observed.
  explicit ReplicaObserver(TransitionCoverage* coverage) : coverage_(coverage) {}

  // A rank that says something about a buffer. The names outlive the observer.
  struct Rank {
    const ModelKey* model = nullptr;
    const RankName* name = nullptr;
    uint32_t ranks = 1;
    std::string buffer_name;
    BufferId buffer;
  };
  using Run = absl::FunctionRef<RegistryEffects()>;
  // Around the registry's HandleMessage.
  RegistryEffects Watch(const Registry& registry, absl::FunctionRef<Rank()> who,
                        const WorkerMessage& message, Run run);
  // Around its HandleTick.
  using GroupOf = absl::FunctionRef<std::string(ConnectionId)>;  // empty: nobody's
  RegistryEffects WatchTick(const Registry& registry, GroupOf group_of, Run run);

 private:
  // An operation of a group, as its ranks number it.
  using Operation = std::tuple<std::string, uint64_t, OperationNumber>;
  absl::string_view EventOf(const Rank& rank, const WorkerMessage& message);
  bool IsLast(std::map<Operation, std::set<uint32_t>>* said, const Rank& rank,
              OperationNumber number);
  void Take(absl::string_view event, absl::string_view phase);

  TransitionCoverage* const coverage_;
  std::map<std::string, Rank> one_of_;  // by group: somebody to ask for its replica's phase
  std::map<std::string, uint64_t> generations_;
  std::map<Operation, std::set<uint32_t>> asked_, done_;  // by which ranks
};

}  // namespace th

#endif  // TH_SIMULATOR_REPLICA_OBSERVER_H_
