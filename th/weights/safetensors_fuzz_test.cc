// The input is a whole file: prefix, header and data.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "testing/fuzz/fuzz_target.h"
#include "th/weights/safetensors.h"

namespace th::testing {
namespace {

absl::StatusOr<SafetensorsHeader> ParseFile(absl::string_view file, uint64_t file_bytes) {
  const absl::StatusOr<uint64_t> header_bytes =
      ParseSafetensorsPrefix(file.substr(0, kSafetensorsPrefixBytes), file_bytes);
  if (!header_bytes.ok()) return header_bytes.status();
  return ParseSafetensorsHeader(file.substr(kSafetensorsPrefixBytes, *header_bytes), file_bytes);
}

// The tensors tile the data.
void CheckOffsets(const SafetensorsHeader& header, uint64_t file_bytes) {
  uint64_t position = header.data_begin;
  for (const SafetensorsTensor& tensor : header.tensors) {
    FUZZ_CHECK(tensor.file_offset == position);
    position += tensor.spec.bytes;
  }
  FUZZ_CHECK(position == file_bytes);
}

void CheckPlan(const SafetensorsHeader& header) {
  std::vector<TensorSpec> specs;
  for (const SafetensorsTensor& tensor : header.tensors) specs.push_back(tensor.spec);
  const absl::StatusOr<SafetensorsPlan> plan = PlanSafetensorsFile(specs, header.metadata);
  FUZZ_CHECK(plan.ok());
  const absl::StatusOr<SafetensorsHeader> again = ParseFile(plan->bytes, plan->file_bytes);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(again->metadata == header.metadata);
  FUZZ_CHECK(again->tensors.size() == header.tensors.size());
}

}  // namespace
}  // namespace th::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<th::SafetensorsHeader> header =
      th::testing::ParseFile(th::testing::AsText(data, size), size);
  if (!header.ok()) {
    FUZZ_CHECK(header.status().code() == absl::StatusCode::kInvalidArgument);
    return 0;
  }
  th::testing::CheckOffsets(*header, size);
  th::testing::CheckPlan(*header);
  return 0;
}
