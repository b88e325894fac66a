// The server's catalog for people and for scripts. Pure: the same catalog gives the same text.
#ifndef TH_CLI_CATALOG_VIEW_H_
#define TH_CLI_CATALOG_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "th/protocol/catalog.h"
#include "th/weights/version.h"

namespace th {

// A line a replica of every version of every model, newest versions first, and one for each group
// that holds nothing. "nothing is published" when there is no model.
std::string CatalogTable(const Catalog& catalog);

// Leaves the `limit` newest versions of each model, and says how many older ones that leaves out.
size_t LimitVersions(size_t limit, Catalog& catalog);

// "the newest version is" or "the 3 newest versions are".
std::string NewestVersionsAre(uint32_t count);

// OK when the catalog, which the server made of `asked` (empty fields: all), has a model where one
// was named. NOT_FOUND naming what was asked for.
absl::Status CheckNamed(const Catalog& catalog, const ModelKey& asked);

// {"epoch", "recovering", "models": [{"run", "model", "keep_latest", "versions": [...], "idle":
// [...]}]}.
nlohmann::json ToJson(const Catalog& catalog);

// One version: attributes, shards and their roots, pins, every replica's ranks and who they fill
// from.
std::string DescribeVersion(const CatalogModel& model, const CatalogVersion& version);
nlohmann::json ToJson(const CatalogVersion& version);

// The version that `selector` names; by its label a withdrawn one too, where no other has it.
// NOT_FOUND.
absl::StatusOr<const CatalogVersion*> SelectVersion(const CatalogModel& model,
                                                    const VersionSelector& selector);

// {"operation", "operation_seconds", "event"} of what is under way; empty when nothing is.
nlohmann::json OperationToJson(const CatalogReplica& replica);
// {"stall_seconds": {phase: seconds}, "received": [...], "copies": {...}, "failures": [...], ...}.
nlohmann::json TotalsToJson(const ModelTotals& totals);

// All that a group holds, or its buffers that hold nothing. NOT_FOUND.
absl::StatusOr<std::string> DescribeGroup(const CatalogModel& model, absl::string_view group);
absl::StatusOr<nlohmann::json> GroupToJson(const CatalogModel& model, absl::string_view group);

}  // namespace th

#endif  // TH_CLI_CATALOG_VIEW_H_
