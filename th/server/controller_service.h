// The calls of controllers: every handler decodes, asks the loop, encodes.
//
// They are served as bytes (a generic service): a method that gRPC 1.51 decodes itself costs 160
// bytes on every connection, and the thousands of workers never call one of these.
#ifndef TH_SERVER_CONTROLLER_SERVICE_H_
#define TH_SERVER_CONTROLLER_SERVICE_H_

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "th/protocol/messages.h"
#include "th/server/controller_call.h"
#include "th/server/registry_loop.h"
#include "th/server/server_metrics.h"

namespace th {

// Thread-safe. `loop` and `metrics` outlive the gRPC server that it is registered with.
class ControllerService final : public grpc::CallbackGenericService {
 public:
  // `hello` is what this server speaks.
  ControllerService(RegistryLoop* loop, ServerMetrics* metrics, ProtocolHello hello,
                    CallLimits limits);

  // Called by gRPC. An unknown method ends with UNIMPLEMENTED.
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;

 private:
  // Serves `method` of the service ReferenceServer: decodes a Request, agrees on a version, calls
  // `handle(call, query)`.
  template <typename Request, typename Handle>
  void Serve(absl::string_view method, Handle handle);
  // Likewise; answers with the StatusOr<Response> that `work(query, turn)` makes on the loop's
  // thread.
  template <typename Request, typename Work>
  void AskLoop(absl::string_view method, Work work);
  void ServeWaits();

  RegistryLoop* const loop_;
  const ProtocolHello hello_;
  const absl::Duration longest_wait_;
  OpenCalls open_calls_;
  absl::flat_hash_map<std::string, ControllerCall::Handler> handlers_;  // by the method's full name
};

}  // namespace th

#endif  // TH_SERVER_CONTROLLER_SERVICE_H_
