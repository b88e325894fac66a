// The addresses of one cluster's servers, and which of them a stream is opened to next.
//
//   TH_ASSIGN_OR_RETURN(ServerList servers, ServerList::Parse("10.0.0.1:7077,10.0.0.2:7077"));
//   Connect(servers.current());
//   servers.MoveAfter({.joined = false});   // nobody answered there
//
// "file:PATH" names a file with such a list, as `tensorhub_server --address-file` writes it: a
// server that starts anew on another host is found without being named anew. The file is read again
// before each further stream.
#ifndef TH_CLIENT_SERVER_LIST_H_
#define TH_CLIENT_SERVER_LIST_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/client/detached_call.h"

namespace th {

// The most addresses in one list.
inline constexpr size_t kMaxServers = 16;
// Redirects that are followed one after the other; a server that redirects once more counts as one
// that did not answer.
inline constexpr size_t kMaxRedirects = 4;

// A file of addresses with more bytes is refused.
inline constexpr size_t kMaxServerFileBytes = 4096;
// The most threads of a process that AwaitServers has read files at once: those of a file server
// that hangs stay.
inline constexpr int kMaxServerFileReadings = 64;
// How often AwaitServers looks for the file.
inline constexpr absl::Duration kServerFilePoll = absl::Milliseconds(50);
// How long ReadAgain waits for the file. A read that takes longer goes on; a later call has its
// result.
inline constexpr absl::Duration kServerFilePatience = absl::Milliseconds(100);

// How a stream to a server went.
struct StreamOutcome {
  bool joined = false;
  std::string redirect = {};  // "host:port", as the server gave it; empty: it gave none
};

// A value: copyable, not thread-safe. Copies share a read of the file that is under way.
class ServerList {
 public:
  // "host:port", or several with commas, or "file:PATH". INVALID_ARGUMENT naming the one that is
  // none, or that there are too many. UNAVAILABLE: the file is not there, or holds no addresses.
  static absl::StatusOr<ServerList> Parse(absl::string_view text);

  const std::string& first() const { return servers_.front(); }
  const std::vector<std::string>& all() const { return servers_; }
  // Where the next stream goes: one of the list, or where a server has sent us.
  const std::string& current() const { return current_; }

  // Chooses the next server: the one that a redirect names; else the current one if it was joined,
  // and if it was not, the one after it in the list. A redirect that is no address, or one too many
  // in a row, counts as no answer.
  void MoveAfter(const StreamOutcome& outcome);
  // Takes the addresses of the file where it holds others now, from the first one on. A file that
  // cannot be read changes nothing. The disk is read on a thread of its own, and awaited for
  // `patience` at most: a file server that hangs holds up nobody who uses the list.
  void ReadAgain(absl::Duration patience = kServerFilePatience);

 private:
  using Reading = DetachedCall<absl::StatusOr<std::vector<std::string>>>;

  explicit ServerList(std::vector<std::string> servers)
      : servers_(std::move(servers)), current_(servers_.front()) {}

  std::string file_;                  // empty: the list is from no file
  std::shared_ptr<Reading> reading_;  // of the file, on its thread; null: none is under way
  std::vector<std::string> servers_;
  size_t next_ = 1;
  size_t redirects_ = 0;  // in a row
  std::string current_;
};

// Checks the text alone, with Parse's errors: the file that it names need not be there.
absl::Status CheckServers(absl::string_view text);

// As Parse, but waits up to `timeout` for a file that is not there yet, as a server may be
// starting, or that is on a file server that hangs. CANCELLED: the caller's calls were cancelled
// meanwhile.
absl::StatusOr<ServerList> AwaitServers(absl::string_view text, absl::Duration timeout);

}  // namespace th

#endif  // TH_CLIENT_SERVER_LIST_H_
