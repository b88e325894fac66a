#include "th/memory/reader_lease.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "th/memory/peer_file.h"

namespace th {
namespace {

constexpr char kFileName[] = "tensorhub-leases";  // as /proc/<pid>/fd shows it

absl::StatusOr<LeasePlace> CreateLeaseFile() {
  LeasePlace file{.file_descriptor = memfd_create(kFileName, MFD_CLOEXEC)};
  struct stat made {};
  if (file.file_descriptor < 0 || fstat(file.file_descriptor, &made) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no file for the leases of readers: ", strerror(errno)));
  }
  file.inode = made.st_ino;
  return file;
}

// One for the life of the process: numbers that were given out mean bytes of it.
const absl::StatusOr<LeasePlace>& OwnLeaseFile() {
  static const auto* const file = new absl::StatusOr<LeasePlace>(CreateLeaseFile());
  return *file;
}

struct flock LockOf(uint64_t number, int16_t type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(number);
  lock.l_len = 1;
  return lock;
}

absl::Status Failed(absl::string_view what, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat("the lease file of the source's process: ", what));
}

}  // namespace

absl::StatusOr<LeasePlace> NewLeasePlace() {
  static std::atomic<uint64_t> next{1};
  absl::StatusOr<LeasePlace> place = OwnLeaseFile();
  if (place.ok()) place->number = next.fetch_add(1);
  return place;
}

bool IsLeased(uint64_t number) {
  const absl::StatusOr<LeasePlace>& file = OwnLeaseFile();
  if (!file.ok()) return false;
  struct flock lock = LockOf(number, F_WRLCK);
  // An error is taken for a lease: the pages are then left alone.
  return fcntl(file->file_descriptor, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

absl::StatusOr<std::unique_ptr<ReaderLease>> ReaderLease::Take(pid_t owner,
                                                               const LeasePlace& place) {
  const OpenedPeerFile opened =
      OpenPeerFile(owner, {place.file_descriptor, place.inode}, PeerFileAccess::kRead);
  if (opened.error != 0) return Failed(opened.call, opened.error);
  if (opened.fd < 0) return absl::NotFoundError("the lease file is another one");
  std::unique_ptr<ReaderLease> lease(new ReaderLease(opened.fd));
  struct flock lock = LockOf(place.number, F_RDLCK);
  if (fcntl(opened.fd, F_OFD_SETLK, &lock) != 0) return Failed("fcntl", errno);
  return lease;
}

ReaderLease::~ReaderLease() { close(fd_); }

}  // namespace th
