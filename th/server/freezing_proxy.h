// A TCP proxy for one connection that can fall silent without closing it, as a dead host does. For
// tests.
#ifndef TH_SERVER_FREEZING_PROXY_H_
#define TH_SERVER_FREEZING_PROXY_H_

#include <atomic>
#include <string>
#include <thread>

namespace th {

// Freeze() is thread-safe.
class FreezingProxy {
 public:
  // Passes its first connection on to 127.0.0.1:`port`.
  explicit FreezingProxy(int port);
  ~FreezingProxy();
  FreezingProxy(const FreezingProxy&) = delete;
  FreezingProxy& operator=(const FreezingProxy&) = delete;

  const std::string& address() const { return address_; }
  // Nothing passes from here on; both connections stay open.
  void Freeze() { frozen_ = true; }

 private:
  void Run(int listen_fd, int port);

  std::string address_;
  std::atomic<bool> frozen_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace th

#endif  // TH_SERVER_FREEZING_PROXY_H_
