// A picture of a scenario's run: a row for each reading rank, in it a bar for each source from
// which it received, coloured by the source's group; a line for each publication.
//
//   const std::string svg = TimelinePicture(result);
//
// Thread-safety: a pure function.
#ifndef TH_SIMULATOR_SCENARIOS_TIMELINE_PICTURE_H_
#define TH_SIMULATOR_SCENARIOS_TIMELINE_PICTURE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "th/simulator/scenarios/scenario_result.h"

namespace th {

// Ranks beyond these and bars beyond these are left out, and the picture says so.
inline constexpr size_t kMaxTimelineRows = 512;
inline constexpr size_t kMaxTimelineBars = 20'000;
inline constexpr size_t kMaxTimelineLegend = 24;

// A whole SVG 1.1 file; names in it are escaped.
std::string TimelinePicture(const ScenarioResult& result);

// `text` as XML character data and attribute values may have it; controls become U+FFFD.
std::string EscapeXml(absl::string_view text);

}  // namespace th

#endif  // TH_SIMULATOR_SCENARIOS_TIMELINE_PICTURE_H_
