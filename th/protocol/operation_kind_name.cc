#include "th/protocol/operation_kind_name.h"

namespace th {

absl::string_view OperationKindName(OperationKind kind) {
  switch (kind) {
    case OperationKind::kPublish:
      return "publish";
    case OperationKind::kUnpublish:
      return "unpublish";
    case OperationKind::kUpdate:
      return "update";
  }
  return "unknown";
}

}  // namespace th
