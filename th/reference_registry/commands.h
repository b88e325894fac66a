// Commands that are no group operation: roll back, retention, pins, forget. A repeat of an
// idempotency key has the first one's result, but for forget, with which the keys go.
#ifndef TH_REFERENCE_REGISTRY_COMMANDS_H_
#define TH_REFERENCE_REGISTRY_COMMANDS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/protocol/messages.h"
#include "th/registry_state/state.h"
#include "th/registry_state/turn.h"

namespace th::registry {

inline constexpr size_t kMaxIdempotencyKeyBytes = 128;
// Forms of one model that have a retention policy of their own.
inline constexpr size_t kMaxFormsRetained = 64;

struct ExecuteCommand {
  ModelKey key;
  const RunCommand* message = nullptr;  // outlives this
  const Group* caller = nullptr;        // none: a controller
  std::string asked_by;                 // for people: "trainer", "controller at 10.0.0.5"

  // INVALID_ARGUMENT: an idempotency key of no or too many bytes, bad names, a pin without time.
  // NOT_FOUND: no such version, pin or model. FAILED_PRECONDITION: the model to be forgotten is in
  // use. RESOURCE_EXHAUSTED naming the limit. UNAVAILABLE: recovering.
  absl::Status CanApply(const RegistryState& state) const;
  CommandFinished Apply(Turn& turn) const;
};

// Looks the result up, or executes and remembers it; that of a roll-back is found after a restart
// of the server too, as running it twice would withdraw what was published in between. The
// attributes of the version that it names are told while the version is known. An
// UNAVAILABLE or RESOURCE_EXHAUSTED result is not remembered: the caller should try again.
CommandFinished RunOnce(Turn& turn, const ModelKey& key, const RunCommand& message,
                        const Group* caller, const std::string& asked_by);

// Pins whose time has come are gone.
void ExpirePins(Turn& turn);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_COMMANDS_H_
