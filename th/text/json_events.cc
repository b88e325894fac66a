#include "th/text/json_events.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "th/text/utf8.h"

namespace th {
namespace {

using nlohmann::json;

// Turns nlohmann's events, which end by `false`, into ours, which end by a status.
class SaxAdapter : public nlohmann::json_sax<json> {
 public:
  explicit SaxAdapter(JsonEvents& events) : events_(events) {}

  bool null() override { return Take(events_.OnOther("null")); }
  bool boolean(bool value) override { return Take(events_.OnOther(value ? "true" : "false")); }
  bool number_integer(int64_t value) override { return Take(events_.OnOther(absl::StrCat(value))); }
  bool number_unsigned(uint64_t value) override { return Take(events_.OnUnsigned(value)); }
  bool number_float(double, const std::string& text) override {
    return Take(events_.OnOther(text));
  }
  bool string(std::string& value) override { return Take(events_.OnString(std::move(value))); }
  bool binary(json::binary_t&) override { return Take(events_.OnOther("binary data")); }
  bool start_object(size_t) override { return Take(events_.OnStartObject()); }
  bool key(std::string& key) override { return Take(events_.OnKey(std::move(key))); }
  bool end_object() override { return Take(events_.OnEndObject()); }
  bool start_array(size_t) override { return Take(events_.OnStartArray()); }
  bool end_array() override { return Take(events_.OnEndArray()); }
  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    return Take(absl::InvalidArgumentError(absl::StrCat("is not JSON: error at byte ", position)));
  }

  const absl::Status& status() const { return status_; }

 private:
  bool Take(absl::Status status) {
    status_ = std::move(status);
    return status_.ok();
  }

  JsonEvents& events_;
  absl::Status status_;
};

}  // namespace

absl::Status ReadJsonObject(absl::string_view what, absl::string_view text, JsonEvents& events) {
  const auto refused = [what](absl::string_view reason) {
    return absl::InvalidArgumentError(absl::StrCat(what, " ", reason));
  };
  if (!IsUtf8(text)) return refused("is not UTF-8");
  // The parser would skip a byte order mark and white space, and take a NUL for the end.
  if (!absl::StartsWith(text, "{")) return refused("is not JSON: it does not begin with '{'");
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) {
    return refused(absl::StrCat("is not JSON: error at byte ", nul + 1));
  }
  SaxAdapter adapter(events);
  if (json::sax_parse(text.begin(), text.end(), &adapter)) return absl::OkStatus();
  return refused(adapter.status().message());
}

std::string JsonString(absl::string_view text) {
  return json(std::string(text)).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace th
