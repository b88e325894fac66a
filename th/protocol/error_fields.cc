#include "th/protocol/error_fields.h"

#include "absl/strings/cord.h"

namespace th {
namespace {

constexpr absl::string_view kWord = "tensorhub/code_word";
constexpr absl::string_view kRank = "tensorhub/rank";
constexpr absl::string_view kEvent = "tensorhub/event";

std::string Get(const absl::Status& status, absl::string_view name) {
  const auto payload = status.GetPayload(name);
  return payload.has_value() ? std::string(*payload) : "";
}

void Set(absl::string_view name, const std::string& value, absl::Status* status) {
  if (!value.empty()) status->SetPayload(name, absl::Cord(value));
}

}  // namespace

ErrorFields FieldsOf(const absl::Status& status) {
  return {.word = Get(status, kWord), .rank = Get(status, kRank), .event = Get(status, kEvent)};
}

void SetFields(const ErrorFields& fields, absl::Status* status) {
  Set(kWord, fields.word, status);
  Set(kRank, fields.rank, status);
  Set(kEvent, fields.event, status);
}

absl::Status Reworded(const absl::Status& status, absl::string_view text) {
  absl::Status reworded(status.code(), text);
  SetFields(FieldsOf(status), &reworded);
  return reworded;
}

}  // namespace th
