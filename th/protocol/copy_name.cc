#include "th/protocol/copy_name.h"

#include "absl/strings/str_cat.h"

namespace th {

std::string CopyName(absl::string_view buffer, CopyFor purpose, VersionSequence version,
                     GroupGeneration generation, OperationNumber number) {
  return absl::StrCat(buffer, purpose == CopyFor::kSite ? ".seed-" : ".offload-", version.value,
                      ".", generation.value, ".", number.value);
}

}  // namespace th
