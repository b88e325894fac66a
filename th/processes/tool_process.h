// Runs other people's measuring programs (iperf3, ib_read_bw): their ports and their output.
//
//   TH_ASSIGN_OR_RETURN(const uint16_t port, UnusedPort("iperf3"));
//   TH_ASSIGN_OR_RETURN(auto server, ChildProcess::Start({.name = "iperf3 server", ...}));
//   TH_RETURN_IF_ERROR(AwaitListening(*server, port, kListenTimeout, stopped));
//   TH_ASSIGN_OR_RETURN(const auto lines, ReadToEnd(*client, kRunTimeout, stopped));
//
// `stopped` is asked ten times a second; once it says true the call ends with CANCELLED. It may be
// empty.
#ifndef TH_PROCESSES_TOOL_PROCESS_H_
#define TH_PROCESSES_TOOL_PROCESS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/processes/child_process.h"

namespace th {

// A TCP port that nobody listens on now, for programs that cannot choose one themselves. Nobody
// else is likely to take it in between. UNAVAILABLE, naming `tool`.
absl::StatusOr<uint16_t> UnusedPort(absl::string_view tool);

// Waits until somebody listens on `port`. UNAVAILABLE with the child's last line: it has ended.
// DEADLINE_EXCEEDED.
absl::Status AwaitListening(ChildProcess& child, uint16_t port, absl::Duration timeout,
                            const std::function<bool()>& stopped);

// All lines until the child closes its output. DEADLINE_EXCEEDED.
absl::StatusOr<std::vector<std::string>> ReadToEnd(ChildProcess& child, absl::Duration timeout,
                                                   const std::function<bool()>& stopped);

// True when a socket of the text of /proc/net/tcp or tcp6 listens on `port`. Pure.
bool ListensOn(absl::string_view table, uint16_t port);

}  // namespace th

#endif  // TH_PROCESSES_TOOL_PROCESS_H_
