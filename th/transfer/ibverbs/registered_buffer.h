// A little memory of a connection's own, registered with one device: where control blocks land, and
// segments whose destination is not registered. Not of the HostRegistrations, whose Attach may
// wait for gigabytes to be pinned.
//
//   TH_ASSIGN_OR_RETURN(auto buffer, RegisteredBuffer::Make(device, 4096));
//   pair->Post(tag, from, {buffer->Range(0, 16)}, now);
//
// Destroy the queue pairs that use it first. A value without locks.
#ifndef TH_TRANSFER_IBVERBS_REGISTERED_BUFFER_H_
#define TH_TRANSFER_IBVERBS_REGISTERED_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "th/transfer/ibverbs/rdma_device.h"
#include "th/transfer/ibverbs/read_plan.h"

namespace th::ibverbs {

class RegisteredBuffer {
 public:
  // Zeroed, page-aligned. Peers may read it too. RESOURCE_EXHAUSTED: the memory cannot be locked.
  static absl::StatusOr<std::unique_ptr<RegisteredBuffer>> Make(
      std::shared_ptr<const RdmaDevice> device, size_t bytes);
  ~RegisteredBuffer();
  RegisteredBuffer(const RegisteredBuffer&) = delete;
  RegisteredBuffer& operator=(const RegisteredBuffer&) = delete;

  char* data() const { return data_; }
  size_t size() const { return bytes_; }
  // A part of it, with the key for this process's own queue pairs.
  KeyedRange Range(size_t offset, size_t bytes) const {
    return {reinterpret_cast<uintptr_t>(data_) + offset, bytes, region_->lkey};
  }
  uint32_t remote_key() const { return region_->rkey; }

 private:
  RegisteredBuffer(std::shared_ptr<const RdmaDevice> device, char* data, size_t bytes,
                   ibv_mr* region)
      : device_(std::move(device)), data_(data), bytes_(bytes), region_(region) {}

  const std::shared_ptr<const RdmaDevice> device_;
  char* const data_;
  const size_t bytes_;
  ibv_mr* const region_;
};

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_REGISTERED_BUFFER_H_
