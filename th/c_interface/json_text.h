// The client's values as JSON text for callers in other languages. Bytes that are no UTF-8 are
// replaced.
#ifndef TH_C_INTERFACE_JSON_TEXT_H_
#define TH_C_INTERFACE_JSON_TEXT_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "th/client/attach.h"
#include "th/client/client.h"
#include "th/protocol/catalog.h"
#include "th/weights/version.h"

namespace th {

// "null" for no version.
std::string VersionToJson(const VersionInfo& version);
std::string UpdateResultToJson(const UpdateResult& result);
std::string CatalogToJson(const Catalog& catalog);
std::string AttachResultToJson(const AttachResult& result);
// The version, and of its snapshot, if it was made, "snapshot_bytes" and "snapshot_seconds".
std::string PublishResultToJson(const PublishResult& result);
std::string ReceiveResultToJson(const ReceiveResult& result);
std::string AwaitedFormToJson(const AwaitedForm& awaited);
std::string AppliedResultToJson(const AppliedResult& result);
std::string EventsToJson(const RecentEvents& events);
std::string FoundShardToJson(const FoundShard& shard);
std::string LayoutToJson(const ShardLayout& layout);
std::string ReaderReportsToJson(const std::deque<ReaderReport>& reports, uint64_t dropped);
std::string ClientInfoToJson(const Client& client);
std::string BufferInfoToJson(const WeightBuffer& buffer);

// From an object whose values are strings; "" is no attribute. INVALID_ARGUMENT for anything else.
absl::StatusOr<Attributes> AttributesFromJson(absl::string_view text);

}  // namespace th

#endif  // TH_C_INTERFACE_JSON_TEXT_H_
