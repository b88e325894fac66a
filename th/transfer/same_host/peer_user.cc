#include "th/transfer/same_host/peer_user.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace th::same_host {

UserNamespace UserNamespace::OfThisProcess() {
  UserNamespace users;
  std::ifstream("/proc/sys/kernel/overflowuid") >> users.overflow;
  std::ifstream map("/proc/self/uid_map");
  users.knows_all = KnowsAllUsers(std::string{std::istreambuf_iterator<char>(map), {}});
  return users;
}

bool KnowsAllUsers(absl::string_view uid_map) {
  uint64_t known = 0;
  bool any = false;
  for (const absl::string_view line : absl::StrSplit(uid_map, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    uint64_t count = 0;
    if (words.size() != 3 || !absl::SimpleAtoi(words[2], &count)) continue;
    any = true;
    known += count;
  }
  // The last number is none's.
  return !any || known >= std::numeric_limits<uid_t>::max();
}

bool IsSameUser(uid_t own, uid_t peer, const UserNamespace& users) {
  return own == peer && (users.knows_all || peer != users.overflow);
}

bool IsOwnUser(uid_t peer) {
  static const UserNamespace users = UserNamespace::OfThisProcess();
  return IsSameUser(geteuid(), peer, users);
}

std::string DescribeUsers(uid_t of_source, uid_t of_reader) {
  if (of_source != of_reader) {
    return absl::StrCat("the source runs as user ", of_source, ", this process as user ",
                        of_reader);
  }
  return absl::StrCat("both run as user ", of_source,
                      ", which in their user namespace stands for every user that it does not know "
                      "too");
}

}  // namespace th::same_host
