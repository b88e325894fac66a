#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "testing/fuzz/fuzz_target.h"
#include "th/topology/location.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<th::Location> location = th::ParseLocation(th::testing::AsText(data, size));
  if (!location.ok()) {
    FUZZ_CHECK(location.status().code() == absl::StatusCode::kInvalidArgument);
    return 0;
  }
  // The order of the fields and the digits of an escape are free: what must last is the value.
  const absl::StatusOr<th::Location> again = th::ParseLocation(location->ToString());
  FUZZ_CHECK(again.ok() && *again == *location);
  return 0;
}
