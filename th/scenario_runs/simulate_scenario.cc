#include "th/scenario_runs/simulate_scenario.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "th/command_line/stop_signals.h"
#include "th/simulator/scenarios/scenarios.h"
#include "th/status/status_macros.h"
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

// The values of one --sweep of a variable that nothing else gives a value.
absl::StatusOr<std::vector<std::string>> ValuesOf(const std::pair<std::string, std::string>& swept,
                                                  const ScenarioOverrides& set,
                                                  std::set<std::string>* names) {
  const auto& [name, list] = swept;
  if (set.contains(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' is set and swept: give --set or --sweep of it"));
  }
  if (!names->insert(name).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' is swept twice: give all values in one --sweep"));
  }
  std::vector<std::string> values = absl::StrSplit(list, ',');
  for (const std::string& value : values) {
    if (!value.empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the sweep '", name, "=", list, "' has an empty value"));
  }
  return values;
}

// Every combination of the swept values; one without any where nothing is swept.
absl::StatusOr<std::vector<ScenarioOverrides>> SweptBy(const ScenarioFlags& flags,
                                                       const ScenarioOverrides& set) {
  std::vector<ScenarioOverrides> settings = {{}};
  std::set<std::string> names;
  for (const std::string& sweep : flags.sweep) {
    TH_ASSIGN_OR_RETURN(const auto named, NameAndValue(sweep));
    TH_ASSIGN_OR_RETURN(const std::vector<std::string> values, ValuesOf(named, set, &names));
    std::vector<ScenarioOverrides> more;
    for (const ScenarioOverrides& setting : settings) {
      for (const std::string& value : values) {
        more.push_back(setting);
        more.back()[named.first] = value;
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
                                         const ScenarioOverrides& set,
                                         const ScenarioOverrides& swept, ScenarioPolicy policy) {
  ScenarioOverrides overrides = swept;
  overrides.insert(set.begin(), set.end());
  TH_ASSIGN_OR_RETURN(const Scenario scenario, ParseScenario(flags.file, text, overrides));
  ScenarioRunOptions options;
  if (flags.trace) options.trace = [](const std::string& line) { std::cerr << line << "\n"; };
  TH_ASSIGN_OR_RETURN(ScenarioResult result, RunScenario(scenario, policy, options));
  return ScenarioRunReport{swept, std::move(result)};
}

void ReportProgress(size_t done, size_t runs, absl::Time* reported_at) {
  const absl::Time now = MonotonicNow();
  if (now - *reported_at < kProgressInterval) return;
  *reported_at = now;
  std::cerr << done << " of " << runs << " runs\n";
}

std::string TextOf(const ScenarioRuns& runs) {
  std::string text = ScenarioTable(runs.done);
  if (runs.planned == 1) absl::StrAppend(&text, "\n", ScenarioDetails(runs.done.front().result));
  if (!runs.interrupted()) return text;
  return absl::StrFormat("INTERRUPTED: %d of %d runs\n%s", runs.done.size(), runs.planned, text);
}

nlohmann::json ToJson(const ScenarioRuns& runs, bool ranks) {
  nlohmann::json object = ScenarioToJson(runs.done, ranks);
  object["interrupted"] = runs.interrupted();
  return object;
}

// A run without a read that went well has no time to compare, only what failed.
void ReportEmptyRuns(const std::vector<ScenarioRunReport>& runs) {
  for (const ScenarioRunReport& run : runs) {
    if (!run.result.reads.empty()) continue;
    std::cerr << "th: warning: " << ScenarioPolicyName(run.result.policy)
              << ": no update moved: " << run.result.updates_failed << " failed, "
              << run.result.updates_not_available << " found nothing, " << run.result.calls_open
              << " had no end; " << run.result.versions.size() << " versions were published\n";
  }
}

bool ReportViolations(const std::vector<ScenarioRunReport>& runs) {
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
    TH_ASSIGN_OR_RETURN(const auto named, NameAndValue(one));
    if (overrides.insert(named).second) continue;
    return absl::InvalidArgumentError(absl::StrCat("'", named.first, "' is set twice"));
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

absl::StatusOr<ScenarioRuns> RunScenarios(const ScenarioFlags& flags, const std::string& text,
                                          const std::function<bool()>& stopped) {
  TH_ASSIGN_OR_RETURN(const std::vector<ScenarioPolicy> policies, PoliciesOf(flags.policies));
  TH_ASSIGN_OR_RETURN(const ScenarioOverrides set, OverridesOf(flags.set));
  TH_ASSIGN_OR_RETURN(const std::vector<ScenarioOverrides> settings, SweptBy(flags, set));
  ScenarioRuns runs{.planned = settings.size() * policies.size()};
  if (!flags.svg.empty() && runs.planned != 1) {
    return absl::InvalidArgumentError(absl::StrCat("--svg draws one run, and these are ",
                                                   runs.planned, ": name one policy, no --sweep"));
  }
  absl::Time reported_at = MonotonicNow();
  for (const ScenarioOverrides& setting : settings) {
    for (ScenarioPolicy policy : policies) {
      if (!runs.done.empty() && stopped()) return runs;
      TH_ASSIGN_OR_RETURN(ScenarioRunReport report, RunOne(flags, text, set, setting, policy));
      runs.done.push_back(std::move(report));
      ReportProgress(runs.done.size(), runs.planned, &reported_at);
    }
  }
  return runs;
}

// Before all the runs, as after them it would be too late.
absl::Status CheckCanWrite(const std::string& path) {
  std::error_code error;
  const bool was_there = std::filesystem::exists(path, error);
  const bool good = std::ofstream(path, std::ios::binary | std::ios::app).good();
  const int why = errno;
  if (good && !was_there) std::filesystem::remove(path, error);
  return good ? absl::OkStatus()
              : absl::ErrnoToStatus(why, absl::StrCat(path, " cannot be written"));
}

ExitStatus SimulateScenario(const ScenarioFlags& flags, const Reporter& reporter) {
  StopSignals stop = reporter.TakeSignals();
  const absl::StatusOr<std::string> text = ReadScenarioFile(flags.file);
  if (!text.ok()) return reporter.Fail(text.status(), ExitStatus::kLocalFiles);
  if (!flags.svg.empty()) {
    const absl::Status can_write = CheckCanWrite(flags.svg);
    if (!can_write.ok()) return reporter.Fail(can_write, ExitStatus::kLocalFiles);
  }
  const absl::StatusOr<ScenarioRuns> runs = RunScenarios(flags, *text, [&stop] {
    stop.HoldOff();  // there is a run to report from here on
    return stop.requested();
  });
  if (!runs.ok()) return reporter.Fail(runs.status(), ExitStatus::kUsage);
  if (!flags.svg.empty()) {
    std::ofstream picture(flags.svg, std::ios::binary | std::ios::trunc);
    picture << TimelinePicture(runs->done.front().result);
    picture.close();
    if (!picture) {
      return reporter.Fail(absl::InternalError(absl::StrCat(flags.svg, ": cannot be written")),
                           ExitStatus::kLocalFiles);
    }
  }
  reporter.Report(ToJson(*runs, /*ranks=*/flags.sweep.empty()), TextOf(*runs));
  ReportEmptyRuns(runs->done);
  const bool violated = ReportViolations(runs->done);
  if (runs->interrupted()) return ExitStatus::kInterrupted;
  return violated ? ExitStatus::kFailed : ExitStatus::kOk;
}

}  // namespace th
