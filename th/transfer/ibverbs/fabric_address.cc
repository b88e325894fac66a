#include "th/transfer/ibverbs/fabric_address.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace th::ibverbs {
namespace {

constexpr char kInfiniBand[] = "infiniband";
constexpr char kRoce[] = "roce";

std::string Kinds(const FabricAddress& address) {
  std::vector<std::string> kinds;
  if (address.infiniband) kinds.emplace_back(kInfiniBand);
  if (address.roce) kinds.emplace_back(kRoce);
  return absl::StrJoin(kinds, "+");
}

}  // namespace

absl::StatusOr<FabricAddress> FabricAddress::Parse(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  if (parts.size() != 2 || parts[0].empty() || parts[1].empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the address ", text, " is none of RDMA, as in 10.0.0.7:4711/roce"));
  }
  FabricAddress address{.socket = parts[0]};
  for (const absl::string_view kind : absl::StrSplit(parts[1], '+')) {
    address.infiniband |= kind == kInfiniBand;
    address.roce |= kind == kRoce;
  }
  return address;
}

std::string FabricAddress::ToString() const { return absl::StrCat(socket, "/", Kinds(*this)); }

absl::Status CanMeet(const FabricAddress& reader, const FabricAddress& source) {
  if ((reader.infiniband && source.infiniband) || (reader.roce && source.roce)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("its RDMA devices are on ", Kinds(source),
                                                    ", those of this host on ", Kinds(reader)));
}

}  // namespace th::ibverbs
