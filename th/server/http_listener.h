// A small HTTP/1.1 server for status pages: GET only, one request a connection, one connection at a
// time.
//
//   TH_ASSIGN_OR_RETURN(auto http, HttpListener::Start(address, [](const std::string& path) {
//     return HttpResponse{.body = "hello\n"};
//   }));
//
// Not for the public network: a slow client delays the next one by kHttpDeadline.
#ifndef TH_SERVER_HTTP_LISTENER_H_
#define TH_SERVER_HTTP_LISTENER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "th/server/listen_address.h"

namespace th {

// For one request from its first byte to the response's last.
inline constexpr absl::Duration kHttpDeadline = absl::Seconds(2);
inline constexpr size_t kMaxHttpRequestBytes = size_t{8} << 10;

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};
// Called on the listener's thread with the path, without the query.
using HttpHandler = std::function<HttpResponse(const std::string& path)>;

class HttpListener {
 public:
  // Errors: those of BindAndListen.
  static absl::StatusOr<std::unique_ptr<HttpListener>> Start(const ListenAddress& address,
                                                             HttpHandler handler);
  ~HttpListener();  // ends the thread; a request in service is cut
  HttpListener(const HttpListener&) = delete;
  HttpListener& operator=(const HttpListener&) = delete;

  // The address with the port that the system chose.
  const ListenAddress& address() const { return address_; }

 private:
  HttpListener(ListenAddress address, int listen_fd, int wake_fd, HttpHandler handler);
  void Run();
  void Serve(int fd);
  // False: stopped, or past `deadline`.
  bool AwaitEvent(int fd, short events, absl::Time deadline) const;
  std::string ReadRequest(int fd, absl::Time deadline) const;
  void WriteAll(int fd, absl::string_view text, absl::Time deadline) const;

  const ListenAddress address_;
  const int listen_fd_;
  const int wake_fd_;  // readable: stop
  const HttpHandler handler_;
  std::thread thread_;
};

}  // namespace th

#endif  // TH_SERVER_HTTP_LISTENER_H_
