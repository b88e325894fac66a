#include "th/transfer/same_host/host_address.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "th/transfer/stream/socket.h"

namespace th::same_host {
namespace {

constexpr char kBootIdFile[] = "/proc/sys/kernel/random/boot_id";
constexpr char kNetworkNamespaceFile[] = "/proc/self/ns/net";
constexpr size_t kBootDigits = 16;

bool IsName(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-';
  });
}

}  // namespace

std::string HostAddress::ToString() const {
  return absl::StrCat(boot, "/", network_namespace, "/", socket);
}

absl::StatusOr<HostAddress> HostAddress::Parse(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '/');
  const bool is_one = parts.size() == 3 && std::all_of(parts.begin(), parts.end(), IsName) &&
                      parts.back().size() <= stream::kMaxUnixNameBytes;
  if (!is_one) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is no address on a host, such as 5f3a91c02d77e04b/4026531840/tensorhub-1-a"));
  }
  return HostAddress{std::string(parts[0]), std::string(parts[1]), std::string(parts[2])};
}

absl::StatusOr<HostAddress> HostAddress::OfThisProcess() {
  std::string boot;
  std::ifstream(kBootIdFile) >> boot;
  std::erase(boot, '-');
  boot.resize(std::min(boot.size(), kBootDigits));
  if (boot.size() < kBootDigits || !IsName(boot)) {
    return absl::UnavailableError(
        absl::StrCat("the system does not say which boot this is (", kBootIdFile, ")"));
  }
  struct stat network {};
  if (stat(kNetworkNamespaceFile, &network) != 0) {
    return absl::UnavailableError(
        absl::StrCat("the system does not say in which network namespace this process is (",
                     kNetworkNamespaceFile, ": ", stream::ErrnoText(errno), ")"));
  }
  uint64_t random = 0;
  // Cannot fail for so few bytes once the system has booted.
  if (getrandom(&random, sizeof(random), 0) < 0) random = reinterpret_cast<uintptr_t>(&random);
  return HostAddress{
      boot, absl::StrCat(network.st_ino),
      absl::StrCat("tensorhub-", getpid(), "-", absl::Hex(random, absl::kZeroPad16))};
}

absl::Status CanMeet(const HostAddress& from, const HostAddress& to) {
  if (from.boot != to.boot) return absl::OutOfRangeError("on another host");
  if (from.network_namespace != to.network_namespace) {
    return absl::FailedPreconditionError("in another network namespace of this host");
  }
  return absl::OkStatus();
}

}  // namespace th::same_host
