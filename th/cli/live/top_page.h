// The page of `th top`, as text and as JSON. Pure: the same catalog and rates give the same page.
#ifndef TH_CLI_LIVE_TOP_PAGE_H_
#define TH_CLI_LIVE_TOP_PAGE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "th/cli/live/fill_rates.h"
#include "th/protocol/catalog.h"

namespace th {

// A head line, then for each model its sums and a line a replica, fills first. Without a limit.
std::vector<std::string> TopLines(const Catalog& catalog, const FillRates& rates);

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
