// A TCP connection over which two ends speak in JSON objects, one a line.
//
//   LineChannel channel(std::move(socket));
//   TH_RETURN_IF_ERROR(channel.Send({{"ask", "time"}}, absl::Seconds(5)));
//   TH_ASSIGN_OR_RETURN(const nlohmann::json answer, channel.Receive(absl::Seconds(5)));
//
// It takes whatever the other end sends: lines that are too long or no objects are errors, and no
// wait is longer than its timeout. Owned by one thread.
#ifndef TH_DOCTOR_LINE_CHANNEL_H_
#define TH_DOCTOR_LINE_CHANNEL_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/doctor/sockets.h"

namespace th::doctor {

class LineChannel {
 public:
  // The most bytes of a line. The longest that is sent holds the findings of a host, some 10 kB.
  static constexpr size_t kMaxLineBytes = 1 << 20;
  // The most objects and lists within each other. Findings have three.
  static constexpr int kMaxNesting = 8;
  // How long SendLast waits for the other end to read it and close.
  static constexpr absl::Duration kLingerTime = absl::Milliseconds(500);

  // `stop_fd` ends every wait once it is readable; -1: there is none. It outlives the channel.
  explicit LineChannel(stream::Socket socket, int stop_fd = -1)
      : socket_(std::move(socket)), stop_fd_(stop_fd) {}

  // Errors of both: DEADLINE_EXCEEDED; UNAVAILABLE when the other end has closed the connection or
  // the system says that it broke; CANCELLED by `stop_fd`.
  absl::Status Send(const nlohmann::json& object, absl::Duration timeout);
  // Also INVALID_ARGUMENT, showing the first bytes, for what is no line with a JSON object: it is
  // noticed at the first byte where that is no '{'.
  absl::StatusOr<nlohmann::json> Receive(absl::Duration timeout);
  // Sends, and gives the other end time to read it: a connection that is closed with unread bytes
  // is reset, and what was sent last is lost.
  void SendLast(const nlohmann::json& object);

  int fd() const { return socket_.fd(); }
  // True once any byte has come.
  bool heard() const { return heard_; }

 private:
  absl::Status ReceiveMore(const WaitLimit& limit);
  absl::Status NoLine() const;

  stream::Socket socket_;
  const int stop_fd_;
  std::string received_;  // bytes after the last line that was returned
  bool heard_ = false;
};

}  // namespace th::doctor

#endif  // TH_DOCTOR_LINE_CHANNEL_H_
