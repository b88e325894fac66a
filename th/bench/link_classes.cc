#include "th/bench/link_classes.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "th/command_line/quantity.h"
#include "th/processes/virtual_hosts.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

constexpr char kTimes = '*';
constexpr char kExample[] = "like 250mbit*2";

}  // namespace

absl::Status CheckFanoutReaders(int64_t readers) {
  if (readers >= 1 && readers <= kMostFanoutReaders) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a fan-out has 1 to ", kMostFanoutReaders, " readers, not ", readers));
}

absl::StatusOr<uint64_t> ParseLinkRate(const std::string& text) {
  const absl::StatusOr<uint64_t> rate = ParseRate(text);
  if (rate.ok() && *rate >= kSlowestLink && *rate <= kFastestLink) return *rate;
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text, "\" is no rate of a virtual link: give 1mbit to 10gbit, like 250mbit"));
}

absl::StatusOr<LinkClass> ParseLinkClass(absl::string_view text) {
  const size_t times = text.find(kTimes);
  LinkClass parsed{.rate = std::string(text.substr(0, times)), .hosts = 1};
  const absl::StatusOr<uint64_t> rate = ParseLinkRate(parsed.rate);
  if (!rate.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(rate.status().message(), "; a rate with its hosts is written ", kExample));
  }
  parsed.bytes_per_second = *rate;
  if (times == absl::string_view::npos) return parsed;
  int64_t hosts = 0;
  if (!absl::SimpleAtoi(text.substr(times + 1), &hosts)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" gives no number of hosts after the *; write it ", kExample));
  }
  if (const absl::Status fits = CheckFanoutReaders(hosts); !fits.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\": ", fits.message()));
  }
  parsed.hosts = static_cast<uint32_t>(hosts);
  return parsed;
}

absl::StatusOr<std::vector<LinkClass>> ParseLinkClasses(const std::vector<std::string>& entries) {
  if (entries.empty()) {
    return absl::InvalidArgumentError("no rate is given; write them like 1gbit*6,250mbit*2");
  }
  std::vector<LinkClass> classes;
  classes.reserve(entries.size());
  for (const std::string& entry : entries) {
    TH_ASSIGN_OR_RETURN(LinkClass parsed, ParseLinkClass(entry));
    for (const LinkClass& other : classes) {
      if (other.bytes_per_second != parsed.bytes_per_second) continue;
      return absl::InvalidArgumentError(absl::StrCat("\"", entry, "\" has the rate of ", other.rate,
                                                     " again: give all hosts of a rate at once"));
    }
    classes.push_back(std::move(parsed));
  }
  return classes;
}

uint32_t HostsOf(const std::vector<LinkClass>& classes) {
  uint32_t hosts = 0;
  for (const LinkClass& of_rate : classes) hosts += of_rate.hosts;
  return hosts;
}

const LinkClass& FastestOf(const std::vector<LinkClass>& classes) {
  return *std::max_element(classes.begin(), classes.end(),
                           [](const LinkClass& a, const LinkClass& b) {
                             return a.bytes_per_second < b.bytes_per_second;
                           });
}

}  // namespace th
