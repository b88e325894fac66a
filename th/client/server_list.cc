#include "th/client/server_list.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "th/client/data_address.h"
#include "th/status/status_macros.h"

namespace th {

absl::StatusOr<ServerList> ServerList::Parse(absl::string_view text) {
  std::vector<std::string> servers = absl::StrSplit(text, ',');
  if (servers.size() > kMaxServers) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are ", servers.size(), " servers, at most ", kMaxServers));
  }
  for (const std::string& server : servers) TH_RETURN_IF_ERROR(ParseHostPort(server).status());
  return ServerList(std::move(servers));
}

void ServerList::MoveAfter(const StreamOutcome& outcome) {
  const bool follows = redirects_ < kMaxRedirects && ParseHostPort(outcome.redirect).ok();
  if (follows) {
    ++redirects_;
    current_ = outcome.redirect;
    return;
  }
  redirects_ = 0;
  if (outcome.joined) return;
  current_ = servers_[next_ % servers_.size()];
  next_ = (next_ + 1) % servers_.size();
}

}  // namespace th
