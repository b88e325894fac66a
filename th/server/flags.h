// The command line of tensorhub_server.
#ifndef TH_SERVER_FLAGS_H_
#define TH_SERVER_FLAGS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "th/command_line/cli_app.h"
#include "th/registry_state/pause_watch.h"
#include "th/registry_state/registry_types.h"

namespace th {

// How tensorhub_server exits.
enum class ServerExit {
  kClean = 0,         // after SIGTERM or SIGINT
  kUsage = 2,         // a flag is unknown or invalid, or a file of its own cannot be written
  kCannotListen = 3,  // the port is taken, the host unknown
  kState = 4,         // the state or the event log cannot be used or written
};

// The least --lease: a pause of the process below it is not noticed as one.
inline constexpr absl::Duration kLeastLease = kMaxPulseGap;

struct ServerFlags {
  std::string listen = "127.0.0.1:7077";
  std::string http;  // empty: no status page
  std::string state_dir = "./tensorhub-state";
  std::string event_log;  // empty: none
  uint64_t event_log_limit_bytes = uint64_t{64} << 20;
  std::string port_file;     // empty: none
  std::string address_file;  // empty: none
  bool json = false;
  int log_level = 0;  // the least severity that is logged: glog's numbers
  bool log_json = false;
  pid_t parent = 0;  // this process's parent, with which it ends; 0: it outlives its parent
  RegistryLimits limits;
};

struct ParsedFlags {
  ServerFlags flags;
  std::optional<ServerExit> exit;  // set: end with this, everything has been printed
};

// Adds flags of a server that is not the shipped one. Both outlive the parse.
using AddServerFlags = std::function<void(CLI::App& app, ServerFlags& flags)>;

// Prints help and `version` on stdout, errors on stderr.
ParsedFlags ParseServerFlags(int argc, const char* const* argv, const std::string& version,
                             const AddServerFlags& more_flags = nullptr);

}  // namespace th

#endif  // TH_SERVER_FLAGS_H_
