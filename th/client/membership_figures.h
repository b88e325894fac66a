// Counters of one membership since it joined, for metrics. A value.
#ifndef TH_CLIENT_MEMBERSHIP_FIGURES_H_
#define TH_CLIENT_MEMBERSHIP_FIGURES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "th/protocol/cost.h"
#include "th/protocol/messages.h"
#include "th/protocol/seconds_histogram.h"
#include "th/worker_session/session_types.h"

namespace th {

// The group operations as a caller knows them.
enum class Verb : uint8_t { kPublish, kUnpublish, kUpdate, kStage, kReceive };
// "publish".
absl::string_view VerbName(Verb verb);

// The readers of a membership's buffers: `now` rises and falls, the others count.
struct ServedFigures {
  uint64_t now = 0;
  uint64_t admitted = 0;
  uint64_t refused = 0;
  uint64_t bytes_sent = 0;
};

struct MembershipFigures {
  ModelKey key;
  RankName name;
  bool connected = false;  // see Client::connected
  ServedFigures served;
  // Verbs that have ended, by how: "moved", "already_there", "not_available" of updates, stages and
  // receives, "done" of the others, "failed" of all.
  std::map<std::pair<Verb, std::string>, uint64_t> ended;
  // The time that the caller waited in update, receive and unpublish, by phase. A call that failed
  // counts whole as kFailed. Publish and stage do not count: the buffer is in use meanwhile.
  StallByPhase stall{};
  SecondsHistogram update_seconds;  // of updates and receives that moved
  FillCost received;                // by updates, stages and receives
  uint64_t corrupt_segments = 0;

  // Adds one verb that has ended. `cost` and `corrupt` are of its fill, if it had one.
  void Count(Verb verb, const OperationDone& done, const FillCost& cost, uint64_t corrupt);
};

}  // namespace th

#endif  // TH_CLIENT_MEMBERSHIP_FIGURES_H_
