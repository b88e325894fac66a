#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "testing/fuzz/fuzz_target.h"
#include "th/memory/cuda/shared_allocation.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input = th::testing::AsText(data, size);
  const absl::StatusOr<th::ExportedAllocation> exported = th::ExportedAllocation::Decode(input);
  if (exported.ok()) {
    FUZZ_CHECK(exported->Encode() == input);
    FUZZ_CHECK(exported->offset < exported->bytes);
  } else {
    FUZZ_CHECK(exported.status().code() == absl::StatusCode::kInvalidArgument);
  }
  return 0;
}
