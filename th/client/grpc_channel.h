// A gRPC channel to the reference server as the client wants it.
#ifndef TH_CLIENT_GRPC_CHANNEL_H_
#define TH_CLIENT_GRPC_CHANNEL_H_

#include <memory>
#include <string>

#include "grpcpp/channel.h"

namespace th {

// `server`: "host:port". Reconnects within half a second of the server's return, notices a server
// whose machine is gone within 15 s, uses no proxy. Call on th-control: gRPC's threads inherit its
// blocked signals.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& server);

}  // namespace th

#endif  // TH_CLIENT_GRPC_CHANNEL_H_
