// The flags that name a server, a run and a model: the same in every binary.
#ifndef TH_CLIENT_FLAGS_CONNECTION_FLAGS_H_
#define TH_CLIENT_FLAGS_CONNECTION_FLAGS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/client/client.h"

namespace th {

struct ConnectionFlags {
  std::string server = "127.0.0.1:7077";
  std::string run = "default";
  std::string model = "default";
  absl::Duration connect_timeout = absl::Seconds(5);

  ModelKey key() const { return {.run = run, .model = model}; }
  // UNAVAILABLE naming the address when no server answers in time.
  absl::StatusOr<std::unique_ptr<Controller>> Connect() const;
};

// --server, --run, --model, --connect-timeout. `flags` outlives the parse. Without the flag the
// environment's TH_SERVER, TH_RUN and TH_MODEL stand, unless they are empty.
void AddConnectionFlags(CLI::App* app, ConnectionFlags* flags);

// The further flags of a process that joins.
struct MemberFlags {
  std::string group;
  std::string location;
  std::string data_address;
  uint32_t data_threads = 2;
  uint64_t uplink_bytes_per_second = 0;  // --rate
  std::vector<std::string> transports;   // empty: all that there are
  bool strict_transport = false;         // --transport-strict
  // --attach-limit; empty: the default of ClientOptions.
  std::optional<uint64_t> attach_limit_bytes;
  std::vector<std::string> rdma_devices;  // --rdma-devices; empty: all that can be used
  // --rdma-registered-limit; empty: the default of ClientOptions.
  std::optional<uint64_t> rdma_registered_limit_bytes;
  uint64_t offload_limit_bytes = 0;
  absl::Duration preempt_grace;

  // INVALID_ARGUMENT, a usage error that names the flags: those that have no effect together, or
  // exclude each other; a location that is none.
  absl::StatusOr<ClientOptions> ToClientOptions(const ConnectionFlags& connection) const;
};

// "follower-HOST-PID": the name of a group of this process alone.
std::string GroupOfThisProcess(const std::string& what);

// --group, --location, --data-address, --data-threads, --rate, --transports, --transport-strict,
// --attach-limit, --rdma-devices, --rdma-registered-limit.
void AddMemberFlags(CLI::App* app, MemberFlags* flags);

// --offload-limit, of a process that moves from version to version.
void AddOffloadFlag(CLI::App* app, MemberFlags* flags);

// --preempt-grace, of a process that goes on until a signal.
void AddPreemptFlag(CLI::App* app, MemberFlags* flags);

// The error of a join as who wrote the flags reads it: with the flag that leads out of it, and
// flags where the client names its options.
absl::Status ExplainJoin(const absl::Status& joined);

// Both ends included.
struct DurationRange {
  absl::Duration least;
  absl::Duration most;
};
// The bounds of one call or transfer: a user who waits for longer has something else in mind.
inline constexpr DurationRange kTimeouts = {absl::Milliseconds(1), absl::Hours(7 * 24)};

// Takes what ParseTimeSpan takes, within `range`; what `value` has is the default.
CLI::Option* AddDurationFlag(CLI::App* app, const std::string& name, absl::Duration* value,
                             const DurationRange& range, const std::string& help);

// Parses while CLI11 does: a flag's value that ParseByteSize or ParseRate refuses is a usage error.
CLI::Option* AddByteSizeFlag(CLI::App* app, const std::string& name, uint64_t* bytes,
                             const std::string& help, const std::string& shown_default);
void AddRateFlag(CLI::App* app, const std::string& name, uint64_t* bytes_per_second,
                 const std::string& help, const std::string& shown_default);

}  // namespace th

#endif  // TH_CLIENT_FLAGS_CONNECTION_FLAGS_H_
