#include "th/weights/version.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "th/status/status_macros.h"
#include "th/text/utf8.h"

namespace th {
namespace {

constexpr char kLatest[] = "latest";
constexpr char kLatestPrefix[] = "latest-";
constexpr char kSequencePrefix[] = "#";

// The common rules of names and labels.
absl::Status CheckText(absl::string_view what, absl::string_view text, size_t max_bytes) {
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(what, " is empty"));
  const auto refused = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(what, " ", Quoted(text), why...));
  };
  if (text.size() > max_bytes) {
    return refused(" has ", text.size(), " bytes; at most ", max_bytes, " are allowed");
  }
  for (absl::string_view rest = text; !rest.empty();) {
    const std::optional<char32_t> code_point = TakeCodePoint(rest);
    if (!code_point.has_value()) {
      return refused(" is not UTF-8");
    }
    if (IsWhiteSpace(*code_point)) {
      return refused(" contains white space");
    }
    if (IsUnprintable(*code_point)) {
      return refused(" contains an unprintable character");
    }
  }
  return absl::OkStatus();
}

// Decimal digits without sign, space or leading zeros, so that text and number are one to one.
std::optional<uint32_t> ParseDecimal(absl::string_view text) {
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!digits || (text.size() > 1 && text.front() == '0')) return std::nullopt;
  uint32_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) return std::nullopt;
  return value;
}

absl::StatusOr<VersionSequence> ParseSequence(absl::string_view text) {
  const size_t dot = text.find('.');
  std::optional<uint32_t> epoch;
  std::optional<uint32_t> number;
  if (dot != absl::string_view::npos) {
    epoch = ParseDecimal(text.substr(0, dot));
    number = ParseDecimal(text.substr(dot + 1));
  }
  if (!epoch.has_value() || !number.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "version ", Quoted(absl::StrCat(kSequencePrefix, text)),
        " is not a sequence: expected '#EPOCH.NUMBER', two decimal numbers below 2^32"));
  }
  const VersionSequence sequence = VersionSequence::Of(Epoch(*epoch), *number);
  if (sequence == VersionSequence()) {
    return absl::InvalidArgumentError("version '#0.0' is no version: sequences start above zero");
  }
  return sequence;
}

// The K of "latest-K"; nullopt: it is none.
std::optional<uint32_t> ParseBack(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, kLatestPrefix)) return std::nullopt;
  return ParseDecimal(text);
}

}  // namespace

absl::StatusOr<VersionLabel> VersionLabel::Parse(absl::string_view text) {
  TH_RETURN_IF_ERROR(CheckText("version label", text, kMaxLabelBytes));
  if (text == kLatest) {
    return absl::InvalidArgumentError(
        "version label 'latest' is reserved: it selects the highest version");
  }
  if (ParseBack(text).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("version label ", Quoted(text), " is reserved: it counts from the latest"));
  }
  if (absl::StartsWith(text, kSequencePrefix)) {
    return absl::InvalidArgumentError(absl::StrCat("version label ", Quoted(text),
                                                   " begins with '#', which selects by sequence"));
  }
  return VersionLabel(std::string(text));
}

VersionLabel VersionLabel::FromStep(int64_t step) { return VersionLabel(absl::StrCat(step)); }

std::string ToString(const VersionSelector& selector) {
  if (const auto* label = std::get_if<VersionLabel>(&selector)) return label->text();
  if (const auto* sequence = std::get_if<VersionSequence>(&selector)) {
    return absl::StrCat(kSequencePrefix, sequence->ToString());
  }
  const uint32_t back = std::get<LatestVersion>(selector).back;
  return back == 0 ? kLatest : absl::StrCat(kLatestPrefix, back);
}

absl::StatusOr<VersionSelector> ParseVersionSelector(absl::string_view text) {
  if (text == kLatest) return LatestVersion{};
  if (const std::optional<uint32_t> back = ParseBack(text)) {
    if (*back > 0) return LatestVersion{.back = *back};
    return absl::InvalidArgumentError("version 'latest-0' is 'latest'; K counts from 1");
  }
  if (absl::ConsumePrefix(&text, kSequencePrefix)) {
    TH_ASSIGN_OR_RETURN(const VersionSequence sequence, ParseSequence(text));
    return sequence;
  }
  TH_ASSIGN_OR_RETURN(VersionLabel label, VersionLabel::Parse(text));
  return label;
}

std::string VersionInfo::ToString() const {
  if (label.empty()) return absl::StrCat(kSequencePrefix, sequence.ToString());
  return absl::StrCat(label.text(), " (", kSequencePrefix, sequence.ToString(), ")");
}

absl::Status ValidateName(absl::string_view what, absl::string_view name) {
  return CheckText(what, name, kMaxNameBytes);
}

size_t BytesOf(const Attributes& attributes) {
  size_t bytes = 0;
  for (const auto& [key, value] : attributes) bytes += key.size() + value.size();
  return bytes;
}

absl::Status ValidateAttributes(const Attributes& attributes) {
  const size_t bytes = BytesOf(attributes);
  if (bytes <= kMaxAttributesBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("attributes have ", bytes, " bytes; at most ",
                                                 kMaxAttributesBytes, " are allowed"));
}

}  // namespace th
