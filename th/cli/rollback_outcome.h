// The outcome of a roll-back: its answer beside the catalog from before and after it. Pure.
#ifndef TH_CLI_ROLLBACK_OUTCOME_H_
#define TH_CLI_ROLLBACK_OUTCOME_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/catalog.h"
#include "th/weights/version.h"

namespace th {

// FAILED_PRECONDITION: `answered` is not the version that was asked for, as the idempotency key has
// the result of an earlier roll-back. `latest-K` cannot be told apart.
absl::Status CheckKeyIsOfThis(const VersionSelector& asked, const VersionInfo& answered,
                              const std::string& key);

struct RollBackOutcome {
  std::vector<std::string> withdrawn;  // newest first
  std::vector<std::string> standing;   // later ones from before the call that it left as they are
};
RollBackOutcome OutcomeOf(const Catalog& before, const Catalog& after, const ModelKey& key,
                          const VersionInfo& to);
// True when somebody has the version, or gets it now.
bool IsHeld(const Catalog& catalog, const ModelKey& key, VersionSequence version);
// "run=r1 model=m is back at version step-1 (#1.1); withdrawn: step-2 (#1.2)".
std::string TextOf(const RollBackOutcome& outcome, const ModelKey& key, const VersionInfo& to);

}  // namespace th

#endif  // TH_CLI_ROLLBACK_OUTCOME_H_
