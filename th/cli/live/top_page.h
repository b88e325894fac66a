// The page of `th top`, as text and as JSON. Pure: the same catalog and rates give the same page.
#ifndef TH_CLI_LIVE_TOP_PAGE_H_
#define TH_CLI_LIVE_TOP_PAGE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/cli/live/fill_rates.h"
#include "th/protocol/catalog.h"

namespace th {

// A head line, then for each model its sums and a line a replica, fills first. Without a limit.
std::vector<std::string> TopLines(const Catalog& catalog, const FillRates& rates);

// The page while the server does not answer: since when, for how long, why, and below it the page
// that it was drawn from last. `since` is the time of the first question without an answer.
std::vector<std::string> AwayLines(const std::vector<std::string>& last, absl::Time since,
                                   absl::Time now, absl::string_view why);

// How large the page may be; 0: as large as it is.
struct PageSize {
  size_t columns = 0;
  size_t rows = 0;
};
// Cuts lines that are too long and, with a last line that says so, lines that are too many.
std::vector<std::string> FitPage(std::vector<std::string> lines, PageSize size);

// {"epoch", "models": [{"run", "model", "latest", "totals": {...}, "replicas": [{"version",
// "group", "state", "bytes", "bytes_held", "bytes_per_second", "from": [...], "readers",
// "operation", "operation_seconds", "event"}]}]}.
nlohmann::json TopToJson(const Catalog& catalog, const FillRates& rates);

}  // namespace th

#endif  // TH_CLI_LIVE_TOP_PAGE_H_
