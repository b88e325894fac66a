// The first byte says what the rest is: a frame of either direction, a catalog, a controller's
// call, or recent events.
#include <cstdint>
#include <string>

#include "testing/fuzz/fuzz_target.h"
#include "th/wire/wire.h"

namespace th {
namespace {

// Once decoded, a message is encoded to something that decodes to the same again.
template <typename Proto, typename Decoded>
void CheckStable(const absl::StatusOr<Decoded>& decoded) {
  if (!decoded.ok()) {
    FUZZ_CHECK(!decoded.status().message().empty());
    return;
  }
  const Proto encoded = ToProto(*decoded);
  const auto again = FromProto(encoded);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(ToProto(*again).SerializeAsString() == encoded.SerializeAsString());
}

template <typename Frame>
void FuzzFrame(const std::string& bytes) {
  Frame frame;
  if (!frame.ParseFromString(bytes)) return;
  const auto decoded = FromProto(frame);
  if (!decoded.ok()) {
    FUZZ_CHECK(!decoded.status().message().empty());
    return;
  }
  if (!decoded->has_value()) return;
  const Frame encoded = ToProto(**decoded);
  const auto again = FromProto(encoded);
  FUZZ_CHECK(again.ok() && again->has_value());
  FUZZ_CHECK(ToProto(**again).SerializeAsString() == encoded.SerializeAsString());
}

template <typename Proto>
void FuzzValue(const std::string& bytes) {
  Proto proto;
  if (proto.ParseFromString(bytes)) CheckStable<Proto>(FromProto(proto));
}

}  // namespace
}  // namespace th

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 14) {
    case 0:
      th::FuzzFrame<th::pb::WorkerToServer>(bytes);
      break;
    case 1:
      th::FuzzFrame<th::pb::ServerToWorker>(bytes);
      break;
    case 2:
      th::FuzzValue<th::pb::Catalog>(bytes);
      break;
    case 3:
      th::FuzzValue<th::pb::ListRequest>(bytes);
      break;
    case 4:
      th::FuzzValue<th::pb::ResolveRequest>(bytes);
      break;
    case 5:
      th::FuzzValue<th::pb::WaitVersionRequest>(bytes);
      break;
    case 6:
      th::FuzzValue<th::pb::CommandRequest>(bytes);
      break;
    case 7:
      th::FuzzValue<th::pb::GetLayoutRequest>(bytes);
      break;
    case 8:
      th::FuzzValue<th::pb::EventsRequest>(bytes);
      break;
    case 9:
      th::FuzzValue<th::pb::EventsResponse>(bytes);
      break;
    case 10:
      th::FuzzValue<th::pb::FindShardRequest>(bytes);
      break;
    case 11:
      th::FuzzValue<th::pb::FindShardResponse>(bytes);
      break;
    case 12:
      th::FuzzValue<th::pb::ClaimFormRequest>(bytes);
      break;
    default:
      th::FuzzValue<th::pb::ClaimFormResponse>(bytes);
  }
  return 0;
}
