#include "th/transfer/ibverbs/handshake.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace th::ibverbs {
namespace {

constexpr uint8_t kOffer = 1, kRequest = 2, kReply = 3;
constexpr size_t kGidBytes = sizeof(Gid);

class Writer {
 public:
  template <typename Integer>
  void Put(Integer value) {
    for (size_t i = 0; i < sizeof(value); ++i) {
      bytes_.push_back(static_cast<char>((static_cast<uint64_t>(value) >> (8 * i)) & 0xff));
    }
  }
  void Put(const Gid& gid) { bytes_.append(reinterpret_cast<const char*>(gid.data()), kGidBytes); }
  void Put(const QueuePairAddress& address) {
    Put(address.gid);
    Put(address.number);
    Put(address.first_packet);
    Put(address.lid);
    Put(static_cast<uint8_t>(address.link));
    Put(address.mtu);
    Put(address.max_reads_started);
    Put(address.max_reads_answered);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads past the end yield zeros and are seen in ok().
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : bytes_(bytes) {}

  template <typename Integer>
  void Take(Integer* value) {
    uint64_t taken = 0;
    for (size_t i = 0; i < sizeof(*value); ++i) taken |= uint64_t{Byte()} << (8 * i);
    *value = static_cast<Integer>(taken);
  }
  void Take(Gid* gid) {
    for (uint8_t& byte : *gid) byte = Byte();
  }
  void Take(LinkLayer* link) {
    const uint8_t value = Byte();
    ok_ &= value <= static_cast<uint8_t>(LinkLayer::kEthernet);
    *link = value == static_cast<uint8_t>(LinkLayer::kEthernet) ? LinkLayer::kEthernet
                                                                : LinkLayer::kInfiniBand;
  }
  void Take(QueuePairAddress* address) {
    Take(&address->gid);
    Take(&address->number);
    Take(&address->first_packet);
    Take(&address->lid);
    Take(&address->link);
    Take(&address->mtu);
    Take(&address->max_reads_started);
    Take(&address->max_reads_answered);
  }
  bool TakeKind(uint8_t kind) { return Byte() == kind && ok_; }
  bool ok() const { return ok_; }

 private:
  uint8_t Byte() {
    if (bytes_.empty()) {
      ok_ = false;
      return 0;
    }
    const auto byte = static_cast<uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return byte;
  }

  absl::string_view bytes_;
  bool ok_ = true;
};

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the peer's words on RDMA make no sense: ", what));
}

// The part of a GID that two ports of one subnet have in common, as far as it can be told.
bool InOneSubnet(const Gid& a, const Gid& b) {
  constexpr size_t kIpv4SubnetBytes = 15;  // ::ffff:A.B.C.
  constexpr size_t kPrefixBytes = 8;
  constexpr uint8_t kZeros[kPrefixBytes] = {};
  const bool v4 = std::memcmp(a.data(), kZeros, kPrefixBytes) == 0;
  return std::memcmp(a.data(), b.data(), v4 ? kIpv4SubnetBytes : kPrefixBytes) == 0;
}

}  // namespace

std::string Encode(const DeviceOffer& offer) {
  Writer to;
  to.Put(kOffer);
  to.Put(static_cast<uint8_t>(offer.devices.size()));
  for (const OfferedDevice& device : offer.devices) {
    to.Put(static_cast<uint8_t>(device.link));
    to.Put(device.gid);
  }
  return to.Take();
}

std::string Encode(const PairRequest& request) {
  Writer to;
  to.Put(kRequest);
  to.Put(request.device);
  to.Put(request.reader);
  return to.Take();
}

std::string Encode(const PairReply& reply) {
  Writer to;
  to.Put(kReply);
  to.Put(reply.source);
  to.Put(reply.word_address);
  to.Put(reply.word);
  to.Put(reply.word_key);
  return to.Take();
}

absl::StatusOr<DeviceOffer> DecodeOffer(absl::string_view bytes) {
  Reader from(bytes);
  uint8_t count = 0;
  if (!from.TakeKind(kOffer)) return Malformed("no offer of devices");
  from.Take(&count);
  if (count == 0 || count > kMaxOfferedDevices) {
    return Malformed(absl::StrCat("an offer of ", int{count}, " devices"));
  }
  DeviceOffer offer;
  offer.devices.resize(count);
  for (OfferedDevice& device : offer.devices) {
    from.Take(&device.link);
    from.Take(&device.gid);
  }
  if (!from.ok()) return Malformed("an offer that is cut short or of an unknown link");
  return offer;
}

absl::StatusOr<PairRequest> DecodeRequest(absl::string_view bytes) {
  Reader from(bytes);
  PairRequest request;
  if (!from.TakeKind(kRequest)) return Malformed("no request for a queue pair");
  from.Take(&request.device);
  from.Take(&request.reader);
  if (!from.ok()) return Malformed("a request that is cut short or of an unknown link");
  return request;
}

absl::StatusOr<PairReply> DecodeReply(absl::string_view bytes) {
  Reader from(bytes);
  PairReply reply;
  if (!from.TakeKind(kReply)) return Malformed("no reply with a queue pair");
  from.Take(&reply.source);
  from.Take(&reply.word_address);
  from.Take(&reply.word);
  from.Take(&reply.word_key);
  if (!from.ok()) return Malformed("a reply that is cut short or of an unknown link");
  return reply;
}

absl::StatusOr<DeviceChoice> ChooseDevices(absl::Span<const OfferedDevice> own,
                                           absl::Span<const OfferedDevice> offered,
                                           uint32_t number) {
  for (size_t turn = 0; turn < own.size(); ++turn) {
    const size_t mine = (number + turn) % own.size();
    std::vector<size_t> linked, near;
    for (size_t i = 0; i < offered.size(); ++i) {
      if (offered[i].link != own[mine].link) continue;
      linked.push_back(i);
      if (InOneSubnet(own[mine].gid, offered[i].gid)) near.push_back(i);
    }
    const std::vector<size_t>& best = near.empty() ? linked : near;
    if (!best.empty()) return DeviceChoice{mine, best[number % best.size()]};
  }
  return absl::FailedPreconditionError(
      "the source's RDMA devices are on another kind of network than those of this machine "
      "(InfiniBand and RoCE do not meet)");
}

}  // namespace th::ibverbs
