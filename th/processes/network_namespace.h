// A network namespace: interfaces, addresses and routes of its own, for processes that are to see
// no other network.
//
//   TH_ASSIGN_OR_RETURN(NetworkNamespace host, NetworkNamespace::Create());
//   ChildProcess::Start({..., .network_namespace = host.fd()});     // runs in it
//   "ip link set eth0 netns " + host.path()                         // for tools
//
// It has no name in the file system: the kernel keeps it while this object lives or a process runs
// in it, and takes it away, with all its interfaces, when the last of these is gone, however this
// process ended. So nothing is ever left behind.
#ifndef TH_PROCESSES_NETWORK_NAMESPACE_H_
#define TH_PROCESSES_NETWORK_NAMESPACE_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace th {

// Movable; as thread-safe as a descriptor.
class NetworkNamespace {
 public:
  // A new one, with nothing but a loopback interface that is down. A process that may not make one
  // becomes root of a user namespace of its own first, and stays that: call it while the process
  // has one thread, or as root. FAILED_PRECONDITION saying what the system refuses and what to do.
  static absl::StatusOr<NetworkNamespace> Create();
  ~NetworkNamespace();
  NetworkNamespace(NetworkNamespace&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  NetworkNamespace& operator=(NetworkNamespace&&) = delete;

  int fd() const { return fd_; }
  // Where other processes of the same user find it while this object lives.
  std::string path() const;

 private:
  explicit NetworkNamespace(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace th

#endif  // TH_PROCESSES_NETWORK_NAMESPACE_H_
