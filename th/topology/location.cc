#include "th/topology/location.h"

#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "th/status/status_macros.h"
#include "th/text/utf8.h"
#include "th/weights/version.h"

namespace th {
namespace {

struct TextField {
  absl::string_view name;
  std::string Location::*value;
};

// Before and after "numa" and "nic", in the order of ToString.
constexpr TextField kPlaceFields[] = {
    {"site", &Location::site}, {"rack", &Location::rack}, {"host", &Location::host}};
constexpr TextField kDeviceField = {"device", &Location::device};
constexpr TextField kHostNameField = {"host-name", &Location::host_name};
constexpr absl::string_view kNumaField = "numa";
constexpr absl::string_view kNicField = "nic";

bool NeedsEscape(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return c == ',' || c == '%' || byte <= 0x20 || byte == 0x7f;
}

std::string Escape(absl::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (NeedsEscape(c)) {
      absl::StrAppendFormat(&escaped, "%%%02x", static_cast<unsigned char>(c));
    } else {
      escaped.push_back(c);
    }
  }
  return escaped;
}

std::optional<std::string> Unescape(absl::string_view escaped) {
  std::string text;
  while (!escaped.empty()) {
    if (escaped.front() != '%') {
      text.push_back(escaped.front());
      escaped.remove_prefix(1);
      continue;
    }
    if (escaped.size() < 3 || !absl::ascii_isxdigit(escaped[1]) ||
        !absl::ascii_isxdigit(escaped[2])) {
      return std::nullopt;
    }
    text += absl::HexStringToBytes(escaped.substr(1, 2));
    escaped.remove_prefix(3);
  }
  return text;
}

void AppendField(std::string& out, absl::string_view field, absl::string_view value) {
  if (value.empty()) return;
  absl::StrAppend(&out, out.empty() ? "" : ",", field, "=", Escape(value));
}

absl::Status Refused(absl::string_view field, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("location field ", Quoted(field), ": ", reason));
}

absl::StatusOr<std::string> ParseText(absl::string_view field, absl::string_view escaped) {
  std::optional<std::string> text = Unescape(escaped);
  if (!text.has_value()) return Refused(field, "'%' is not followed by two hexadecimal digits");
  const absl::Status valid = ValidateName("its value", *text);
  if (!valid.ok()) return Refused(field, valid.message());
  return *std::move(text);
}

absl::Status SetText(const TextField& field, absl::string_view escaped, Location& location) {
  std::string& value = location.*field.value;
  if (!value.empty()) return Refused(field.name, "given twice");
  TH_ASSIGN_OR_RETURN(value, ParseText(field.name, escaped));
  return absl::OkStatus();
}

absl::Status SetNuma(absl::string_view text, Location& location) {
  if (location.numa_node >= 0) return Refused(kNumaField, "given twice");
  const bool digits =
      !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
  if (!digits || !absl::SimpleAtoi(text, &location.numa_node)) {
    return Refused(kNumaField, absl::StrCat(Quoted(text), " is no node's number"));
  }
  return absl::OkStatus();
}

absl::Status AddNic(absl::string_view escaped, Location& location) {
  if (location.nics.size() >= kMaxNics) {
    return Refused(kNicField, absl::StrCat("given more than ", kMaxNics, " times"));
  }
  TH_ASSIGN_OR_RETURN(std::string nic, ParseText(kNicField, escaped));
  location.nics.push_back(std::move(nic));
  return absl::OkStatus();
}

absl::Status SetField(absl::string_view field, absl::string_view value, Location& location) {
  for (const TextField& place : kPlaceFields) {
    if (field == place.name) return SetText(place, value, location);
  }
  if (field == kDeviceField.name) return SetText(kDeviceField, value, location);
  if (field == kHostNameField.name) return SetText(kHostNameField, value, location);
  if (field == kNumaField) return SetNuma(value, location);
  if (field == kNicField) return AddNic(value, location);
  return Refused(field,
                 "unknown; the fields are site, rack, host, numa, nic, device and host-name");
}

bool KnownEqual(const std::string& a, const std::string& b) { return !a.empty() && a == b; }

bool KnownDifferent(const std::string& a, const std::string& b) {
  return !a.empty() && !b.empty() && a != b;
}

}  // namespace

std::string Location::ToString() const {
  std::string out;
  for (const TextField& field : kPlaceFields) AppendField(out, field.name, this->*field.value);
  if (numa_node >= 0) AppendField(out, kNumaField, absl::StrCat(numa_node));
  for (const std::string& nic : nics) AppendField(out, kNicField, nic);
  AppendField(out, kDeviceField.name, device);
  AppendField(out, kHostNameField.name, host_name);
  return out;
}

absl::StatusOr<Location> ParseLocation(absl::string_view text) {
  Location location;
  if (text.empty()) return location;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const size_t equals = part.find('=');
    if (equals == absl::string_view::npos) return Refused(part, "has no '='");
    TH_RETURN_IF_ERROR(SetField(part.substr(0, equals), part.substr(equals + 1), location));
  }
  return location;
}

absl::string_view DistanceName(Distance distance) {
  switch (distance) {
    case Distance::kSameDevice:
      return "same device";
    case Distance::kSameNumaNode:
      return "same NUMA node";
    case Distance::kSameHost:
      return "same host";
    case Distance::kSameRack:
      return "same rack";
    case Distance::kSameSite:
      return "same site";
    case Distance::kOtherSite:
      return "other site";
  }
  return "unknown distance";
}

Distance DistanceBetween(const Location& a, const Location& b) {
  if (KnownDifferent(a.site, b.site)) return Distance::kOtherSite;
  // A host cannot be in two racks: such two merely have one name. Nor does a device's bus id say
  // anything between two hosts.
  if (KnownDifferent(a.rack, b.rack)) return Distance::kSameSite;
  if (KnownEqual(a.host, b.host)) {
    if (KnownEqual(a.device, b.device)) return Distance::kSameDevice;
    if (a.numa_node >= 0 && a.numa_node == b.numa_node) return Distance::kSameNumaNode;
    return Distance::kSameHost;
  }
  return KnownEqual(a.rack, b.rack) ? Distance::kSameRack : Distance::kSameSite;
}

}  // namespace th
