// The names of the kinds of operations for people: in logs, errors, the catalog and metrics.
//
//   OperationKindName(OperationKind::kUnpublish)   // "unpublish"
#ifndef TH_PROTOCOL_OPERATION_KIND_NAME_H_
#define TH_PROTOCOL_OPERATION_KIND_NAME_H_

#include "absl/strings/string_view.h"
#include "th/protocol/messages.h"

namespace th {

// "publish", "unpublish", "update"; "unknown" for a value that is none of them, as a peer may send
// it. Of static lifetime. Pure, thread-safe.
absl::string_view OperationKindName(OperationKind kind);

}  // namespace th

#endif  // TH_PROTOCOL_OPERATION_KIND_NAME_H_
