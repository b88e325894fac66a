#include "th/client/server_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::HasSubstr;

// Listens on a port of the loopback, or only has it where it is not to listen.
class Port {
 public:
  explicit Port(bool listens) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_TRUE(!listens || listen(fd_, 8) == 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  ~Port() { close(fd_); }

  const std::string& address() const { return address_; }
  // Answers the first who comes, once it has spoken, and hangs up.
  void AnswerOnce(const std::string& answer) {
    const int peer = accept(fd_, nullptr, nullptr);
    char heard = 0;
    EXPECT_EQ(recv(peer, &heard, 1, 0), 1);
    EXPECT_EQ(send(peer, answer.data(), answer.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(answer.size()));
    close(peer);
  }

 private:
  const int fd_;
  std::string address_;
};

std::string WhyOf(const std::string& answer) {
  Port port(/*listens=*/true);
  std::thread answering([&] { port.AnswerOnce(answer); });
  const std::string why = WhyNoServer(port.address(), absl::Seconds(30));
  answering.join();
  return why;
}

TEST(ServerProbeTest, AHostThatNobodyKnowsIsNamed) {
  EXPECT_THAT(WhyNoServer("no-such-host.invalid:7077", absl::Seconds(30)),
              HasSubstr("the host no-such-host.invalid is not known here"));
}

TEST(ServerProbeTest, APortWhereNobodyListensIsToldFromOneThatIsSilent) {
  const Port unused(/*listens=*/false), silent(/*listens=*/true);
  EXPECT_THAT(WhyNoServer(unused.address(), absl::Seconds(30)), HasSubstr("nothing listens there"));
  EXPECT_THAT(WhyNoServer(silent.address(), absl::Milliseconds(20)), HasSubstr("says nothing"));
}

TEST(ServerProbeTest, WhatAnswersIsTold) {
  EXPECT_THAT(WhyOf("HTTP/1.1 400 Bad Request\r\n\r\n"), HasSubstr("speaks HTTP, not gRPC"));
  EXPECT_THAT(WhyOf("220 mail.example ESMTP\r\n"), HasSubstr("does not speak gRPC"));
  EXPECT_THAT(WhyOf(std::string("\0\0\0\4\0\0\0\0\0", 9)), HasSubstr("answers there now"));
}

}  // namespace
}  // namespace th
