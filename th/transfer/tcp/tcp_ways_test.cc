// Every way moves the bytes of a buffer whole, and settings are read as they are written.
#include "th/transfer/tcp/tcp_ways.h"

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/transfer/stream/socket.h"

namespace th::stream {
namespace {

using ::testing::HasSubstr;
using ::th::testing::StatusIs;

class TcpWaysTest : public ::testing::TestWithParam<std::string> {};

// Connected to each other over loopback.
std::pair<Socket, Socket> ConnectedPair() {
  const Socket listener = *ListenOn(*SocketAddress::Parse("127.0.0.1:0"));
  const SocketAddress address = SocketAddress::OfSelf(listener.fd());
  Socket client(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(connect(client.fd(), address.get(), address.size()), 0);
  Socket accepted;
  while (!accepted.open()) accepted = Socket(accept(listener.fd(), nullptr, nullptr));
  return {std::move(client), std::move(accepted)};
}

TEST_P(TcpWaysTest, AllBytesArriveAndAreHandedOverOnce) {
  ASSERT_OK_AND_ASSIGN(const TcpSettings settings, ParseTcpSettings(GetParam()));
  std::vector<Socket> owned;
  std::vector<int> from, to;
  for (uint32_t i = 0; i < settings.connections; ++i) {
    auto [sender, receiver] = ConnectedPair();
    from.push_back(sender.fd());
    to.push_back(receiver.fd());
    owned.push_back(std::move(sender));
    owned.push_back(std::move(receiver));
  }
  std::vector<char> sent(3'000'001), received(sent.size());
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>(i * 31 + i / 4096);
  std::thread sending([&] { SendStripes(settings, from, {sent.data(), sent.size()}); });
  absl::Mutex mu;
  uint64_t handed = 0;
  ReceiveStripes(settings, to, {received.data(), received.size()}, [&](const char*, size_t bytes) {
    const absl::MutexLock lock(&mu);
    handed += bytes;
  });
  sending.join();
  EXPECT_EQ(handed, sent.size());
  EXPECT_EQ(received, sent);
}

INSTANTIATE_TEST_SUITE_P(All, TcpWaysTest,
                         ::testing::Values("blocking/1", "blocking/3", "blocking-zerocopy/2/2/64",
                                           "epoll/3/2/64", "epoll/2/1"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

TEST(TcpSettingsTest, WhatIsLeftOutIsTheDefault) {
  ASSERT_OK_AND_ASSIGN(const TcpSettings settings, ParseTcpSettings("uring/4"));
  EXPECT_EQ(settings.way, TcpWay::kUring);
  EXPECT_EQ(settings.connections, 4u);
  EXPECT_EQ(settings.loops, 4u);
  EXPECT_EQ(settings.request_bytes, 1u << 20);
  EXPECT_STREQ(settings.congestion_control, "cubic");
}

TEST(TcpSettingsTest, EveryPartIsRead) {
  ASSERT_OK_AND_ASSIGN(const TcpSettings settings, ParseTcpSettings("epoll/4/2/512/0/bbr"));
  EXPECT_EQ(settings.way, TcpWay::kEpoll);
  EXPECT_EQ(settings.loops, 2u);
  EXPECT_EQ(settings.request_bytes, 512u << 10);
  EXPECT_EQ(settings.send_buffer_bytes, 0u);
  EXPECT_STREQ(settings.congestion_control, "bbr");
}

TEST(TcpSettingsTest, WhatIsWrongIsNamed) {
  const auto wrong = [](const std::string& text, const std::string& named) {
    EXPECT_THAT(ParseTcpSettings(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(named)))
        << text;
  };
  wrong("", "WAY");
  wrong("poll/2", "WAY");
  wrong("epoll/2/2/1024/256/cubic/7", "WAY");
  wrong("epoll/0", "connections");
  wrong("epoll/65", "connections");
  wrong("epoll/2/0", "loops");
  wrong("epoll/2/2/0", "request");
  wrong("epoll/2/2/4194304", "request");
  wrong("epoll/2/2/1024/x", "send buffer");
  wrong("epoll/2/2/1024/256/a-name-that-is-too-long", "congestion control");
}

}  // namespace
}  // namespace th::stream
