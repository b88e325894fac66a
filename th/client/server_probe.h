// Why no reference server can be spoken to at an address, for an error's text: gRPC tells a port
// that is taken by something else from one where nobody listens at best in a word.
//
//   return absl::UnavailableError(absl::StrCat("no reference server at ", server, ": ",
//                                              WhyNoServer(server, absl::Seconds(1))));
#ifndef TH_CLIENT_SERVER_PROBE_H_
#define TH_CLIENT_SERVER_PROBE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace th {

// Long beside what a server takes, short beside what its caller has waited.
inline constexpr absl::Duration kProbeTimeout = absl::Seconds(1);

// The answer of WhyNoServer where a server answers by now.
inline constexpr absl::string_view kServerAnswers = "a gRPC server answers there now; try again";

// Looks the host up, connects, and listens to what answers gRPC's first words, for so long at most
// each. Says what was found and what to do.
// `server`: "host:port". Thread-safe, blocks.
std::string WhyNoServer(const std::string& server, absl::Duration timeout);

}  // namespace th

#endif  // TH_CLIENT_SERVER_PROBE_H_
