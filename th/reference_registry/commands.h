// Commands that are no group operation: roll back, retention, pins, forget. With a forgotten model
// its idempotency keys go, too.
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

// Runs a command once for each idempotency key: a repeat has the first one's result. `caller` is
// null for a controller; `asked_by` names the caller for people: "trainer", "controller at
// 10.0.0.5".
//
// The newest max_commands_remembered results are kept, but none that says UNAVAILABLE or
// RESOURCE_EXHAUSTED: the caller should try again. That of a roll-back is kept over a restart of
// the server too, as running it twice would withdraw what was published in between. A kept result
// has the attributes of its version while the version is known.
//
// INVALID_ARGUMENT: an idempotency key of no or too many bytes, bad names, a pin without time.
// NOT_FOUND: no such version, pin or model. FAILED_PRECONDITION: the model to be forgotten is in
// use. RESOURCE_EXHAUSTED naming the limit. UNAVAILABLE: recovering.
CommandFinished RunOnce(Turn& turn, const ModelKey& key, const RunCommand& message,
                        const Group* caller, const std::string& asked_by);

// Releases and notes the pins that end at turn.now or before.
void ExpirePins(Turn& turn);

}  // namespace th::registry

#endif  // TH_REFERENCE_REGISTRY_COMMANDS_H_
