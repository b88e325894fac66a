#include "th/transfer/ibverbs/registered_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/transfer/stream/socket.h"

namespace th::ibverbs {

absl::StatusOr<std::unique_ptr<RegisteredBuffer>> RegisteredBuffer::Make(
    std::shared_ptr<const RdmaDevice> device, size_t bytes) {
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", bytes, " bytes: ", stream::ErrnoText(errno)));
  }
  ibv_mr* const region = device->verbs().reg_mr(device->domain(), data, bytes,
                                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  if (region == nullptr) {
    const int error = errno;
    munmap(data, bytes);
    return absl::ResourceExhaustedError(absl::StrCat(
        device->name(), ": ", error == ENOMEM ? MemlockAdvice(bytes) : stream::ErrnoText(error)));
  }
  return std::unique_ptr<RegisteredBuffer>(
      new RegisteredBuffer(std::move(device), static_cast<char*>(data), bytes, region));
}

RegisteredBuffer::~RegisteredBuffer() {
  if (!device_->IsOurs()) return;
  device_->verbs().dereg_mr(region_);
  munmap(data_, bytes_);
}

}  // namespace th::ibverbs
