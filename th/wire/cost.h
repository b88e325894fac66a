// Costs of updates and their sums, to and from protobuf. See wire.h for the rules.
//
// What a worker sends may be absurd within its types: the registry judges that (costs.h there).
#ifndef TH_WIRE_COST_H_
#define TH_WIRE_COST_H_

#include "absl/status/statusor.h"
#include "th/proto/tensorhub.pb.h"
#include "th/protocol/cost.h"
#include "th/wire/field_reader.h"
#include "th/wire/values.h"

namespace th {

pb::RankCost ToProto(const RankCost& cost);
absl::StatusOr<RankCost> FromProto(const pb::RankCost& in);

pb::PassedOver ToProto(const PassedOver& passed_over);
absl::StatusOr<PassedOver> FromProto(const pb::PassedOver& in);

pb::TransportsUsed ToProto(const TransportsUsed& used);
absl::StatusOr<TransportsUsed> FromProto(const pb::TransportsUsed& in);

// Reads a list by phase, which may be empty (no stall) or of a newer server that knows more phases.
void ReadStall(FieldReader& reader, const google::protobuf::RepeatedPtrField<pb::Duration>& in,
               StallByPhase& out);

pb::CatalogTotals ToProto(const ModelTotals& totals);
absl::StatusOr<ModelTotals> FromProto(const pb::CatalogTotals& in);

}  // namespace th

#endif  // TH_WIRE_COST_H_
