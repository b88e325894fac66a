#include "th/coordination/state_encoding.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/status/status_macros.h"
#include "th/weights/digest.h"

namespace th {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kMagic = "tensorhub-state";

// ---------------------------------------------------------------------------------------------
// To JSON

Json PinToJson(const DurablePin& pin) {
  Json out = {{"version", pin.version.value}, {"owner", pin.owner}};
  if (pin.expires_at != absl::InfiniteFuture()) {
    out["expires_at_unix_ns"] = absl::ToUnixNanos(pin.expires_at);
  }
  if (!pin.form.empty()) out["form"] = pin.form;
  return out;
}

Json ModelToJson(const ModelKey& key, const DurableModel& model) {
  Json pins = Json::array();
  for (const DurablePin& pin : model.pins) pins.push_back(PinToJson(pin));
  Json roll_backs = Json::array();
  for (const DurableRollBack& point : model.roll_backs) {
    Json& entry =
        roll_backs.emplace_back(Json{{"lineage", point.lineage.value}, {"to", point.to.value}});
    if (point.group.empty()) continue;
    entry["group"] = point.group;
    entry["group_generation"] = point.group_generation.value;
  }
  Json out = {{"run", key.run},
              {"model", key.model},
              {"high_water", model.high_water.value},
              {"high_water_label", model.high_water_label},
              {"lineage", model.lineage.value},
              {"keep_latest", model.keep_latest},
              {"pins", std::move(pins)},
              {"roll_backs", std::move(roll_backs)}};
  for (const auto& [form, count] : model.keep_latest_of_form) {
    out["keep_latest_of_form"].push_back({{"form", form}, {"keep_latest", count}});
  }
  for (const DurableRollBackResult& result : model.roll_back_results) {
    out["roll_back_results"].push_back({{"idempotency_key", result.idempotency_key},
                                        {"to", result.to.value},
                                        {"label", result.label},
                                        {"lineage", result.lineage.value}});
  }
  return out;
}

std::string KeyToText(const ClusterKey& key) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size()));
}

// ---------------------------------------------------------------------------------------------
// From JSON: every accessor checks the type first, so that the library never throws.

class ObjectReader {
 public:
  explicit ObjectReader(const Json& object) : object_(object) {
    if (!object.is_object()) Fail("an entry", "is no object");
  }
  absl::Status status() const { return status_; }

  template <typename Raw>
  Raw Number(const char* field) {
    const Json* value = Find(field);
    if (value == nullptr) return 0;
    if (!value->is_number_unsigned() || value->get<uint64_t>() > std::numeric_limits<Raw>::max()) {
      Fail(field, "is no number in range");
      return 0;
    }
    return static_cast<Raw>(value->get<uint64_t>());
  }
  std::string Text(const char* field) {
    const Json* value = Find(field);
    if (value == nullptr) return "";
    if (!value->is_string()) Fail(field, "is no text");
    return value->is_string() ? value->get<std::string>() : "";
  }
  const Json& Array(const char* field) {
    static const Json& empty = *new Json(Json::array());
    const Json* value = Find(field);
    if (value == nullptr) return empty;
    if (!value->is_array()) Fail(field, "is no array");
    return value->is_array() ? *value : empty;
  }
  // Fields that an older server did not write yet are empty.
  std::string TextOrNone(const char* field) { return Has(field) ? Text(field) : ""; }
  const Json& ArrayOrNone(const char* field) {
    static const Json& empty = *new Json(Json::array());
    return Has(field) ? Array(field) : empty;
  }
  absl::Time TimeOrInfinite(const char* field) {
    if (!Has(field)) return absl::InfiniteFuture();
    const Json& value = object_[field];
    if (!value.is_number_integer()) Fail(field, "is no number");
    return value.is_number_integer() ? absl::FromUnixNanos(value.get<int64_t>()) : absl::Time();
  }

 private:
  bool Has(const char* field) const { return object_.is_object() && object_.contains(field); }
  const Json* Find(const char* field) {
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(field);
    if (found != object_.end()) return &*found;
    Fail(field, "is missing");
    return nullptr;
  }
  void Fail(absl::string_view field, absl::string_view reason) {
    if (status_.ok()) status_ = absl::DataLossError(absl::StrCat(field, " ", reason));
  }

  const Json& object_;
  absl::Status status_;
};

absl::StatusOr<DurablePin> PinFromJson(const Json& in) {
  ObjectReader reader(in);
  DurablePin pin{.version = VersionSequence(reader.Number<uint64_t>("version")),
                 .owner = reader.Text("owner"),
                 .expires_at = reader.TimeOrInfinite("expires_at_unix_ns"),
                 .form = reader.TextOrNone("form")};
  TH_RETURN_IF_ERROR(reader.status());
  return pin;
}

absl::StatusOr<DurableRollBack> RollBackFromJson(const Json& in) {
  ObjectReader reader(in);
  DurableRollBack point{.lineage = Lineage(reader.Number<uint64_t>("lineage")),
                        .to = VersionSequence(reader.Number<uint64_t>("to")),
                        .group = reader.TextOrNone("group")};
  if (!point.group.empty()) {
    point.group_generation = GroupGeneration(reader.Number<uint64_t>("group_generation"));
  }
  TH_RETURN_IF_ERROR(reader.status());
  return point;
}

