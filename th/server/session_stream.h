// One worker's gRPC stream.
//
// Reads one message at a time: the next read starts when the loop has handled the last one, so a
// worker that talks too fast is slowed down by HTTP/2 and not by the server's memory. Writes go
// through a bounded queue: a worker that does not read loses its stream with RESOURCE_EXHAUSTED.
//
// It owns itself from Start() until gRPC is done with it; the loop shares it meanwhile.
#ifndef TH_SERVER_SESSION_STREAM_H_
#define TH_SERVER_SESSION_STREAM_H_

#include <cstddef>
#include <list>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/grpcpp.h"
#include "th/proto/tensorhub.pb.h"
#include "th/server/registry_loop.h"
#include "th/server/server_metrics.h"

namespace th {

// The limits of what may wait for a worker to read it. A worker is sent a handful of messages an
// operation, each with up to 1 MiB of attributes.
struct OutboundLimits {
  size_t max_messages = 1024;
  size_t max_bytes = size_t{32} << 20;
};

class SessionStream final
    : public grpc::ServerBidiReactor<tensorhub::v1::WorkerToServer, tensorhub::v1::ServerToWorker>,
      public StreamPeer {
 public:
  // `loop` and `metrics` outlive the gRPC server. The result belongs to gRPC.
  static SessionStream* Start(grpc::CallbackServerContext* context, RegistryLoop* loop,
                              ServerMetrics* metrics, OutboundLimits limits);
  ~SessionStream() override;

  // StreamPeer; any thread.
  bool Send(const ServerMessage& message) override;
  void ReadNext() override;
  void CloseAfterSending() override;
  void Abort() override;

  // gRPC's threads.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  struct Outbound {
    tensorhub::v1::ServerToWorker frame;
    size_t bytes = 0;
  };

  SessionStream(grpc::CallbackServerContext* context, RegistryLoop* loop, ServerMetrics* metrics,
                OutboundLimits limits);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishOnce(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  RegistryLoop* const loop_;
  ServerMetrics* const metrics_;
  const OutboundLimits limits_;
  ConnectionId connection_;                 // set before the first read
  tensorhub::v1::WorkerToServer incoming_;  // the read's in flight

  absl::Mutex mutex_;
  grpc::CallbackServerContext* context_ ABSL_GUARDED_BY(mutex_);  // null once gRPC is done
  std::list<Outbound> outbound_ ABSL_GUARDED_BY(mutex_);          // the first is being written
  size_t outbound_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Shared because the loop may hold the peer a moment longer than gRPC does, and the other way
  // round.
  std::shared_ptr<SessionStream> self_;
};

}  // namespace th

#endif  // TH_SERVER_SESSION_STREAM_H_
