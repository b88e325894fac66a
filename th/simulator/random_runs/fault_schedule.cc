#include "th/simulator/random_runs/fault_schedule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace th {
namespace {

bool EndsByItself(FaultKind kind) {
  switch (kind) {
    case FaultKind::kPreempt:
    case FaultKind::kStopWorker:
    case FaultKind::kCutHost:
    case FaultKind::kSlowHost:
    case FaultKind::kRestartServer:
    case FaultKind::kStopServer:
    case FaultKind::kForgeSegment:
    case FaultKind::kBabble:
    case FaultKind::kImpostor:
    case FaultKind::kRestartBehindCut:
    case FaultKind::kRollBackBehindCut:
    case FaultKind::kBreakEndpoint:
    case FaultKind::kRegisterGroupAgain:
    case FaultKind::kStutter:
    case FaultKind::kSlowServer:
    case FaultKind::kSilenceServer:
    case FaultKind::kSilenceAndRestartServer:
    case FaultKind::kReplaceBehindServer:
    case FaultKind::kLoseState:
    case FaultKind::kRestoreState:
    case FaultKind::kFreeInFill:
    case FaultKind::kBreakPath:
      return true;
    default:
      return false;
  }
}

bool IsOfServer(FaultKind kind) {
  return kind == FaultKind::kRestartServer || kind == FaultKind::kStopServer ||
         kind == FaultKind::kSlowServer || kind == FaultKind::kSilenceServer ||
         kind == FaultKind::kSilenceAndRestartServer || kind == FaultKind::kLoseState ||
         kind == FaultKind::kRestoreState;
}

void SortByTime(std::vector<Fault>& faults) {
  std::sort(faults.begin(), faults.end(),
            [](const Fault& a, const Fault& b) { return a.at < b.at; });
}

// Kinds that are drawn alike.
struct Kinds {
  FaultKind first;
  int count;
  absl::Duration shortest, longest;  // that they last
};

// `count` faults, in the order of time.
std::vector<Fault> Draw(SeededRandom* random, uint64_t count, const Kinds& kinds,
                        absl::Duration duration) {
  std::vector<Fault> faults(count);
  for (Fault& fault : faults) {
    fault.at = random->Between(absl::Milliseconds(200), duration);
    fault.kind = static_cast<FaultKind>(static_cast<int>(kinds.first) +
                                        static_cast<int>(random->Below(kinds.count)));
    fault.target = random->Below(64);
    fault.lasting = random->Between(kinds.shortest, kinds.longest);
  }
  SortByTime(faults);
  return faults;
}

struct Family {
  Kinds kinds;
  SeededRandom random;  // apart from the numbers of the run, and of the other families
  uint64_t most;
  uint64_t seeds_without = kSeedsWithoutFamily;
};

std::vector<Fault> Draw(Family family, absl::Duration duration) {
  if (!family.random.OneIn(family.seeds_without + 1)) return {};
  const uint64_t count = 1 + family.random.Below(family.most);
  return Draw(&family.random, count, family.kinds, duration);
}

std::vector<Family> FamiliesOf(uint64_t seed) {
  constexpr uint64_t kRegistrations = 0x72656769737465, kSlowness = 0x736c6f776e657373,
                     kSilence = 0x73696c656e6365, kReplacement = 0x7265706c6163, kLoss = 0x6c6f7373,
                     kFreeing = 0x66726565, kPaths = 0x7061746873;
  return {{{FaultKind::kBreakEndpoint, 1, kMinFaultLasting, kMaxFaultLasting},
           SeededRandom(~seed),
           kMaxOfFamily - 1},
          {{FaultKind::kRegisterAgain, 2, absl::ZeroDuration(), kMaxApart},
           SeededRandom(seed ^ kRegistrations).Fork(),
           kMaxOfFamily},
          {{FaultKind::kStutter, 2, kMinFaultLasting, kMaxFaultLasting},
           SeededRandom(seed ^ kSlowness).Fork(),
           kMaxOfFamily},
          {{FaultKind::kSilenceServer, 2, kMinFaultLasting, kMaxFaultLasting},
           SeededRandom(seed ^ kSilence).Fork(),
           kMaxOfFamily / 2,
           kSeedsWithoutRareFamily},
          {{FaultKind::kReplaceBehindServer, 1, kMinFaultLasting, kMaxFaultLasting},
           SeededRandom(seed ^ kReplacement).Fork(),
           kMaxOfFamily / 2,
           kSeedsWithoutRareFamily},
          {{FaultKind::kLoseState, 2, kMinFaultLasting, kMaxFaultLasting},
           SeededRandom(seed ^ kLoss).Fork(),
           kMaxOfFamily / 2,
           kSeedsWithoutRareFamily},
          {{FaultKind::kFreeInFill, 1, kMinFaultLasting, kMaxFaultLasting},
           SeededRandom(seed ^ kFreeing).Fork(),
           kMaxOfFamily / 2,
           kSeedsWithoutRareFamily},
          {{FaultKind::kBreakPath, 1, kMinFaultLasting, kMaxFaultLasting},
           SeededRandom(seed ^ kPaths).Fork(),
           kMaxOfFamily,
           kSeedsWithoutRareFamily}};
}

}  // namespace

