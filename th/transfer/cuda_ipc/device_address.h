// Where a process that has GPUs can be reached on its host, as its endpoint says it:
// "5f3a91c02d77e04b/4026531840/tensorhub-4711-8c0d11f7a2b3e495/0000:3b:00.0+0000:86:00.0": the
// address of same_host (host_address.h), and the PCI addresses of the GPUs that it sees.
#ifndef TH_TRANSFER_CUDA_IPC_DEVICE_ADDRESS_H_
#define TH_TRANSFER_CUDA_IPC_DEVICE_ADDRESS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "th/transfer/same_host/host_address.h"

namespace th::cuda_ipc {

// The most devices that an address names; a host has no more.
inline constexpr size_t kMaxNamedDevices = 64;

struct DeviceAddress {
  same_host::HostAddress host;
  std::vector<std::string> devices;  // at least one

  std::string ToString() const;
  // INVALID_ARGUMENT saying what is expected.
  static absl::StatusOr<DeviceAddress> Parse(absl::string_view text);
};

}  // namespace th::cuda_ipc

#endif  // TH_TRANSFER_CUDA_IPC_DEVICE_ADDRESS_H_
