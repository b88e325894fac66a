// The check that the process at the other end of a Unix socket belongs to this process's user. The
// kernel shows a user that this user namespace does not know as one and the same (65534, as a
// rule), which a process of this namespace may be too: that one proves nothing.
#ifndef TH_TRANSFER_SAME_HOST_PEER_USER_H_
#define TH_TRANSFER_SAME_HOST_PEER_USER_H_

#include <sys/types.h>

#include <string>

#include "absl/strings/string_view.h"

namespace th::same_host {

struct UserNamespace {
  uid_t overflow = 65534;  // what stands for users that it does not know
  bool knows_all = true;   // as that which the host boots with

  static UserNamespace OfThisProcess();
};
// True when the text of /proc/PID/uid_map covers all users, and for an empty one, where the kernel
// has no user namespaces. Pure.
bool KnowsAllUsers(absl::string_view uid_map);
// Pure.
bool IsSameUser(uid_t own, uid_t peer, const UserNamespace& users);

// `peer`: as SO_PEERCRED shows it.
bool IsOwnUser(uid_t peer);
// "the source runs as user 7, this process as user 8", or that the two cannot be told apart. Of a
// peer that is not IsOwnUser; whose is which the caller knows.
std::string DescribeUsers(uid_t of_source, uid_t of_reader);

}  // namespace th::same_host

#endif  // TH_TRANSFER_SAME_HOST_PEER_USER_H_
