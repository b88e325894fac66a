#include "th/monitoring/http_listener.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/monitoring/http_get.h"

namespace th {
namespace {

using Steady = std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::th::testing::StatusIs;

class HttpListenerTest : public ::testing::Test {
 protected:
  HttpListenerTest() {
    auto listener = HttpListener::Start({"127.0.0.1", 0}, [](const std::string& path) {
      if (path == "/large") return HttpResponse{.body = std::string(5'000'000, 'x')};
      if (path == "/huge") {
        HttpResponse huge;
        huge.body.resize(50'000'000, 'x');
        return huge;
      }
      return HttpResponse{.body = absl::StrCat("you asked for ", path, "\n")};
    });
    EXPECT_OK(listener);
    listener_ = *std::move(listener);
  }
  std::string address() const { return listener_->address().ToString(); }

  std::unique_ptr<HttpListener> listener_;
};

TEST_F(HttpListenerTest, AnswersAGet) {
  EXPECT_THAT(
      HttpGet(address(), "/some/path"),
      AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Length: 25\r\n"),
            HasSubstr("Connection: close\r\n"), EndsWith("\r\n\r\nyou asked for /some/path\n")));
}

TEST_F(HttpListenerTest, LeavesTheQueryAway) {
  EXPECT_THAT(HttpGet(address(), "/path?a=b"), EndsWith("you asked for /path\n"));
}

TEST_F(HttpListenerTest, AnswersAHeadWithTheHeadersAlone) {
  EXPECT_THAT(HttpExchange(address(), "HEAD /some/path HTTP/1.1\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Length: 25\r\n"),
                    EndsWith("\r\n\r\n")));
}

// Connections that say nothing.
class IdleConnections {
 public:
  IdleConnections(const std::string& address, int count) {
    for (int i = 0; i < count; ++i) fds_.push_back(ConnectSocket(address));
    EXPECT_THAT(fds_, ::testing::Each(::testing::Ge(0)));
  }
  ~IdleConnections() {
    for (const int fd : fds_) close(fd);
  }

 private:
  std::vector<int> fds_;
};

// The fastest of some answers: a busy machine may hold one of them up.
absl::Duration FastestAnswer(const std::string& address) {
  absl::Duration fastest = absl::InfiniteDuration();
  for (int i = 0; i < 5; ++i) {
    const Steady::time_point before = Steady::now();
    EXPECT_THAT(HttpGet(address, "/"), StartsWith("HTTP/1.1 200"));
    fastest = std::min(fastest, absl::FromChrono(Steady::now() - before));
  }
  return fastest;
}

TEST_F(HttpListenerTest, IdleConnectionsHoldNobodyUp) {
  const IdleConnections idle(address(), 200);
  EXPECT_LE(FastestAnswer(address()), absl::Milliseconds(50));
}

TEST_F(HttpListenerTest, ConnectionsBeyondTheLimitTakeThePlaceOfIdleOnes) {
  const IdleConnections idle(address(), 2 * kMaxHttpConnections);
  EXPECT_LE(FastestAnswer(address()), absl::Milliseconds(50));
}

TEST_F(HttpListenerTest, AConnectionThatSaysNothingIsClosedAtItsDeadline) {
  const int idle = ConnectSocket(address());
  ASSERT_GE(idle, 0);
  char byte = 0;
  EXPECT_EQ(recv(idle, &byte, 1, 0), 0);
  close(idle);
}

TEST(HttpListenerQuestionsTest, RequestsOfOnePathThatWaitAreOneQuestion) {
  constexpr int kClients = 50;
  absl::Notification asked;
  absl::Notification go_on;
  std::atomic<int> questions = 0;
  ASSERT_OK_AND_ASSIGN(const auto listener,
                       HttpListener::Start({"127.0.0.1", 0}, [&](const std::string&) {
                         if (++questions == 1) {
                           asked.Notify();
                           go_on.WaitForNotification();
                         }
                         return HttpResponse{.body = "answer\n"};
                       }));
  const std::string request = "GET / HTTP/1.1\r\n\r\n";
  std::vector<int> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(ConnectSocket(listener->address().ToString()));
    ASSERT_GE(clients.back(), 0);
    ASSERT_EQ(send(clients.back(), request.data(), request.size(), MSG_NOSIGNAL), request.size());
    if (i == 0) asked.WaitForNotification();
  }
  go_on.Notify();
  for (const int fd : clients) {
    char byte = 0;
    EXPECT_EQ(recv(fd, &byte, 1, 0), 1);
    close(fd);
  }
  EXPECT_EQ(questions, 2);
}

