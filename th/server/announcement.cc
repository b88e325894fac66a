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

namespace {

// `what` is the file's name in errors.
absl::Status WriteWhole(const char* what, const std::string& path, const std::string& line) {
  struct stat there;
  if (lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {  // a device, a link, a folder
    return absl::FailedPreconditionError(
        absl::StrCat(what, " ", path, " is there and no plain file; name another"));
  }
  const std::string unfinished = path + ".new";
  std::ofstream file(unfinished);
  file << line << "\n";
  file.close();
  if (file.good() && std::rename(unfinished.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  std::remove(unfinished.c_str());
  return absl::ErrnoToStatus(error, absl::StrCat("cannot write ", what, " ", path));
}

}  // namespace

absl::Status WritePortFile(const std::string& path, int port) {
  return WriteWhole("port file", path, absl::StrCat(port));
}

absl::Status WriteAddressFile(const std::string& path, const std::string& address,
                              const std::string& host_name) {
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  const bool is_any = host == "0.0.0.0" || host == "[::]";
  return WriteWhole("address file", path,
                    is_any ? absl::StrCat(host_name, address.substr(colon)) : address);
}

}  // namespace th
