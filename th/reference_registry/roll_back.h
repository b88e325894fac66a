// Rolling back: later versions are withdrawn, their labels are free, the lineage moves on, so that
// publishes from the withdrawn past are refused; readers of withdrawn versions are told so.
#ifndef TH_REFERENCE_REGISTRY_ROLL_BACK_H_
#define TH_REFERENCE_REGISTRY_ROLL_BACK_H_

#include <string>

#include "absl/status/status.h"
#include "th/protocol/messages.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

struct RollBackModel {
  ModelKey key;
  RollBack command;
  // The group that asked, if a member did: it knows that what it published is withdrawn, and is not
  // told.
  const Group* caller = nullptr;
  std::string asked_by;  // for people: "trainer", "controller at 10.0.0.5"

  // NOT_FOUND: no such version. FAILED_PRECONDITION: it was withdrawn. UNAVAILABLE: the server is
  // recovering.
  absl::Status CanApply(const RegistryState& state) const;
  // The version that the model is at from here on.
  VersionInfo Apply(Turn& turn) const;
};

// NOT_FOUND, FAILED_PRECONDITION or UNAVAILABLE as above; for every command that names a version.
absl::StatusOr<const Version*> FindPublished(const RegistryState& state, const ModelKey& key,
                                             const VersionSelector& selector);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_ROLL_BACK_H_
