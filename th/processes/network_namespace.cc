#include "th/processes/network_namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

constexpr char kWhatToDo[] =
    "; run as root (sudo), or let users make namespaces (sysctl kernel.unprivileged_userns_clone=1 "
    "and user.max_user_namespaces and user.max_net_namespaces above 0; in a container: "
    "--privileged, or --cap-add SYS_ADMIN "
    "--cap-add NET_ADMIN and a seccomp profile that lets unshare pass)";

absl::Status Refused(absl::string_view what, int error) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot make a network namespace: ", what, ": ", strerror(error), kWhatToDo));
}

struct Made {
  int fd = -1;
  int error = 0;
};

// Made by a thread that ends in it: this process's threads stay where they are.
Made MakeNamespace() {
  Made made;
  std::thread([&made] {
    if (unshare(CLONE_NEWNET) == 0)
      made.fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (made.fd < 0) made.error = errno;
  }).join();
  return made;
}

absl::Status WriteOnce(const char* path, const std::string& text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  const bool written =
      fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  if (fd >= 0) close(fd);
  return written ? absl::OkStatus() : Refused(absl::StrCat("cannot write ", path), error);
}

absl::Status BecomeRootOfOwnNamespace() {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(CLONE_NEWUSER) != 0) return Refused("unshare(CLONE_NEWUSER)", errno);
  TH_RETURN_IF_ERROR(WriteOnce("/proc/self/setgroups", "deny"));  // else gid_map is refused
  TH_RETURN_IF_ERROR(WriteOnce("/proc/self/uid_map", absl::StrCat("0 ", user, " 1")));
  return WriteOnce("/proc/self/gid_map", absl::StrCat("0 ", group, " 1"));
}

}  // namespace

absl::StatusOr<NetworkNamespace> NetworkNamespace::Create() {
  Made made = MakeNamespace();
  if (made.fd < 0 && made.error == EPERM) {
    TH_RETURN_IF_ERROR(BecomeRootOfOwnNamespace());
    made = MakeNamespace();
  }
  if (made.fd < 0) return Refused("unshare(CLONE_NEWNET)", made.error);
  return NetworkNamespace(made.fd);
}

NetworkNamespace::~NetworkNamespace() {
  if (fd_ >= 0) close(fd_);
}

std::string NetworkNamespace::path() const { return absl::StrCat("/proc/", getpid(), "/fd/", fd_); }

}  // namespace th
