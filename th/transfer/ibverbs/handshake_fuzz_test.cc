#include <string>

#include "testing/fuzz/fuzz_target.h"
#include "th/transfer/ibverbs/handshake.h"

namespace th::ibverbs {
namespace {

// Words that were accepted keep their meaning when they are sent on.
void CheckAll(const std::string& input) {
  if (const auto offer = DecodeOffer(input); offer.ok()) {
    FUZZ_CHECK(!offer->devices.empty() && offer->devices.size() <= kMaxOfferedDevices);
    FUZZ_CHECK(*DecodeOffer(Encode(*offer)) == *offer);
    const auto choice = ChooseDevices(offer->devices, offer->devices, 1);
    FUZZ_CHECK(choice.ok() && choice->own < offer->devices.size() &&
               choice->offered < offer->devices.size());
  }
  if (const auto request = DecodeRequest(input); request.ok()) {
    FUZZ_CHECK(*DecodeRequest(Encode(*request)) == *request);
  }
  if (const auto reply = DecodeReply(input); reply.ok()) {
    FUZZ_CHECK(*DecodeReply(Encode(*reply)) == *reply);
  }
}

}  // namespace
}  // namespace th::ibverbs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  th::ibverbs::CheckAll(std::string(th::testing::AsText(data, size)));
  return 0;
}
