#include "th/server/announcement.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace th {

std::string AnnouncementLine(const Announcement& announcement, bool json) {
  if (json) {
    return nlohmann::json{{"address", announcement.address},
                          {"http", announcement.http_address},
                          {"epoch", announcement.epoch.value},
                          {"state_dir", announcement.state_dir},
                          {"pid", announcement.pid}}
        .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  return absl::StrCat("tensorhub_server listening on ", announcement.address,
                      announcement.http_address.empty()
                          ? ""
                          : absl::StrCat(", status page http://", announcement.http_address, "/"),
                      ", epoch ", announcement.epoch.value, ", state ", announcement.state_dir,
                      ", pid ", announcement.pid);
}

absl::Status WritePortFile(const std::string& path, int port) {
  struct stat there;
  if (lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {  // a device, a link, a folder
    return absl::FailedPreconditionError(
        absl::StrCat("port file ", path, " is there and no plain file; name another"));
  }
  const std::string unfinished = path + ".new";
  std::ofstream file(unfinished);
  file << port << "\n";
  file.close();
  if (file.good() && std::rename(unfinished.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  std::remove(unfinished.c_str());
  return absl::ErrnoToStatus(error, absl::StrCat("cannot write port file ", path));
}

}  // namespace th
