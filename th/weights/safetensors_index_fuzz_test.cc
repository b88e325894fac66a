#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "testing/fuzz/fuzz_target.h"
#include "th/weights/safetensors_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<th::SafetensorsIndex> index =
      th::ParseSafetensorsIndex(th::testing::AsText(data, size));
  if (!index.ok()) {
    FUZZ_CHECK(index.status().code() == absl::StatusCode::kInvalidArgument);
    return 0;
  }
  for (const std::string& file : index->Files()) {
    FUZZ_CHECK(!file.empty() && file.size() <= th::kMaxFileNameBytes);
    FUZZ_CHECK(file.find('/') == std::string::npos && file.find("..") == std::string::npos);
  }
  const absl::StatusOr<th::SafetensorsIndex> again =
      th::ParseSafetensorsIndex(th::EncodeSafetensorsIndex(*index, size));
  FUZZ_CHECK(again.ok() && again->weight_map == index->weight_map);
  return 0;
}
