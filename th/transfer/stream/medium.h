// The part that each transport over stream sockets (tcp, same_host) has for itself: the endpoints
// that it reaches, how an endpoint becomes a socket's address, how a socket is tuned, and whether
// payloads travel through the socket or are read from the source's memory.
//
// Thread-safe; does not change.
#ifndef TH_TRANSFER_STREAM_MEDIUM_H_
#define TH_TRANSFER_STREAM_MEDIUM_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "th/protocol/messages.h"
#include "th/transfer/stream/socket.h"

namespace th::stream {

class Medium {
 public:
  virtual ~Medium() = default;
  virtual absl::string_view name() const = 0;         // Endpoint::transport
  virtual absl::string_view thread_name() const = 0;  // of its loops, without their number
  // See Transport::Reach.
  virtual absl::Status Reach(const Endpoint& endpoint) const = 0;
  // INVALID_ARGUMENT saying what is expected.
  virtual absl::StatusOr<SocketAddress> AddressOf(const Endpoint& endpoint) const = 0;
  // Sets the options of a connection that either side has just made.
  virtual void Tune(int fd) const = 0;
  // The source tells its readers where segments lie in its memory, and they read them from there
  // (Located); a segment in too many pieces goes through the socket all the same.
  virtual bool reads_memory() const = 0;
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_MEDIUM_H_
