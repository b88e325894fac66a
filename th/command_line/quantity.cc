#include "th/command_line/quantity.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

struct Unit {
  absl::string_view name;  // lower case
  double factor;
};

constexpr double kKi = 1024, kMi = kKi * 1024, kGi = kMi * 1024, kTi = kGi * 1024;

constexpr std::array<Unit, 13> kByteUnits = {{{"b", 1},
                                              {"k", kKi},
                                              {"kib", kKi},
                                              {"kb", 1e3},
                                              {"m", kMi},
                                              {"mib", kMi},
                                              {"mb", 1e6},
                                              {"g", kGi},
                                              {"gib", kGi},
                                              {"gb", 1e9},
                                              {"t", kTi},
                                              {"tib", kTi},
                                              {"tb", 1e12}}};
constexpr std::array<Unit, 4> kBitUnits = {
    {{"bit", 1. / 8}, {"kbit", 1e3 / 8}, {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}}};

// A value beyond this is a slip of the keyboard (and would not fit 63 bits).
constexpr double kMaxBytes = 1e18;

// The number at the front of `text`, and what follows it without white space between.
absl::StatusOr<std::pair<double, std::string>> SplitNumber(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text));
  const size_t end = lower.find_first_not_of("0123456789.");
  double number = 0;
  if (!absl::SimpleAtod(lower.substr(0, end), &number)) {
    return absl::InvalidArgumentError("does not start with a number");
  }
  const std::string rest = end == std::string::npos ? "" : lower.substr(end);
  return std::pair(number, std::string(absl::StripLeadingAsciiWhitespace(rest)));
}

template <size_t kCount>
const Unit* FindUnit(const std::array<Unit, kCount>& units, absl::string_view name) {
  for (const Unit& unit : units) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

absl::StatusOr<uint64_t> Scale(double number, double factor) {
  const double bytes = number * factor;
  if (!(bytes <= kMaxBytes)) return absl::InvalidArgumentError("is too large");
  return static_cast<uint64_t>(bytes);
}

absl::StatusOr<uint64_t> ScaleByUnit(absl::string_view text, bool bits_too) {
  TH_ASSIGN_OR_RETURN(const auto split, SplitNumber(text));
  if (split.second.empty() && split.first == 0) return 0;
  if (split.second.empty()) return absl::InvalidArgumentError("has no unit");
  const Unit* unit = FindUnit(kByteUnits, split.second);
  if (unit == nullptr && bits_too) unit = FindUnit(kBitUnits, split.second);
  if (unit == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("has the unknown unit \"", split.second, "\""));
  }
  return Scale(split.first, unit->factor);
}

absl::Status Explain(absl::string_view text, const absl::Status& why, absl::string_view examples) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" ", why.message(), "; write it like ", examples));
}

constexpr char kSizeExamples[] = "4GiB, 512MiB, 250MB or 4096B";
constexpr char kRateExamples[] = "250MB/s, 100MiB/s, 1gbit or none";
constexpr char kDurationExamples[] = "500ms, 30s, 10m or 1h30m";

}  // namespace

absl::StatusOr<uint64_t> ParseByteSize(absl::string_view text) {
  absl::StatusOr<uint64_t> bytes = ScaleByUnit(text, /*bits_too=*/false);
  if (!bytes.ok()) return Explain(text, bytes.status(), kSizeExamples);
  return bytes;
}

absl::StatusOr<uint64_t> ParseRate(absl::string_view text) {
  absl::string_view amount = absl::StripAsciiWhitespace(text);
  if (absl::EqualsIgnoreCase(amount, "none")) return 0;
  if (absl::EndsWithIgnoreCase(amount, "/s")) amount.remove_suffix(2);
  absl::StatusOr<uint64_t> rate = ScaleByUnit(amount, /*bits_too=*/true);
  if (!rate.ok()) return Explain(text, rate.status(), kRateExamples);
  if (*rate == 0)
    return Explain(text, absl::InvalidArgumentError("lets nothing pass"), kRateExamples);
  return rate;
}

absl::StatusOr<absl::Duration> ParseTimeSpan(absl::string_view text) {
  absl::Duration parsed;
  if (absl::ParseDuration(absl::StripAsciiWhitespace(text), &parsed) &&
      parsed >= absl::ZeroDuration() && parsed < absl::InfiniteDuration()) {
    return parsed;
  }
  double number = 0;
  const bool bare = absl::SimpleAtod(text, &number) && std::isfinite(number) && number > 0;
  return Explain(text, absl::InvalidArgumentError(bare ? "has no unit" : "is no duration"),
                 kDurationExamples);
}

absl::StatusOr<Attributes> ParseAttributes(const std::vector<std::string>& pairs) {
  Attributes attributes;
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the attribute \"", pair, "\" is not of the form key=value"));
    }
    if (!attributes.emplace(pair.substr(0, equals), pair.substr(equals + 1)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the attribute \"", pair.substr(0, equals), "\" is given twice"));
    }
  }
  TH_RETURN_IF_ERROR(ValidateAttributes(attributes));
  return attributes;
}

std::string FormatBytes(uint64_t bytes) {
  constexpr std::array<absl::string_view, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  if (bytes < 1000) return absl::StrCat(bytes, " B");
  double amount = static_cast<double>(bytes);
  size_t unit = 0;
  // 999.5 of a unit would be written with four digits.
  while (amount >= 999.5 && unit + 1 < kUnits.size()) {
    amount /= 1000;
    ++unit;
  }
  const int decimals = amount < 9.995 ? 2 : amount < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f %s", decimals, amount, kUnits[unit]);
}

std::string FormatRate(uint64_t bytes_per_second) {
  if (bytes_per_second == 0) return "no cap";
  return absl::StrCat(FormatBytes(bytes_per_second), "/s");
}

}  // namespace th
