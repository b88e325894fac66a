// What the client tells, as JSON text for callers in other languages. Bytes that are no UTF-8 are
// replaced.
#ifndef TH_CLIENT_JSON_TEXT_H_
#define TH_CLIENT_JSON_TEXT_H_

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

// From an object whose values are strings; "" is no attribute. INVALID_ARGUMENT for anything else.
absl::StatusOr<Attributes> AttributesFromJson(absl::string_view text);

}  // namespace th

#endif  // TH_CLIENT_JSON_TEXT_H_
