// A round of `th bench fanout` in which a reader that others read from falls away half-way.
#ifndef TH_BENCH_FANOUT_DISTURBANCE_H_
#define TH_BENCH_FANOUT_DISTURBANCE_H_

#include <string>

#include "absl/status/statusor.h"
#include "th/bench/fanout_figures.h"
#include "th/bench/fanout_stage.h"
#include "th/controlled_rank/victim.h"

namespace th {

// The ways in which it falls away: SIGSTOP, its link is cut, or it leaves its group.
inline constexpr char kStop[] = "stop", kCut[] = "cut", kLeave[] = "leave";

// When it happens. What is observed is some ms old.
inline constexpr VictimRange kDisturbedFractions = {.from = 0.4, .to = 0.75};

// Lets all readers update to what was published, disturbs one when it holds about half and others
// read from it, awaits and verifies the others, and lets the victim rejoin. `disturbance` is one of
// the three. FAILED_PRECONDITION when no reader was seen to be such a one: the transfer was too
// fast, or nobody relayed.
absl::StatusOr<DisturbedRound> RunDisturbed(FanoutStage& stage, const std::string& disturbance);

}  // namespace th

#endif  // TH_BENCH_FANOUT_DISTURBANCE_H_
