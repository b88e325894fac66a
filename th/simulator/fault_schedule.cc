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
    case FaultKind::kBreakEndpoint:
    case FaultKind::kRegisterGroupAgain:
      return true;
    default:
      return false;
  }
}

bool IsOfServer(FaultKind kind) {
  return kind == FaultKind::kRestartServer || kind == FaultKind::kStopServer;
}

void SortByTime(std::vector<Fault>& faults) {
  std::sort(faults.begin(), faults.end(),
            [](const Fault& a, const Fault& b) { return a.at < b.at; });
}

// `count` faults of the kinds from `first` on, in the order of time.
std::vector<Fault> Draw(SeededRandom* random, uint64_t count, int first, int kinds,
                        absl::Duration duration) {
  std::vector<Fault> faults(count);
  for (Fault& fault : faults) {
    fault.at = random->Between(absl::Milliseconds(200), duration);
    fault.kind = static_cast<FaultKind>(first + static_cast<int>(random->Below(kinds)));
    fault.target = random->Below(64);
    fault.lasting = random->Between(kMinFaultLasting, kMaxFaultLasting);
  }
  SortByTime(faults);
  return faults;
}

// Keeps the numbers of the registrations apart from those of the run.
constexpr uint64_t kRegistrationStream = 0x72656769737465;

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
  return Draw(random, count, 0, kFaultKinds, duration);
}

std::vector<Fault> DrawLaterFaults(SeededRandom random, absl::Duration duration) {
  if (!random.OneIn(3)) return {};
  const uint64_t count = 1 + random.Below(kMaxLaterFaults);
  return Draw(&random, count, kFaultKinds, kLaterFaultKinds, duration);
}

std::vector<Fault> DrawRegistrations(uint64_t seed, absl::Duration duration) {
  SeededRandom random = SeededRandom(seed ^ kRegistrationStream).Fork();
  if (!random.OneIn(kSeedsWithoutRegistrations + 1)) return {};
  std::vector<Fault> faults(1 + random.Below(kMaxRegistrations));
  for (Fault& fault : faults) {
    fault.at = random.Between(absl::Milliseconds(200), duration);
    const uint64_t kind = random.Below(kRegistrationKinds);
    fault.kind = kind == 0 ? FaultKind::kRegisterAgain : FaultKind::kRegisterGroupAgain;
    fault.target = random.Below(64);
    fault.lasting = random.Between(absl::ZeroDuration(), kMaxApart);
  }
  SortByTime(faults);
  return faults;
}

}  // namespace th
