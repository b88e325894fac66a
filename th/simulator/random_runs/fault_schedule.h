// The faults of one random run, with their times: drawn from the seed before the run, so that
// leaving a fault out changes nothing about the others and a failing schedule can be shortened.
#ifndef TH_SIMULATOR_RANDOM_RUNS_FAULT_SCHEDULE_H_
#define TH_SIMULATOR_RANDOM_RUNS_FAULT_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/simulator/seeded_random.h"

namespace th {

enum class FaultKind : uint8_t {
  kKillWorker,     // its connections are reset
  kCrashWorker,    // with its machine: nobody is told
  kKillGroup,      // all ranks at once
  kLeave,          // a clean end
  kPreempt,        // a notice, and the clean end after a while
  kStopWorker,     // SIGSTOP, for a while
  kBreakStream,    // its control stream
  kCutHost,        // from all others, for a while
  kSlowHost,       // its adapter at a tenth, for a while
  kFlipBit,        // in a segment that a worker sends
  kRestartServer,  // killed, and started after a while
  kStopServer,     // SIGSTOP, for a while
  // Its own sums agree with the wrong bytes that it sends of one segment, for a while.
  kForgeSegment,
  kBabble,            // says to the server what is not so, for a while; then it is killed
  kImpostor,          // another process claims its rank, for a while
  kRestartBehindCut,  // the server, while a host is cut off
  // The controller rolls back and the server restarts while a host is cut off; the trainer, which
  // nobody tells, is killed later.
  kRollBackBehindCut,
  // ---- drawn by DrawLaterFaults
  kBreakEndpoint,  // the first of a worker's, for a while; the others work
  // The rank frees its buffer and registers it again, whatever goes on.
  kRegisterAgain,
  // All ranks of a group do so, one after the other, without waiting for each other.
  kRegisterGroupAgain,
  kStutter,     // a worker stands still for a moment again and again, for a while
  kSlowServer,  // one turn of its loop after the other takes long, for a while
  // The server's host neither answers nor closes anything, for a while.
  kSilenceServer,
  kSilenceAndRestartServer,  // the same, and the server starts again behind the silence
  // Ranks of a group are killed one after the other while the server is away, and replaced.
  kReplaceBehindServer,
  kLoseState,     // the server restarts after a while, and its disk is empty
  kRestoreState,  // what is on its disk now is all that it has when it restarts after a while
  // A rank of a rollout frees its buffer and registers it again in the middle of a fill, the first
  // one within a while.
  kFreeInFill,
  // The path to the first endpoint of a worker, for a while: its readers go on over the others.
  kBreakPath,
};
inline constexpr int kFaultKinds = 17;  // that DrawFaults draws, the first ones
inline constexpr int kLaterFaultKinds = 12;
absl::string_view FaultKindName(FaultKind kind);

struct Fault {
  absl::Duration at;  // after the start of the run
  FaultKind kind = FaultKind::kKillWorker;
  uint64_t target = 0;           // of the workers, hosts or groups there are then, counted round
  absl::Duration lasting;        // of what ends by itself
  std::string ToString() const;  // "3.214 s: stop worker 5 for 1.200 s"
};

// Faults of one run: at least kMinFaults, within the first `duration`.
inline constexpr uint64_t kMinFaults = 3, kMaxFaults = 10;
inline constexpr absl::Duration kMinFaultLasting = absl::Milliseconds(50);
inline constexpr absl::Duration kMaxFaultLasting = absl::Seconds(4);
std::vector<Fault> DrawFaults(SeededRandom* random, absl::Duration duration);
// The kinds that came later are drawn family by family (what breaks, what is registered again, what
// is slow; whose server is silent, who is replaced meanwhile, what the server loses, what is freed
// in the middle of a fill, whose path breaks): each in one run of some (kSeedsWithoutFamily + 1, or
// kSeedsWithoutRareFamily + 1), at most kMaxOfFamily in the order of time. A family is drawn from
// numbers of its own, so that a seed that was known before it has the same other faults.
inline constexpr uint64_t kSeedsWithoutFamily = 2, kSeedsWithoutRareFamily = 3, kMaxOfFamily = 4;
inline constexpr absl::Duration kMaxApart = absl::Seconds(2);  // the first rank and the last one
std::vector<Fault> DrawLaterFaults(uint64_t seed, absl::Duration duration);

}  // namespace th

#endif  // TH_SIMULATOR_RANDOM_RUNS_FAULT_SCHEDULE_H_