absl::StatusOr<DurableRollBackResult> RollBackResultFromJson(const Json& in) {
  ObjectReader reader(in);
  DurableRollBackResult result{.idempotency_key = reader.Text("idempotency_key"),
                               .to = VersionSequence(reader.Number<uint64_t>("to")),
                               .label = reader.Text("label"),
                               .lineage = Lineage(reader.Number<uint64_t>("lineage"))};
  TH_RETURN_IF_ERROR(reader.status());
  return result;
}

absl::Status FormFromJson(const Json& in, DurableModel& out) {
  ObjectReader reader(in);
  const std::string form = reader.Text("form");
  out.keep_latest_of_form[form] = reader.Number<uint32_t>("keep_latest");
  return reader.status();
}

absl::Status ModelFromJson(const Json& in, DurableState& out) {
  ObjectReader reader(in);
  const ModelKey key{reader.Text("run"), reader.Text("model")};
  DurableModel model{.high_water = VersionSequence(reader.Number<uint64_t>("high_water")),
                     .high_water_label = reader.Text("high_water_label"),
                     .lineage = Lineage(reader.Number<uint64_t>("lineage")),
                     .keep_latest = reader.Number<uint32_t>("keep_latest")};
  for (const Json& pin : reader.Array("pins")) {
    TH_ASSIGN_OR_RETURN(model.pins.emplace_back(), PinFromJson(pin));
  }
  for (const Json& point : reader.Array("roll_backs")) {
    TH_ASSIGN_OR_RETURN(model.roll_backs.emplace_back(), RollBackFromJson(point));
  }
  for (const Json& form : reader.ArrayOrNone("keep_latest_of_form")) {
    TH_RETURN_IF_ERROR(FormFromJson(form, model));
  }
  for (const Json& result : reader.ArrayOrNone("roll_back_results")) {
    TH_ASSIGN_OR_RETURN(model.roll_back_results.emplace_back(), RollBackResultFromJson(result));
  }
  TH_RETURN_IF_ERROR(reader.status());
  if (!out.models.emplace(key, std::move(model)).second) {
    return absl::DataLossError(absl::StrCat(key.ToString(), " is there twice"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ClusterKey> KeyFromText(const std::string& text) {
  ClusterKey key;
  const bool hex = text.size() == 2 * key.bytes.size() &&
                   std::all_of(text.begin(), text.end(), absl::ascii_isxdigit);
  if (!hex) return absl::DataLossError("cluster_key is no key of 32 bytes");
  const std::string bytes = absl::HexStringToBytes(text);
  std::copy(bytes.begin(), bytes.end(), key.bytes.begin());
  return key;
}

// A server that knew of no cluster wrote none; its state is given one.
absl::Status IdentityFromJson(const Json& in, StateIdentity& out) {
  ObjectReader reader(in);
  if (!in.contains("cluster")) return absl::OkStatus();
  out.cluster = ClusterId(reader.Number<uint64_t>("cluster"));
  for (const Json& epoch_id : reader.Array("epoch_ids")) {
    if (!epoch_id.is_number_unsigned()) return absl::DataLossError("an epoch id is no number");
    out.epoch_ids.emplace_back(epoch_id.get<uint64_t>());
  }
  const std::string key = reader.Text("cluster_key");
  TH_RETURN_IF_ERROR(reader.status());
  TH_ASSIGN_OR_RETURN(out.key, KeyFromText(key));
  return absl::OkStatus();
}

// Checks the first line and leaves the rest in `text`.
absl::Status CheckHeader(absl::string_view& text) {
  const size_t end = text.find('\n');
  if (end == absl::string_view::npos) return absl::DataLossError("it has no first line");
  const std::vector<absl::string_view> words = absl::StrSplit(text.substr(0, end), ' ');
  text.remove_prefix(end + 1);
  uint32_t format = 0;
  if (words.size() < 2 || words[0] != kMagic || !absl::SimpleAtoi(words[1], &format)) {
    return absl::DataLossError("its first line is no tensorhub-state header");
  }
  if (format != kStateFormat) {
    return absl::UnimplementedError(
        absl::StrCat("it has format ", format, ", this server reads format ", kStateFormat));
  }
  if (words.size() != 3 || words[2] != Sha256(text).ToHex()) {
    return absl::DataLossError("its checksum does not match its content");
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeState(const StoredState& state) {
  Json models = Json::array();
  for (const auto& [key, model] : state.durable.models) models.push_back(ModelToJson(key, model));
  Json epoch_ids = Json::array();
  for (const EpochId id : state.identity.epoch_ids) epoch_ids.push_back(id.value);
  const Json root = {{"epoch", state.epoch.value},
                     {"cluster", state.identity.cluster.value},
                     {"cluster_key", KeyToText(state.identity.key)},
                     {"epoch_ids", std::move(epoch_ids)},
                     {"models", std::move(models)}};
  // Names are UTF-8 by the time they get here; `replace` only keeps the library from throwing.
  const std::string body = root.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  return absl::StrCat(kMagic, " ", kStateFormat, " ", Sha256(body).ToHex(), "\n", body);
}

absl::StatusOr<StoredState> DecodeState(absl::string_view text) {
  TH_RETURN_IF_ERROR(CheckHeader(text));
  const Json root = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return absl::DataLossError("its content is no JSON");
  ObjectReader reader(root);
  StoredState state{.epoch = Epoch(reader.Number<uint32_t>("epoch"))};
  for (const Json& model : reader.Array("models")) {
    TH_RETURN_IF_ERROR(ModelFromJson(model, state.durable));
  }
  TH_RETURN_IF_ERROR(reader.status());
  TH_RETURN_IF_ERROR(IdentityFromJson(root, state.identity));
  return state;
}

}  // namespace th
