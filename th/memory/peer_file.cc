#include "th/memory/peer_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"

namespace th {
namespace {

bool Is(const struct stat& found, const PeerFile& file) {
  return S_ISREG(found.st_mode) && found.st_ino == file.inode;
}

}  // namespace

OpenedPeerFile OpenPeerFile(pid_t owner, const PeerFile& file, PeerFileAccess access) {
  const std::string path = absl::StrCat("/proc/", owner, "/fd/", file.file_descriptor);
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return {.error = errno, .call = "stat"};
  if (!Is(found, file)) return {};
  const int mode = access == PeerFileAccess::kRead ? O_RDONLY : O_RDWR;
  const int fd = open(path.c_str(), mode | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return {.error = errno, .call = "open"};
  if (fstat(fd, &found) == 0 && Is(found, file)) return {.fd = fd};
  close(fd);
  return {};
}

}  // namespace th
