// Checks of the values of flags while CLI11 parses: a value that is none is a usage error that says
// how to write it. RunCommandLine refuses an empty value before.
//
//   app->add_option("--owner", owner, "in whose name")->check(IsName("owner"));
//   app->add_option("--transports", names, "...")->delimiter(',')->transform(IsTransport());
//
// Thread-safety: pure functions.
#ifndef TH_CLIENT_FLAGS_FLAG_CHECKS_H_
#define TH_CLIENT_FLAGS_FLAG_CHECKS_H_

#include <string>

#include "CLI/CLI.hpp"

namespace th {

// How a user names a version (ParseVersionSelector), for the flag's help.
inline constexpr char kVersionHelp[] = "a label, latest, latest-K (K before it) or #E.N";

// The name of a run, a model, a group or an owner: `what` names it in the error.
CLI::Validator IsName(const std::string& what);
// The addresses of the reference server.
CLI::Validator IsServerList();
// "site=a,rack=r1,host=n7".
CLI::Validator IsLocation();
// Where a data plane listens: a numeric address, perhaps with a port.
CLI::Validator IsDataAddress();
// The name of a transport, which becomes the one that the client knows: same_host (same-host),
// ibverbs (rdma), cuda_ipc (cuda, cuda-ipc), tcp. Of transform(), as it changes the value.
CLI::Validator IsTransport();

}  // namespace th

#endif  // TH_CLIENT_FLAGS_FLAG_CHECKS_H_
