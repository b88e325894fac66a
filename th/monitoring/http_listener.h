// A small HTTP/1.1 server for status pages: GET and HEAD only, one request a connection. One thread
// serves many connections at once, so that idle ones (a port scan) hold nobody up.
//
//   TH_ASSIGN_OR_RETURN(auto http, HttpListener::Start(address, [](const std::string& path) {
//     return HttpResponse{.body = "hello\n"};
//   }));
//
// The handler runs on the listener's thread. In each round it is called once for each path that is
// asked for, and all clients that wait for the path share the response: more clients are no more
// calls. Every connection waits while it runs, and a client whose request is not whole yet may
// exceed its time, so it has to return well within kHttpDeadline.
//
// Bounded: connections (Options::max_connections; see MakeRoom), the time of each (kHttpDeadline
// for its request, and for each part of the response that it takes, kHttpLongestResponse in all), a
// request (kMaxHttpRequestBytes) and what clients have not read (kMaxHttpUnsentBytes).
#ifndef TH_MONITORING_HTTP_LISTENER_H_
#define TH_MONITORING_HTTP_LISTENER_H_

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/monitoring/listen_address.h"

namespace th {

// From a connection's beginning to its whole request, and between two parts of the response that it
// takes.
inline constexpr absl::Duration kHttpDeadline = absl::Seconds(2);
// For the whole response, of a client that takes it steadily.
inline constexpr absl::Duration kHttpLongestResponse = absl::Seconds(30);
inline constexpr size_t kMaxHttpRequestBytes = size_t{8} << 10;
inline constexpr size_t kMaxHttpConnections = 256;
// Answers of one round count once, however many clients get them; beyond this clients hear 503.
inline constexpr size_t kMaxHttpUnsentBytes = size_t{256} << 20;

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};
// Called on the listener's thread with the path, without the query.
using HttpHandler = std::function<HttpResponse(const std::string& path)>;

class HttpListener {
 public:
  struct Options {
    size_t max_connections = kMaxHttpConnections;  // at least 1
    absl::Duration deadline = kHttpDeadline;
    absl::Duration longest_response = kHttpLongestResponse;
  };
  // Errors: those of BindAndListen.
  static absl::StatusOr<std::unique_ptr<HttpListener>> Start(const ListenAddress& address,
                                                             HttpHandler handler, Options options);
  static absl::StatusOr<std::unique_ptr<HttpListener>> Start(const ListenAddress& address,
                                                             HttpHandler handler) {
    return Start(address, std::move(handler), Options());
  }
  ~HttpListener();  // ends the thread; requests in service are cut
  HttpListener(const HttpListener&) = delete;
  HttpListener& operator=(const HttpListener&) = delete;

  // The address with the port that the system chose.
  const ListenAddress& address() const { return address_; }

 private:
  // One client. It is read until `request` is whole, then written until `answer` has left.
  struct Connection {
    int fd = -1;
    absl::Time deadline;
    absl::Time latest;  // of the deadline, however steadily the response is taken
    std::string request;
    bool complete = false;  // the request is whole, too long, or all that there will be
    std::string head;
    std::shared_ptr<const std::string> body;  // shared by all who asked in the same round
    size_t sent = 0;                          // of head and body together
    bool over = false;                        // to be closed
  };
  using Connections = std::list<Connection>;  // the oldest first

  HttpListener(ListenAddress address, int listen_fd, int wake_fd, HttpHandler handler,
               Options options);
  void Run();
  // False: the listener is to end.
  bool AwaitEvents();
  void AcceptAll(absl::Time now);
  // Closes the oldest connection that has sent nothing; where each has sent something, the oldest,
  // even if its response is being sent. False: there is none.
  bool MakeRoom();
  static void Read(Connection& connection);
  void AnswerAll();
  size_t UnsentBytes() const;
  void Write(Connection& connection);
  void CloseOver(absl::Time now);

  const ListenAddress address_;
  const int listen_fd_;
  const int wake_fd_;  // readable: stop
  const HttpHandler handler_;
  const Options options_;
  // The thread's own.
  Connections connections_;
  absl::Time accept_again_at_ = absl::InfinitePast();
  std::thread thread_;
};

}  // namespace th

#endif  // TH_MONITORING_HTTP_LISTENER_H_
