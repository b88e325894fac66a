// The memberships of this process, for its metrics.
#ifndef TH_CLIENT_MEMBERSHIPS_H_
#define TH_CLIENT_MEMBERSHIPS_H_

#include <memory>
#include <vector>

#include "th/client/session_driver.h"

namespace th {

// Registers a membership, for as long as it lives. ClaimProcess was OK. Thread-safe.
void RegisterMembership(const std::shared_ptr<SessionDriver>& membership);
// Returns those that live, in the order in which they were registered; none in a child of the
// process that registered them. Thread-safe.
std::vector<std::shared_ptr<SessionDriver>> LiveMemberships();

}  // namespace th

#endif  // TH_CLIENT_MEMBERSHIPS_H_
