// ControlStream over gRPC's callback API.
#ifndef TH_CLIENT_GRPC_CONTROL_STREAM_H_
#define TH_CLIENT_GRPC_CONTROL_STREAM_H_

#include <memory>
#include <string>

#include "th/client/control_stream.h"
#include "th/client/runtime.h"
#include "th/client/server_list.h"

namespace th {

// A stream goes to the server that was joined last, or to where that one has sent us; after one
// that was not joined to the next of the list. The channel is made at the first Open, and anew for
// another server. `bytes` counts both ways; shared, for a stream may end after its membership.
// OnStreamClosed is called on th-control, where streams end too: gRPC must not lose a channel
// within its own callbacks.
std::unique_ptr<ControlConnector> MakeGrpcConnector(ServerList servers,
                                                    std::shared_ptr<ControlByteCount> bytes,
                                                    std::shared_ptr<Runtime> runtime);

}  // namespace th

#endif  // TH_CLIENT_GRPC_CONTROL_STREAM_H_
