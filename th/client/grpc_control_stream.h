// ControlStream over gRPC's callback API.
#ifndef TH_CLIENT_GRPC_CONTROL_STREAM_H_
#define TH_CLIENT_GRPC_CONTROL_STREAM_H_

#include <memory>
#include <string>

#include "th/client/control_stream.h"
#include "th/client/runtime.h"

namespace th {

// `server`: "host:port". The channel is made at the first Open. `bytes` counts both ways; shared,
// for a stream may end after its membership.
// OnStreamClosed is called on th-control, where streams end too: gRPC must not lose a channel
// within its own callbacks.
std::unique_ptr<ControlConnector> MakeGrpcConnector(std::string server,
                                                    std::shared_ptr<ControlByteCount> bytes,
                                                    std::shared_ptr<Runtime> runtime);

}  // namespace th

#endif  // TH_CLIENT_GRPC_CONTROL_STREAM_H_
