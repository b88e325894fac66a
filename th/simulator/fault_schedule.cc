#include "th/simulator/fault_schedule.h"

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
    case FaultKind::kEmptyState:
    case FaultKind::kOlderState:
      return true;
    default:
      return false;
  }
}

bool IsOfServer(FaultKind kind) {
  return kind == FaultKind::kRestartServer || kind == FaultKind::kStopServer ||
         kind == FaultKind::kEmptyState || kind == FaultKind::kOlderState;
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
    case FaultKind::kEmptyState:
      return "restart the server with an empty state";
    case FaultKind::kOlderState:
      return "restart the server with an older state";
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
  std::vector<Fault> faults(kMinFaults + random->Below(kMaxFaults - kMinFaults + 1));
  for (Fault& fault : faults) {
    fault.at = random->Between(absl::Milliseconds(200), duration);
    fault.kind = static_cast<FaultKind>(random->Below(kFaultKinds));
    fault.target = random->Below(64);
    fault.lasting = random->Between(kMinFaultLasting, kMaxFaultLasting);
  }
  std::sort(faults.begin(), faults.end(),
            [](const Fault& a, const Fault& b) { return a.at < b.at; });
  return faults;
}

std::vector<Fault> DrawStateFaults(uint64_t seed, absl::Duration duration) {
  SeededRandom random(~seed);
  if (!random.OneIn(kRunsALostState)) return {};
  std::vector<Fault> faults(1 + random.Below(kMaxStateFaults));
  for (Fault& fault : faults) {
    fault.at = random.Between(absl::Milliseconds(200), duration);
    fault.kind = static_cast<FaultKind>(kFaultKinds + random.Below(kStateFaultKinds));
    fault.target = random.Below(64);
    fault.lasting = random.Between(kMinFaultLasting, kMaxFaultLasting / 2);
  }
  return faults;
}

}  // namespace th
