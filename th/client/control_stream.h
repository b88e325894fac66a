// The worker's stream to the reference server: domain messages in, domain messages out.
//
//   auto stream = connector.Open(StreamId(1), observer);   // on th-control
//   stream->Send(join);
//   stream->Finish();                                      // or Cancel()
//
// Ordered. Nothing blocks: what is sent waits in a bounded queue; a stream that exceeds it ends.
#ifndef TH_CLIENT_CONTROL_STREAM_H_
#define TH_CLIENT_CONTROL_STREAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "th/identifiers/identifiers.h"
#include "th/protocol/messages.h"

namespace th {

// Messages that wait to be written, at most. The session sends a handful at a time; after a rejoin
// one or two a buffer and operation.
inline constexpr size_t kMaxQueuedMessages = 8192;

using StreamId = StrongInt<struct StreamIdTag>;

// Serialised messages without gRPC's framing, both ways.
using ControlByteCount = std::atomic<uint64_t>;

// Thread-safe.
class ControlStream {
 public:
  virtual ~ControlStream() = default;
  virtual void Send(const WorkerMessage& message) = 0;
  // Writes what is queued, then ends the stream.
  virtual void Finish() = 0;
  virtual void Cancel() = 0;
};

// Called in order, messages on threads of the stream's, never inline from a call into the stream.
class ControlStreamObserver {
 public:
  virtual ~ControlStreamObserver() = default;
  virtual void OnServerMessage(StreamId stream, const ServerMessage& message) = 0;
  // The last call for `stream`; it comes for every stream. On th-control.
  virtual void OnStreamClosed(StreamId stream, absl::Status why) = 0;
};

class ControlConnector {
 public:
  virtual ~ControlConnector() = default;
  // The observer is kept alive until OnStreamClosed has returned.
  virtual std::shared_ptr<ControlStream> Open(StreamId id,
                                              std::shared_ptr<ControlStreamObserver> observer) = 0;
};

}  // namespace th

#endif  // TH_CLIENT_CONTROL_STREAM_H_
