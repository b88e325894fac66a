// The gRPC service: every handler decodes, asks the loop, encodes.
#ifndef TH_SERVER_REFERENCE_SERVICE_H_
#define TH_SERVER_REFERENCE_SERVICE_H_

#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "th/proto/tensorhub.grpc.pb.h"
#include "th/protocol/messages.h"
#include "th/server/registry_loop.h"
#include "th/server/server_metrics.h"
#include "th/server/session_stream.h"

namespace th {

// A controller waits for a version no longer than this at a time; longer ones ask again.
inline constexpr absl::Duration kMaxWaitForVersion = absl::Minutes(10);

// Thread-safe. `loop` and `metrics` outlive the gRPC server that it is registered with.
class ReferenceService final : public tensorhub::v1::ReferenceServer::CallbackService {
 public:
  // `hello` is what this server speaks.
  ReferenceService(RegistryLoop* loop, ServerMetrics* metrics, ProtocolHello hello,
                   OutboundLimits limits);

  grpc::ServerBidiReactor<tensorhub::v1::WorkerToServer, tensorhub::v1::ServerToWorker>* Session(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const tensorhub::v1::ListRequest* request,
                                 tensorhub::v1::Catalog* response) override;
  grpc::ServerUnaryReactor* Resolve(grpc::CallbackServerContext* context,
                                    const tensorhub::v1::ResolveRequest* request,
                                    tensorhub::v1::ResolveResponse* response) override;
  grpc::ServerUnaryReactor* WaitVersion(grpc::CallbackServerContext* context,
                                        const tensorhub::v1::WaitVersionRequest* request,
                                        tensorhub::v1::ResolveResponse* response) override;
  grpc::ServerUnaryReactor* Command(grpc::CallbackServerContext* context,
                                    const tensorhub::v1::CommandRequest* request,
                                    tensorhub::v1::CommandFinished* response) override;
  grpc::ServerUnaryReactor* FindShard(grpc::CallbackServerContext* context,
                                      const tensorhub::v1::FindShardRequest* request,
                                      tensorhub::v1::FindShardResponse* response) override;
  grpc::ServerUnaryReactor* GetLayout(grpc::CallbackServerContext* context,
                                      const tensorhub::v1::GetLayoutRequest* request,
                                      tensorhub::v1::GetLayoutResponse* response) override;
  grpc::ServerUnaryReactor* Events(grpc::CallbackServerContext* context,
                                   const tensorhub::v1::EventsRequest* request,
                                   tensorhub::v1::EventsResponse* response) override;

 private:
  // Decodes, agrees on a version, lets `work(query, turn)` make a StatusOr<Response> on the loop's
  // thread, and answers with it.
  template <typename Request, typename Response, typename Work>
  grpc::ServerUnaryReactor* AskLoop(grpc::CallbackServerContext* context, const Request& request,
                                    Response* response, Work work);

  RegistryLoop* const loop_;
  ServerMetrics* const metrics_;
  const ProtocolHello hello_;
  const OutboundLimits limits_;
};

}  // namespace th

#endif  // TH_SERVER_REFERENCE_SERVICE_H_
