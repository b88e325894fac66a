#include "th/client/grpc_channel.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "grpc/impl/codegen/grpc_types.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "th/client/keep_alive.h"
#include "th/wire/grpc_callback_queue.h"
#include "th/wire/limits.h"

namespace th {
namespace {

constexpr int kKeepAliveTimeoutMs = 5'000;
// gRPC's own back-off would make a restarted server wait for up to two minutes.
constexpr int kReconnectFirstMs = 50;
constexpr int kReconnectMaxMs = 500;
// The time of one attempt to connect. gRPC calls it the minimal back-off.
constexpr int kConnectTimeoutMs = 2'000;
constexpr int kResolveAgainAfterMs = 1'000;

// Processes that start together count from numbers of their own.
uint32_t NextChannel() {
  static std::atomic<uint32_t> next = static_cast<uint32_t>(getpid()) << 8;
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& server) {
  KeepGrpcCallbackQueue();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(KeepAliveOf(NextChannel())));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepAliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectFirstMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMaxMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kResolveAgainAfterMs);
  // A trainer's http_proxy is for downloads.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A connection of its own: memberships of one process do not wait for each other's layouts.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kHttp2WindowBytes);
  arguments.SetInt(GRPC_ARG_ENABLE_CHANNELZ, 0);  // its service is not offered
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytesOnWire);
  arguments.SetMaxSendMessageSize(kMaxMessageBytesOnWire);
  return grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace th
