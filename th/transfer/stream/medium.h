// The part that each transport over stream sockets (tcp, same_host) has for itself: the endpoints
// that it reaches, how an endpoint becomes a socket's address, how a socket is tuned, and how
// payloads are read from the source's memory where they do not travel through the socket.
//
// Thread-safe; does not change.
#ifndef TH_TRANSFER_STREAM_MEDIUM_H_
#define TH_TRANSFER_STREAM_MEDIUM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "th/memory/memory_region.h"
#include "th/protocol/messages.h"
#include "th/transfer/stream/remote_memory.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/transport.h"

namespace th::stream {

class Medium {
 public:
  virtual ~Medium() = default;
  virtual absl::string_view name() const = 0;         // Endpoint::transport
  virtual absl::string_view thread_name() const = 0;  // of its loops, without their number
  // See Transport::Reach.
  virtual absl::Status Reach(const Endpoint& endpoint) const = 0;
  // See Transport::left_out.
  virtual std::vector<std::string> left_out() const { return {}; }
  // INVALID_ARGUMENT saying what is expected.
  virtual absl::StatusOr<SocketAddress> AddressOf(const Endpoint& endpoint) const = 0;
  // Sets the options of a connection that either side has just made.
  virtual void Tune(int fd) const = 0;

  // Payloads travel through the socket unless a medium implements these two; then the source tells
  // its readers where segments lie in its memory, and they read them from there.
  // The source's end of an accepted connection.
  virtual std::unique_ptr<ServedMemory> Serve(int fd) const { return nullptr; }
  // The reader's end of a connection that has been made.
  struct ReadSetup {
    int fd = -1;
    uint32_t number = 0;       // of the connection, within its pull
    bool checksummed = false;  // what is read is summed right away
    // The destination's, as Attach was told of it, for the time of the call; empty: unknown.
    absl::Span<const MemoryRegion> into = {};
    // As of PullTarget.
    std::function<std::shared_ptr<const void>(std::string device)> begin_device_write = nullptr;
  };
  virtual std::unique_ptr<RemoteMemory> Read(const ReadSetup& setup) const { return nullptr; }
  // See Transport::maps, Transport::copies_by_device.
  virtual bool maps() const { return false; }
  virtual bool copies_by_device() const { return false; }
  // See Transport::Attach. The handles may outlive the medium.
  virtual absl::StatusOr<std::unique_ptr<AttachedMemory>> Attach(
      absl::Span<const MemoryRegion> regions) const {
    return std::make_unique<AttachedMemory>();
  }
};

}  // namespace th::stream

#endif  // TH_TRANSFER_STREAM_MEDIUM_H_
