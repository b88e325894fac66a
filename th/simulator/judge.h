// What must hold whatever happens: the cluster tells the judge what it sees, and the judge keeps
// the first violations, with the moment. The registry's own rules are checked by the registry
// (Registry::CheckInvariants).
//
// Not thread-safe.
#ifndef TH_SIMULATOR_JUDGE_H_
#define TH_SIMULATOR_JUDGE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/weights/checksum.h"
#include "th/weights/identifiers.h"
#include "th/weights/version.h"

namespace th {

class EventQueue;
class SimulatedBuffer;
class SimulatedProcess;

// The violations of one run that are kept; later ones follow from these more often than not.
inline constexpr size_t kMaxViolationsKept = 8;

class Judge {
 public:
  explicit Judge(const EventQueue* queue) : queue_(queue) {}

  void Violated(std::string what);
  void Expect(bool holds, const char* rule, const std::string& who);
  const std::vector<std::string>& violations() const { return violations_; }

  // Invariant 1. A holder gives the label to what it calls `content`, and truly has the bytes of
  // another if it lies. A segment may be accepted on its source's word, so it must be of some
  // content that was given the label. A whole shard must be the version's; where somebody lied, it
  // must be what everybody else has who moved there: the first root of a shard is the authority.
  void Published(const VersionLabel& label, const std::string& content, const std::string& truly);
  bool WasPublished(const VersionLabel& label, int shard, SegmentIndex segment,
                    SegmentSum value) const;
  void Moved(const std::string& who, const VersionInfo& version, const SimulatedBuffer& buffer);

  // Invariant 4: every rank of a group hears the same version and the same result of an operation.
  // The generation is the worker's when it hears it, and so is the reign. A result that only the
  // dead have heard binds nobody. A server that dies takes with it what it told some: of its
  // successor the others may hear an error, but no other success.
  struct GroupOperation {
    ModelKey model;
    std::string group;
    uint64_t generation = 0;
    BufferId buffer;
    OperationNumber number;
    auto operator<=>(const GroupOperation&) const = default;
  };
  void HeardResolved(const SimulatedProcess* who, const GroupOperation& operation,
                     VersionSequence version);
  void HeardFinished(const SimulatedProcess* who, const GroupOperation& operation, Epoch reign,
                     const OperationFinished& finished);

 private:
  // What some ranks have heard, and who.
  struct Told {
    std::string what;
    std::vector<const SimulatedProcess*> by;
  };
  // Zero stands for every reign.
  using TheTold = std::map<std::pair<GroupOperation, Epoch>, Told>;
  void Heard(TheTold* told, const SimulatedProcess* who, const GroupOperation& operation,
             Epoch reign, const std::string& what);

  const EventQueue* const queue_;
  std::vector<std::string> violations_;
  std::map<VersionLabel, std::set<std::string>> contents_;
  bool somebody_lied_ = false;
  std::map<std::pair<VersionSequence, int>, std::string> moved_to_;  // by version and shard
  TheTold resolved_, results_, successes_;
};

}  // namespace th

#endif  // TH_SIMULATOR_JUDGE_H_
