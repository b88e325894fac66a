// The memberships of this process, for its metrics.
#ifndef TH_CLIENT_MEMBERSHIPS_H_
#define TH_CLIENT_MEMBERSHIPS_H_

#include <memory>
#include <vector>

#include "th/client/session_driver.h"

namespace th {

// Lists a membership for as long as it lives. Thread-safe.
void ListMembership(const std::shared_ptr<SessionDriver>& membership);
// Those that live, in the order in which they were listed; none in a child that was forked after
// the first of them. Thread-safe.
std::vector<std::shared_ptr<SessionDriver>> LivingMemberships();

}  // namespace th

#endif  // TH_CLIENT_MEMBERSHIPS_H_
