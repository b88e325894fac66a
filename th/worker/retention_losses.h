// Which retained versions go with this process, as the server says: an ended process holds nothing.
//
//   RetentionLosses losses(connection, "trainer");  // before the group's ranks here leave
//   ... they leave ...
//   losses.Log();
//
// Not thread-safe.
#ifndef TH_WORKER_RETENTION_LOSSES_H_
#define TH_WORKER_RETENTION_LOSSES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "th/client/client.h"
#include "th/client_flags/connection_flags.h"
#include "th/protocol/event.h"

namespace th {

// The events of losses with `group` or one of its ranks, in the server's words. Pure.
std::vector<std::string> LossesOf(const RecentEvents& events, absl::string_view group);

class RetentionLosses {
 public:
  // Asks where the server's events stand: a second at most, nothing is said if it does not answer.
  RetentionLosses(const ConnectionFlags& connection, std::string group);
  // A warning for each version that was lost since, and one where the server cannot be asked.
  void Log();

 private:
  // All events after `before`; none: the server does not answer, or knows them no more.
  std::optional<RecentEvents> Since(const RecentEvents& before);

  const std::string group_;
  std::unique_ptr<Controller> controller_;  // null: the server did not answer
  RecentEvents before_;
};

}  // namespace th

#endif  // TH_WORKER_RETENTION_LOSSES_H_
