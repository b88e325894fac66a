#include "th/processes/memory_probe.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace th {
namespace {

// Pieces of [begin, end) of `into`, from the same place in `from`.
void CopyRange(const char* from, const MemoryStream& into, uint64_t begin, uint64_t end) {
  for (const iovec& piece : into.Range(begin, end)) {
    std::memcpy(piece.iov_base, from + begin, piece.iov_len);
    begin += piece.iov_len;
  }
}

absl::Status Failed(absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedCopy>> SharedCopy::Of(const MemoryStream& memory) {
  const int fd = memfd_create("th-memory-probe", MFD_CLOEXEC);
  if (fd < 0) return Failed("no file in memory for the probe");
  std::unique_ptr<SharedCopy> copy(new SharedCopy(fd));
  if (ftruncate(fd, static_cast<off_t>(memory.bytes())) != 0) {
    return Failed("no memory for the probe");
  }
  for (const iovec& piece : memory.Range(0, memory.bytes())) {
    const char* from = static_cast<const char*>(piece.iov_base);
    for (size_t written = 0; written < piece.iov_len;) {
      const ssize_t some = write(fd, from + written, piece.iov_len - written);
      if (some < 0 && errno == EINTR) continue;
      if (some <= 0) return Failed("no memory for the probe");
      written += static_cast<size_t>(some);
    }
  }
  return copy;
}

SharedCopy::~SharedCopy() { close(fd_); }

std::string SharedCopy::path() const { return absl::StrCat("/proc/", getpid(), "/fd/", fd_); }

absl::StatusOr<MappedCopy> MappedCopy::Open(const std::string& path, uint64_t bytes) {
  const auto failed = [&path](absl::string_view why) {
    return absl::NotFoundError(absl::StrCat("the probe's memory ", path, ": ", why));
  };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return failed(std::strerror(errno));
  struct stat status {};
  void* data = MAP_FAILED;
  const bool right_size =
      fstat(fd, &status) == 0 && static_cast<uint64_t>(status.st_size) == bytes && bytes > 0;
  if (right_size) data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
  close(fd);
  if (!right_size) return failed(absl::StrCat("not of ", bytes, " bytes"));
  if (data == MAP_FAILED) return failed(std::strerror(errno));
  return MappedCopy(static_cast<const char*>(data), bytes);
}

MappedCopy::~MappedCopy() {
  if (data_ != nullptr) munmap(const_cast<char*>(data_), bytes_);
}

absl::Status MappedCopy::CopyTo(const MemoryStream& into, uint32_t threads) const {
  if (into.bytes() != bytes_ || threads < 1 || threads > kMaxCopyThreads) {
    return absl::InvalidArgumentError(absl::StrCat("a copy of ", bytes_, " bytes into ",
                                                   into.bytes(), " by ", threads, " threads"));
  }
  const auto part = [&](uint32_t i) {
    CopyRange(data_, into, bytes_ * i / threads, bytes_ * (i + 1) / threads);
  };
  std::vector<std::thread> others;
  for (uint32_t i = 1; i < threads; ++i) others.emplace_back(part, i);
  part(0);
  for (std::thread& other : others) other.join();
  return absl::OkStatus();
}

}  // namespace th
