// The catalog, to and from protobuf. See wire.h for the rules.
#ifndef TH_WIRE_CATALOG_H_
#define TH_WIRE_CATALOG_H_

#include "absl/status/statusor.h"
#include "th/proto/tensorhub.pb.h"
#include "th/protocol/catalog.h"
#include "th/wire/values.h"

namespace th {

pb::Catalog ToProto(const Catalog& catalog);
absl::StatusOr<Catalog> FromProto(const pb::Catalog& in);

}  // namespace th

#endif  // TH_WIRE_CATALOG_H_
