// The messages by which the two ends of a connection (stream::Memory) come to a queue pair.
// Pure; the decoders take bytes from outside and are fuzzed.
//
//   source                                         reader
//   DeviceOffer{its devices}             ───────►  chooses one of them and one of its own
//   connects its own to it               ◄───────  PairRequest{which, the reader's queue pair}
//   PairReply{its queue pair, a word}    ───────►  connects, and reads the word as a proof
//
// Little-endian; each message begins with its kind. A reader of a later version ignores what
// follows the fields that it knows.
#ifndef TH_TRANSFER_IBVERBS_HANDSHAKE_H_
#define TH_TRANSFER_IBVERBS_HANDSHAKE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "th/transfer/ibverbs/queue_pair.h"
#include "th/transfer/ibverbs/rdma_device.h"

namespace th::ibverbs {

inline constexpr size_t kMaxOfferedDevices = 16;

struct OfferedDevice {
  LinkLayer link = LinkLayer::kInfiniBand;
  Gid gid{};
  friend bool operator==(const OfferedDevice&, const OfferedDevice&) = default;
};
struct DeviceOffer {
  std::vector<OfferedDevice> devices;  // at most kMaxOfferedDevices
  friend bool operator==(const DeviceOffer&, const DeviceOffer&) = default;
};
struct PairRequest {
  uint8_t device = 0;  // of DeviceOffer::devices
  QueuePairAddress reader;
  friend bool operator==(const PairRequest&, const PairRequest&) = default;
};
struct PairReply {
  QueuePairAddress source;
  // A word of the source's memory that the reader reads over the new queue pair.
  uint64_t word_address = 0;
  uint64_t word = 0;
  uint32_t word_key = 0;
  friend bool operator==(const PairReply&, const PairReply&) = default;
};

std::string Encode(const DeviceOffer& offer);
std::string Encode(const PairRequest& request);
std::string Encode(const PairReply& reply);
// INVALID_ARGUMENT naming the message and what is wrong with it.
absl::StatusOr<DeviceOffer> DecodeOffer(absl::string_view bytes);
absl::StatusOr<PairRequest> DecodeRequest(absl::string_view bytes);
absl::StatusOr<PairReply> DecodeReply(absl::string_view bytes);

// The devices of the `number`-th connection of a pull, one of the reader's and one of the source's:
// the reader's in turn, each with one of the source's on its own kind of link, if there is one in
// its own subnet (by the first 64 bits of the GID, or 24 of an IPv4 address) with that, and with
// these in turn too.
struct DeviceChoice {
  size_t own = 0;
  size_t offered = 0;
  friend bool operator==(const DeviceChoice&, const DeviceChoice&) = default;
};
// FAILED_PRECONDITION: no two of them are on one kind of link.
absl::StatusOr<DeviceChoice> ChooseDevices(absl::Span<const OfferedDevice> own,
                                           absl::Span<const OfferedDevice> offered,
                                           uint32_t number);

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_HANDSHAKE_H_
