// The text of an endpoint of the transport ibverbs: where its TCP connections go, and on which
// kinds of network its devices are: "10.0.0.7:4711/roce", "10.0.0.7:4711/infiniband+roce".
//
//   TH_ASSIGN_OR_RETURN(FabricAddress source, FabricAddress::Parse(endpoint.address));
//   TH_RETURN_IF_ERROR(CanMeet(self, source));
//
// A value.
#ifndef TH_TRANSFER_IBVERBS_FABRIC_ADDRESS_H_
#define TH_TRANSFER_IBVERBS_FABRIC_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace th::ibverbs {

struct FabricAddress {
  std::string socket;  // numeric, with its port
  bool infiniband = false;
  bool roce = false;

  // INVALID_ARGUMENT saying what is expected. Kinds of network that are not known are ignored.
  static absl::StatusOr<FabricAddress> Parse(absl::string_view text);
  std::string ToString() const;
  friend bool operator==(const FabricAddress&, const FabricAddress&) = default;
};

// FAILED_PRECONDITION: their devices are on no common kind of network.
absl::Status CanMeet(const FabricAddress& reader, const FabricAddress& source);

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_FABRIC_ADDRESS_H_