TEST_F(HttpListenerTest, SendsLargeBodies) {
  EXPECT_GT(HttpGet(address(), "/large").size(), 5'000'000u);
}

TEST_F(HttpListenerTest, AnswersOneAfterTheOther) {
  for (int i = 0; i < 20; ++i) EXPECT_THAT(HttpGet(address(), "/"), StartsWith("HTTP/1.1 200"));
}

struct BadRequest {
  const char* name;
  std::string request;
  const char* answer;
};

class BadRequestTest : public HttpListenerTest, public ::testing::WithParamInterface<BadRequest> {};

TEST_P(BadRequestTest, IsRefused) {
  EXPECT_THAT(HttpExchange(address(), GetParam().request), StartsWith(GetParam().answer));
  EXPECT_THAT(HttpGet(address(), "/"), StartsWith("HTTP/1.1 200"));
}

INSTANTIATE_TEST_SUITE_P(
    HttpListener, BadRequestTest,
    ::testing::Values(BadRequest{"Post", "POST / HTTP/1.1\r\n\r\n", "HTTP/1.1 405"},
                      BadRequest{"OtherProtocol", "GET / SPDY/3\r\n\r\n", "HTTP/1.1 400"},
                      BadRequest{"NoPath", "GET\r\n\r\n", "HTTP/1.1 400"},
                      BadRequest{"Garbage", std::string("\x00\xff\x01\r\n\r\n", 7), "HTTP/1.1 400"},
                      BadRequest{"Unfinished", "GET / HTTP/1.1\r\nHost:", "HTTP/1.1 400"},
                      BadRequest{"TooLong",
                                 absl::StrCat("GET /", std::string(kMaxHttpRequestBytes - 5, 'a')),
                                 "HTTP/1.1 400"}),
    [](const auto& param) { return std::string(param.param.name); });

// The rest of the answer is more than the sockets between them take: the listener waits for a
// client that does not read.
TEST_F(HttpListenerTest, AClientThatDoesNotReadDoesNotHoldUpTheEnd) {
  const int deaf = ConnectSocket(address());
  ASSERT_GE(deaf, 0);
  const std::string request = "GET /huge HTTP/1.1\r\n\r\n";
  ASSERT_EQ(send(deaf, request.data(), request.size(), MSG_NOSIGNAL), request.size());
  char byte = 0;
  ASSERT_EQ(recv(deaf, &byte, 1, 0), 1);  // the answer has begun
  const Steady::time_point before = Steady::now();
  listener_.reset();
  EXPECT_LT(absl::FromChrono(Steady::now() - before), kHttpDeadline / 2);
  close(deaf);
}

// A listener that gives up on a client soon, and what a client gets that takes a part of a large
// response each time that it is let.
class SlowClientTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 50'000'000;

  size_t Take(absl::Duration longest_response, absl::Duration pause) {
    const auto listener = HttpListener::Start(
        {"127.0.0.1", 0},
        [](const std::string&) { return HttpResponse{.body = std::string(kBytes, 'x')}; },
        {.deadline = absl::Milliseconds(200), .longest_response = longest_response});
    EXPECT_OK(listener);
    const int client = ConnectSocket((*listener)->address().ToString());
    const std::string request = "GET / HTTP/1.1\r\n\r\n";
    EXPECT_EQ(send(client, request.data(), request.size(), 0), request.size());
    std::string buffer(4'000'000, '\0');
    size_t taken = 0;
    for (;;) {
      // Until the listener has sent all that fits into the sockets' buffers, and waits.
      poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(pause)));
      const ssize_t count = recv(client, buffer.data(), buffer.size(), MSG_WAITALL);
      if (count <= 0) break;
      taken += static_cast<size_t>(count);
    }
    close(client);
    return taken;
  }
};

TEST_F(SlowClientTest, WhoTakesTheResponseSteadilyGetsAllOfIt) {
  EXPECT_GT(Take(absl::Minutes(1), absl::Milliseconds(50)), kBytes);  // and the head
}

TEST_F(SlowClientTest, WhoTakesTooLongInAllIsCut) {
  EXPECT_LT(Take(absl::Milliseconds(300), absl::Milliseconds(100)), kBytes);
}

TEST_F(HttpListenerTest, ATakenPortIsNamed) {
  EXPECT_THAT(
      HttpListener::Start(listener_->address(), [](const std::string&) { return HttpResponse{}; }),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(address())));
}

TEST_F(HttpListenerTest, TheEndFreesThePort) {
  const ListenAddress address = listener_->address();
  listener_.reset();
  EXPECT_OK(HttpListener::Start(address, [](const std::string&) { return HttpResponse{}; }));
}

}  // namespace
}  // namespace th
