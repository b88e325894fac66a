// The state as people and controllers see it.
#ifndef TH_REFERENCE_REGISTRY_LISTING_H_
#define TH_REFERENCE_REGISTRY_LISTING_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/protocol/catalog.h"
#include "th/registry_state/state.h"

namespace th::registry {

// Everything of `run` and `model`; "" stands for all.
Catalog ListCatalog(const RegistryState& state, const std::string& run, const std::string& model,
                    absl::Time now);

// Every model in figures, without a look at each rank's progress.
std::vector<ModelFigures> ListFigures(const RegistryState& state);
// The phase of one replica, in the words of docs/protocol/registry.md; empty: there is none.
absl::string_view ReplicaPhaseName(const RegistryState& state, const ModelKey& key,
                                   const std::string& group, const std::string& buffer_name);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_LISTING_H_
