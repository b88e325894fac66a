// The address at which a process can be reached on its host, as its endpoint says it:
// "5f3a91c02d77e04b/4026531840/tensorhub-4711-8c0d11f7a2b3e495": the kernel's boot, the network
// namespace, the name of a Unix socket in it.
#ifndef TH_TRANSFER_SAME_HOST_HOST_ADDRESS_H_
#define TH_TRANSFER_SAME_HOST_HOST_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace th::same_host {

struct HostAddress {
  std::string boot;               // the first 16 digits of the boot id, in hexadecimal
  std::string network_namespace;  // its inode
  std::string socket;

  std::string ToString() const;
  // INVALID_ARGUMENT saying what is expected.
  static absl::StatusOr<HostAddress> Parse(absl::string_view text);
  // The address of this process, with a new socket name that nobody can guess. UNAVAILABLE: the
  // system does not say where it is.
  static absl::StatusOr<HostAddress> OfThisProcess();
};

// OK where a process at `from` can connect to `to`. OUT_OF_RANGE: "on another host";
// FAILED_PRECONDITION: "in another network namespace of this host".
absl::Status CanMeet(const HostAddress& from, const HostAddress& to);

}  // namespace th::same_host

#endif  // TH_TRANSFER_SAME_HOST_HOST_ADDRESS_H_
