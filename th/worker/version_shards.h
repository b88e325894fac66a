// Which shards a version has, found in what the server lists. Pure.
#ifndef TH_WORKER_VERSION_SHARDS_H_
#define TH_WORKER_VERSION_SHARDS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/catalog.h"
#include "th/weights/digest.h"
#include "th/weights/version.h"

namespace th {

// The distinct shards of one whole replica of a version: what a reader of all of it asks for.
struct VersionShards {
  VersionInfo version;
  std::string form;
  std::string buffer_name;
  std::vector<SealedShard> shards;  // an empty root: not sealed yet
  uint64_t bytes = 0;               // of the distinct shards
};

// Takes the publisher's replica, or else any complete one, in that form.
// NOT_FOUND naming what there is not: the model, the version, a whole replica in that form (and
// what to do then).
absl::StatusOr<VersionShards> FindVersionShards(const Catalog& catalog, const ModelKey& key,
                                                VersionSequence sequence, absl::string_view form);

// The holders of the whole of a version in a form, by group.
struct VersionHolders {
  std::vector<std::string> connected;     // to the server, in every rank
  std::vector<std::string> disconnected;  // a rank has lost the server and may come back
  std::set<std::string> transports;       // over which the connected ones can be read
};
VersionHolders FindHolders(const Catalog& catalog, const ModelKey& key, VersionSequence sequence,
                           absl::string_view form);

// The labels of the versions that somebody holds whole in that form and that are on offer, the
// newest first, for an error: "held are step-3, step-2 and 4 older ones", or "no version of the
// model is held by anybody in form hf".
std::string NameHeldVersions(const Catalog& catalog, const ModelKey& key, absl::string_view form);

}  // namespace th

#endif  // TH_WORKER_VERSION_SHARDS_H_
