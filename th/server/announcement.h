// How tensorhub_server tells its starter where it listens.
#ifndef TH_SERVER_ANNOUNCEMENT_H_
#define TH_SERVER_ANNOUNCEMENT_H_

#include <string>

#include "absl/status/status.h"
#include "th/identifiers/identifiers.h"

namespace th {

struct Announcement {
  std::string address;  // "127.0.0.1:43211"
  std::string http_address;
  Epoch epoch;
  std::string state_dir;
  int pid = 0;
};

// One line without its end: for people, or a JSON object
// {"address": …, "epoch": …, "http": …, "pid": …, "state_dir": …}.
std::string AnnouncementLine(const Announcement& announcement, bool json);

// Writes "PORT\n" to `path` so that a reader never sees half of it. Errors name the path.
absl::Status WritePortFile(const std::string& path, int port);
// Writes "HOST:PORT\n" in the same way. HOST is that of `address`, or `host_name` where that stands
// for all addresses of the host.
absl::Status WriteAddressFile(const std::string& path, const std::string& address,
                              const std::string& host_name);

}  // namespace th

#endif  // TH_SERVER_ANNOUNCEMENT_H_
