// The rules that must hold whatever happens: the cluster tells the checker what it sees, and the
// checker keeps the first violations, with the moment. The registry's own rules are checked by the
// registry (Registry::CheckInvariants).
//
// Not thread-safe.
#ifndef TH_SIMULATOR_INVARIANT_CHECKER_H_
#define TH_SIMULATOR_INVARIANT_CHECKER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/messages.h"
#include "th/weights/checksum.h"
#include "th/weights/version.h"

namespace th {

class EventQueue;
class SimulatedBuffer;
class SimulatedProcess;

// The violations of one run that are kept; later ones follow from these more often than not.
inline constexpr size_t kMaxViolationsKept = 8;

class InvariantChecker {
 public:
  // `queue` outlives it; every shard has `segment_count` segments.
  InvariantChecker(const EventQueue* queue, uint64_t segment_count)
      : queue_(queue), segment_count_(segment_count) {}

  void Violated(std::string what);
  void Expect(bool holds, const char* rule, const std::string& who);
  const std::vector<std::string>& violations() const { return violations_; }
  // For tests of the rules: those that were not taken before.
  std::vector<std::string> TakeViolations() { return std::exchange(violations_, {}); }

  // No torn read. A holder gives the label to what it calls `content`, and truly has the bytes of
  // `truly`. A segment may be accepted on its source's word, so it must be of some content that was
  // given the label. A whole shard must be the content that its version names; of a label about
  // which somebody lied it must be what everybody else has who moved there, because the first root
  // of a shard is the authority, whoever made it. A server that has lost its state has lost the
  // roots too: the first one that it hears then is the authority. `state` tells which it was that
  // the worker had joined.
  void Published(const VersionLabel& label, const std::string& content, const std::string& truly);
  // A version that has lost its label to a later one is judged by the label that it had.
  void NoteLabel(const VersionInfo& version);
  // True of sums too that are forged for the version.
  bool WasPublished(const VersionInfo& version, int shard, SegmentIndex segment,
                    SegmentChecksum value);
  // A source sends these bytes of the version, or says that they are its, with a sum that agrees:
  // its readers accept them for now, hand them on, and no shard is ever complete with them.
  void Forged(VersionSequence version, int shard, SegmentChecksum value) {
    forged_[{version, shard}].insert(value);
  }
  bool WasForged(VersionSequence version, int shard, SegmentChecksum value) const;
  // A rank tells the server a false root of its shard.
  void SaysFalseRoot(VersionSequence version, int shard) { false_roots_.insert({version, shard}); }
  // True if sources have different bytes of the shard, or say so, or the server may have a false
  // root of it: only then may a fill of it throw away what it has. Forgeries and lies about other
  // shards and versions excuse nothing.
  bool IsDisputed(const VersionInfo& version, int shard) const;
  void Moved(const std::string& who, const VersionInfo& version, const SimulatedBuffer& buffer,
             uint64_t state);

  // One version a transaction: every rank of a group hears the same version and the same result of
  // an operation. `generation` and `epoch_id` are those the worker had when it heard. If all who
  // heard a result are dead, have left, or have unregistered the buffer since, it no longer counts.
  // After a restart of the server other ranks may hear an error where one had heard a success, but
  // never a different success. That the result is forgotten contradicts no other error. What a rank
  // hears because the result cannot answer its own call is not compared at all. A rank ends an
  // unpublish without the server, under a number with which ranks that did hear the server may have
  // ended something else: a server that has lost its state cannot know, and takes the rank's word.
  struct GroupOperation {
    // Numbers first: they tell most operations apart, and are compared faster than names.
    OperationNumber number;
    uint64_t generation = 0;
    // The state of a server that gave the generation its number: a server that lost its state may
    // give the number again.
    uint64_t numbered_by = 0;
    std::string buffer;  // its name, the same at all ranks
    // These live as long as the checker.
    std::string_view group, run, model;
    auto operator<=>(const GroupOperation&) const = default;
  };
  void HeardResolved(const SimulatedProcess* who, const GroupOperation& operation,
                     VersionSequence version);
  // `state` is the one with which the epoch has begun.
  void HeardFinished(const SimulatedProcess* who, const GroupOperation& operation, EpochId epoch_id,
                     uint64_t state, const OperationFinished& finished);
  // A rank of the group says to the server what is not so: what is answered about this generation
  // of the group is no longer compared. Others' answers are.
  void SaysFalsely(const std::string& group, uint64_t generation) {
    lying_groups_.insert({group, generation});
  }
  void Unregistered(const SimulatedProcess* who, const std::string& buffer);
  // The server has heard that it leaves. With the last rank of a group its results are forgotten.
  void Left(const SimulatedProcess* who);

 private:
  // The part of an answer that all ranks of a group have to hear alike.
  struct Word {
    bool resolved = false;  // else a result
    std::optional<OperationKind> kind;
    UpdateOutcome outcome = UpdateOutcome::kNone;
    VersionSequence version;
    absl::StatusCode code = absl::StatusCode::kOk;
    bool must_offload = false;
    bool forgotten = false;  // the server does not know the result any more
    friend bool operator==(const Word&, const Word&) = default;
    std::string ToString() const;
  };
  // An answer that some ranks have heard, who did, and from which state of the server first; that
  // differs only where epochs are compared.
  struct Reported {
    Word word;
    std::vector<const SimulatedProcess*> heard_by;
    uint64_t state = 0;
  };
  // EpochId(): compared across all epochs.
  using HeardByOperation = std::map<std::pair<GroupOperation, EpochId>, Reported>;
  void Heard(HeardByOperation* heard, const SimulatedProcess* who, const GroupOperation& operation,
             EpochId epoch_id, uint64_t state, const Word& word);
  // Every segment of a content, by shard; made when first asked for.
  using Segments = std::map<int, std::vector<SegmentChecksum>>;
  const std::vector<SegmentChecksum>& SegmentsOf(const std::string& content, int shard,
                                                 Segments* known) const;
  // By which the version is judged.
  absl::Span<const VersionLabel> LabelsOf(const VersionInfo& version) const;
  bool IsLiedAbout(const VersionInfo& version) const;
  // The name of the content of the version that the buffer holds; null: of none.
  const std::string* FindContent(const VersionInfo& version, const SimulatedBuffer& buffer);

  const EventQueue* const queue_;
  const uint64_t segment_count_;
  std::vector<std::string> violations_;
  std::map<VersionLabel, std::map<std::string, Segments>> contents_;  // by label and name
  std::map<VersionSequence, std::vector<VersionLabel>> labels_;       // that each version has had
  std::set<VersionLabel> lied_about_;
  using ShardOfVersion = std::pair<VersionSequence, int>;
  std::map<ShardOfVersion, std::set<SegmentChecksum>> forged_;
  std::set<ShardOfVersion> false_roots_;
  std::set<std::pair<std::string, uint64_t>> lying_groups_;  // group and generation
  struct ShardOfState {
    uint64_t state = 0;
    VersionSequence version;
    int shard = 0;
    auto operator<=>(const ShardOfState&) const = default;
  };
  std::map<ShardOfState, std::string> moved_to_;  // names of contents
  HeardByOperation resolved_, results_, successes_;
};

}  // namespace th

#endif  // TH_SIMULATOR_INVARIANT_CHECKER_H_
