#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "testing/fuzz/fuzz_target.h"
#include "th/weights/version.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input = th::testing::AsText(data, size);
  const absl::StatusOr<th::VersionSelector> selector = th::ParseVersionSelector(input);
  if (selector.ok()) {
    FUZZ_CHECK(th::ToString(*selector) == input);
  } else {
    FUZZ_CHECK(selector.status().code() == absl::StatusCode::kInvalidArgument);
  }
  return 0;
}
