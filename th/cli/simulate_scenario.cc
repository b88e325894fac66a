#include "th/cli/simulate_scenario.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "th/cli/scenario_report.h"
#include "th/simulator/simulator.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

constexpr absl::Duration kProgressInterval = absl::Seconds(2);

absl::StatusOr<std::pair<std::string, std::string>> NameAndValue(const std::string& flag) {
  const size_t equals = flag.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == flag.size()) {
    return absl::InvalidArgumentError(absl::StrCat("'", flag, "' is not name=value"));
  }
  return std::pair(flag.substr(0, equals), flag.substr(equals + 1));
}

// Every combination of the swept values; one without any where nothing is swept.
absl::StatusOr<std::vector<ScenarioOverrides>> SweptBy(const ScenarioFlags& flags) {
  std::vector<ScenarioOverrides> settings = {{}};
  for (const std::string& sweep : flags.sweep) {
    const auto named = NameAndValue(sweep);
    if (!named.ok()) return named.status();
    std::vector<ScenarioOverrides> more;
    for (const ScenarioOverrides& setting : settings) {
      for (absl::string_view value : absl::StrSplit(named->second, ',', absl::SkipEmpty())) {
        more.push_back(setting);
        more.back()[named->first] = std::string(value);
      }
    }
    if (more.size() > kMaxScenarioRuns) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxScenarioRuns, " settings"));
    }
    settings = std::move(more);
  }
  return settings;
}

absl::StatusOr<ScenarioRunReport> RunOne(const ScenarioFlags& flags, const std::string& text,
                                         const ScenarioOverrides& swept, ScenarioPolicy policy) {
  absl::StatusOr<ScenarioOverrides> set = OverridesOf(flags.set);
  if (!set.ok()) return set.status();
  ScenarioOverrides overrides = swept;
  overrides.merge(*set);
  const absl::StatusOr<Scenario> scenario = ParseScenario(flags.file, text, overrides);
  if (!scenario.ok()) return scenario.status();
  ScenarioRunOptions options;
  if (flags.trace) options.trace = [](const std::string& line) { std::cerr << line << "\n"; };
  absl::StatusOr<ScenarioResult> result = RunScenario(*scenario, policy, options);
  if (!result.ok()) return result.status();
  return ScenarioRunReport{swept, *std::move(result)};
}

void TellProgress(size_t done, size_t runs, absl::Time* told_at) {
  const absl::Time now = MonotonicNow();
  if (now - *told_at < kProgressInterval) return;
  *told_at = now;
  std::cerr << done << " of " << runs << " runs\n";
}

absl::StatusOr<std::vector<ScenarioRunReport>> RunAll(const ScenarioFlags& flags,
                                                      const std::string& text) {
  const auto policies = PoliciesOf(flags.policies);
  if (!policies.ok()) return policies.status();
  const auto settings = SweptBy(flags);
  if (!settings.ok()) return settings.status();
  const size_t runs = settings->size() * policies->size();
  if (!flags.svg.empty() && runs != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--svg draws one run, and these are ", runs, ": name one policy, no --sweep"));
  }
  std::vector<ScenarioRunReport> reports;
  reports.reserve(runs);
  absl::Time told_at = MonotonicNow();
  for (const ScenarioOverrides& setting : *settings) {
    for (ScenarioPolicy policy : *policies) {
      absl::StatusOr<ScenarioRunReport> report = RunOne(flags, text, setting, policy);
      if (!report.ok()) return report.status();
      reports.push_back(*std::move(report));
      TellProgress(reports.size(), runs, &told_at);
    }
  }
  return reports;
}

std::string TextOf(const std::vector<ScenarioRunReport>& runs) {
  std::string text = ScenarioTable(runs);
  if (runs.size() == 1) absl::StrAppend(&text, "\n", ScenarioDetails(runs.front().result));
  return text;
}

// A run without a read that went well has no time to compare, only what failed.
void TellEmptyRuns(const std::vector<ScenarioRunReport>& runs) {
  for (const ScenarioRunReport& run : runs) {
    if (!run.result.reads.empty()) continue;
    std::cerr << "th: warning: " << ScenarioPolicyName(run.result.policy)
              << ": no update moved: " << run.result.updates_failed << " failed, "
              << run.result.updates_not_available << " found nothing, " << run.result.calls_open
              << " had no end; " << run.result.versions.size() << " versions were published\n";
  }
}

bool TellViolations(const std::vector<ScenarioRunReport>& runs) {
  bool any = false;
  for (const ScenarioRunReport& run : runs) {
    for (const std::string& violation : run.result.violations) {
      std::cerr << ScenarioPolicyName(run.result.policy)
                << ": violates what must hold: " << violation << "\n";
      any = true;
    }
  }
  return any;
}

}  // namespace

absl::StatusOr<std::string> ReadScenarioFile(const std::string& file) {
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  std::string text(kMaxScenarioBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad() || (stream.gcount() == 0 && !stream.eof())) {
    const std::string why = errno == 0 ? "" : absl::StrCat(": ", strerror(errno));
    return absl::NotFoundError(absl::StrCat(file, ": cannot be read", why));
  }
  text.resize(static_cast<size_t>(stream.gcount()));
  return text;
}

absl::StatusOr<ScenarioOverrides> OverridesOf(const std::vector<std::string>& set) {
  ScenarioOverrides overrides;
  for (const std::string& one : set) {
    auto named = NameAndValue(one);
    if (!named.ok()) return named.status();
    overrides.insert(*std::move(named));
  }
  return overrides;
}

absl::StatusOr<std::vector<ScenarioPolicy>> PoliciesOf(const std::vector<std::string>& names) {
  std::vector<ScenarioPolicy> policies;
  for (const std::string& name : names) {
    if (name == "all") {
      policies.assign(std::begin(kAllScenarioPolicies), std::end(kAllScenarioPolicies));
      return policies;
    }
    const absl::StatusOr<ScenarioPolicy> policy = ParseScenarioPolicy(name);
    if (!policy.ok()) return policy.status();
    policies.push_back(*policy);
  }
  if (policies.empty()) policies.push_back(ScenarioPolicy::kNearest);
  return policies;
}

ExitStatus SimulateScenario(const ScenarioFlags& flags, const Reporter& reporter) {
  const absl::StatusOr<std::string> text = ReadScenarioFile(flags.file);
  if (!text.ok()) return reporter.Fail(text.status(), ExitStatus::kLocalFiles);
  const absl::StatusOr<std::vector<ScenarioRunReport>> runs = RunAll(flags, *text);
  if (!runs.ok()) return reporter.Fail(runs.status(), ExitStatus::kUsage);
  if (!flags.svg.empty()) {
    std::ofstream picture(flags.svg, std::ios::binary | std::ios::trunc);
    picture << TimelinePicture(runs->front().result);
    picture.close();
    if (!picture) {
      return reporter.Fail(absl::InternalError(absl::StrCat(flags.svg, ": cannot be written")),
                           ExitStatus::kLocalFiles);
    }
  }
  reporter.Report(ScenarioToJson(*runs, /*ranks=*/flags.sweep.empty()), TextOf(*runs));
  TellEmptyRuns(*runs);
  return TellViolations(*runs) ? ExitStatus::kFailed : ExitStatus::kOk;
}

}  // namespace th
