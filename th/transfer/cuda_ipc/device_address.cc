#include "th/transfer/cuda_ipc/device_address.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "th/status/status_macros.h"

namespace th::cuda_ipc {
namespace {

constexpr size_t kMaxDeviceBytes = 31;

bool IsPciAddress(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxDeviceBytes &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isxdigit(static_cast<unsigned char>(c)) || c == ':' || c == '.';
         });
}

}  // namespace

std::string DeviceAddress::ToString() const {
  return absl::StrCat(host.ToString(), "/", absl::StrJoin(devices, "+"));
}

absl::StatusOr<DeviceAddress> DeviceAddress::Parse(absl::string_view text) {
  const size_t slash = text.rfind('/');
  const absl::string_view names =
      slash == absl::string_view::npos ? absl::string_view() : text.substr(slash + 1);
  const std::vector<std::string> devices = absl::StrSplit(names, '+');
  if (devices.size() > kMaxNamedDevices ||
      !std::all_of(devices.begin(), devices.end(), IsPciAddress)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text,
                     "' is no address of a process with GPUs, such as "
                     "5f3a91c02d77e04b/4026531840/tensorhub-1-a/0000:3b:00.0+0000:86:00.0"));
  }
  TH_ASSIGN_OR_RETURN(same_host::HostAddress host,
                      same_host::HostAddress::Parse(text.substr(0, slash)));
  return DeviceAddress{std::move(host), devices};
}

}  // namespace th::cuda_ipc