absl::string_view FaultKindName(FaultKind kind) {
  switch (kind) {
    case FaultKind::kKillWorker:
      return "kill worker";
    case FaultKind::kCrashWorker:
      return "crash worker";
    case FaultKind::kKillGroup:
      return "kill group";
    case FaultKind::kLeave:
      return "leave by worker";
    case FaultKind::kPreempt:
      return "a notice to worker";
    case FaultKind::kStopWorker:
      return "stop worker";
    case FaultKind::kBreakStream:
      return "break the stream of worker";
    case FaultKind::kCutHost:
      return "cut off host";
    case FaultKind::kSlowHost:
      return "slow down host";
    case FaultKind::kFlipBit:
      return "flip a bit of worker";
    case FaultKind::kRestartServer:
      return "restart the server";
    case FaultKind::kStopServer:
      return "stop the server";
    case FaultKind::kForgeSegment:
      return "forge a segment of worker";
    case FaultKind::kBabble:
      return "false messages of worker";
    case FaultKind::kImpostor:
      return "an impostor of worker";
    case FaultKind::kRestartBehindCut:
      return "restart the server while cut off is host";
    case FaultKind::kRollBackBehindCut:
      return "roll back and restart the server while cut off is host";
    case FaultKind::kBreakEndpoint:
      return "break the first endpoint of worker";
    case FaultKind::kRegisterAgain:
      return "register again the buffer of worker";
    case FaultKind::kRegisterGroupAgain:
      return "register again the buffers of group";
    case FaultKind::kStutter:
      return "a stutter of worker";
    case FaultKind::kSlowServer:
      return "slow turns of the server";
    case FaultKind::kSilenceServer:
      return "silence the server's host";
    case FaultKind::kSilenceAndRestartServer:
      return "silence the server's host and restart the server";
    case FaultKind::kReplaceBehindServer:
      return "stop the server and replace ranks of group";
    case FaultKind::kLoseState:
      return "empty the server's disk and stop the server";
    case FaultKind::kRestoreState:
      return "the server's disk is restored, and was last written before";
    case FaultKind::kFreeInFill:
      return "free the buffer in mid-fill of rollout";
    case FaultKind::kBreakPath:
      return "break the path to the first endpoint of worker";
  }
  return "unknown";
}

std::string Fault::ToString() const {
  std::string text = absl::StrFormat("%.3f s: %s", absl::ToDoubleSeconds(at), FaultKindName(kind));
  if (!IsOfServer(kind)) absl::StrAppend(&text, " ", target);
  if (EndsByItself(kind)) {
    absl::StrAppendFormat(&text, " for %.3f s", absl::ToDoubleSeconds(lasting));
  }
  return text;
}

std::vector<Fault> DrawFaults(SeededRandom* random, absl::Duration duration) {
  const uint64_t count = kMinFaults + random->Below(kMaxFaults - kMinFaults + 1);
  return Draw(random, count,
              {FaultKind::kKillWorker, kFaultKinds, kMinFaultLasting, kMaxFaultLasting}, duration);
}

std::vector<Fault> DrawLaterFaults(uint64_t seed, absl::Duration duration) {
  std::vector<Fault> all;
  for (const Family& family : FamiliesOf(seed)) {
    const std::vector<Fault> faults = Draw(family, duration);
    all.insert(all.end(), faults.begin(), faults.end());
  }
  return all;
}

}  // namespace th
