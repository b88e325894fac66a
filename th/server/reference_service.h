// The gRPC service as its workers see it: one stream each. ControllerService has the other methods.
#ifndef TH_SERVER_REFERENCE_SERVICE_H_
#define TH_SERVER_REFERENCE_SERVICE_H_

#include "grpcpp/grpcpp.h"
#include "th/proto/tensorhub.grpc.pb.h"
#include "th/server/registry_loop.h"
#include "th/server/server_metrics.h"
#include "th/server/session_stream.h"

namespace th {

// The generated service with the controllers' methods left to a generic one.
using WorkersService = tensorhub::v1::ReferenceServer::WithGenericMethod_List<
    tensorhub::v1::ReferenceServer::WithGenericMethod_Resolve<
        tensorhub::v1::ReferenceServer::WithGenericMethod_WaitVersion<
            tensorhub::v1::ReferenceServer::WithGenericMethod_Command<
                tensorhub::v1::ReferenceServer::WithGenericMethod_FindShard<
                    tensorhub::v1::ReferenceServer::WithGenericMethod_ClaimForm<
                        tensorhub::v1::ReferenceServer::WithGenericMethod_GetLayout<
                            tensorhub::v1::ReferenceServer::WithGenericMethod_Events<
                                tensorhub::v1::ReferenceServer::WithCallbackMethod_Session<
                                    tensorhub::v1::ReferenceServer::Service>>>>>>>>>;

// Thread-safe. `loop` and `metrics` outlive the gRPC server that it is registered with.
class ReferenceService final : public WorkersService {
 public:
  ReferenceService(RegistryLoop* loop, ServerMetrics* metrics, OutboundLimits limits)
      : loop_(loop), metrics_(metrics), limits_(limits) {}

  grpc::ServerBidiReactor<tensorhub::v1::WorkerToServer, tensorhub::v1::ServerToWorker>* Session(
      grpc::CallbackServerContext* context) override {
    return SessionStream::Start(context, loop_, metrics_, limits_);
  }

 private:
  RegistryLoop* const loop_;
  ServerMetrics* const metrics_;
  const OutboundLimits limits_;
};

}  // namespace th

#endif  // TH_SERVER_REFERENCE_SERVICE_H_
