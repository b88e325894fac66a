// Ways to move bytes over connected TCP sockets, for tcp_benchmark to compare: each connection
// carries a stripe of one buffer. A failure prints the reason and exits the process.
#ifndef TH_TRANSFER_TCP_TCP_WAYS_H_
#define TH_TRANSFER_TCP_TCP_WAYS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace th::stream {

enum class TcpWay : uint8_t {
  kBlocking,          // a thread for each connection
  kBlockingZeroCopy,  // the same, sent with MSG_ZEROCOPY
  kEpoll,             // loops over sockets that do not block, as the transport's own
  kUring,             // io_uring; one request of a connection is under way at a time
  kUringZeroCopy,     // the same, sent with IORING_OP_SEND_ZC
};

// A plain value: it goes from the reader's process to the source's as it is.
struct TcpSettings {
  TcpWay way = TcpWay::kBlocking;
  uint32_t connections = 2;
  uint32_t loops = 2;  // threads of an end that share the connections; blocking: one for each
  uint32_t request_bytes = 1 << 20;
  uint32_t send_buffer_bytes = 256 << 10;  // SO_SNDBUF; 0: the system's own tuning
  char congestion_control[16] = "cubic";
};

// Reads WAY/CONNECTIONS/LOOPS/REQUEST_KIB/SEND_BUFFER_KIB/CONGESTION_CONTROL, of which all but the
// first may be left out from the end: "epoll/4/2". INVALID_ARGUMENT naming the part that is wrong.
absl::StatusOr<TcpSettings> ParseTcpSettings(const std::string& text);

struct TcpBuffer {
  char* data = nullptr;
  uint64_t bytes = 0;
};

// Counts what the kernel did with sends that were to go without a copy.
struct ZeroCopies {
  uint64_t sends = 0;
  uint64_t copied = 0;  // of those
};

// Both return once all bytes have been taken by the kernel, or are in `buffer`.
ZeroCopies SendStripes(const TcpSettings& settings, absl::Span<const int> sockets,
                       TcpBuffer buffer);
// `on_bytes` hears, on the threads that receive, of bytes that have just landed, up to 256 KiB each
// time; it is called for all of them.
void ReceiveStripes(const TcpSettings& settings, absl::Span<const int> sockets, TcpBuffer buffer,
                    absl::FunctionRef<void(const char* data, size_t bytes)> on_bytes);

}  // namespace th::stream

#endif  // TH_TRANSFER_TCP_TCP_WAYS_H_
