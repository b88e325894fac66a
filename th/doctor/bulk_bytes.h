// Bytes without meaning through one TCP connection for a bounded time, to see how fast it is.
//
// The receiving end decides when it is enough: it counts for `duration` and closes. The sending end
// goes on until then, but not beyond `duration` and two stall limits.
#ifndef TH_DOCTOR_BULK_BYTES_H_
#define TH_DOCTOR_BULK_BYTES_H_

#include <cstddef>

#include "absl/time/time.h"
#include "th/doctor/facts.h"

namespace th::doctor {

// The bytes of one call of send or recv, as many as TensorHub's transport over TCP hands over.
inline constexpr size_t kBulkCallBytes = 256 << 10;

struct BulkLimits {
  absl::Duration duration = absl::Seconds(1);
  // The connection stands still when no byte came for so long. With net.ipv4.tcp_mtu_probing=1 the
  // kernel tries smaller packets after the fourth timeout of retransmission, at 3 s (0.2 + 0.4 +
  // 0.8 + 1.6), and then it does not.
  absl::Duration stall = absl::Seconds(4);
};

// Sends on a non-blocking socket until the other end closes or resets the connection, the time is
// over, or `stop_fd` is readable. From then on closing the socket resets the connection.
void SendBulk(int fd, const BulkLimits& limits, int stop_fd);

// Receives on a non-blocking socket, likewise. The error is set when the other end closes before
// `duration` was over, or the connection breaks.
RateFacts ReceiveBulk(int fd, const BulkLimits& limits, int stop_fd);

}  // namespace th::doctor

#endif  // TH_DOCTOR_BULK_BYTES_H_
