// The answer to /state.json, from which the page at / is drawn: a pure function of a snapshot.
//
// Ranks are summed up by replica, so that a thousand replicas take some hundreds of kilobytes. The
// page (page/page.html) is its only reader; the two change together.
#ifndef TH_SERVER_STATE_JSON_H_
#define TH_SERVER_STATE_JSON_H_

#include <cstddef>
#include <string>

#include "th/server/status_snapshot.h"

namespace th {

// The most replicas of all models; each model says how many of its own are left out.
inline constexpr size_t kMaxReplicasInState = 5'000;
// The most models, those with replicas first; "models_left_out" counts the others.
inline constexpr size_t kMaxModelsInState = 500;
// The most versions of one model, the newest.
inline constexpr size_t kMaxVersionsInState = 20;
// The most ranks of one model whose stall is listed by rank, those that waited longest.
inline constexpr size_t kMaxStalledRanksInState = 16;
// The most hosts that one replica names. Others are not counted.
inline constexpr size_t kMaxHostsInState = 4;

std::string RenderStateJson(const StatusSnapshot& snapshot);

}  // namespace th

#endif  // TH_SERVER_STATE_JSON_H_
