#include "th/doctor/doctor.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "th/doctor/file_facts.h"
#include "th/doctor/host_checks.h"
#include "th/doctor/host_files.h"
#include "th/doctor/network_checks.h"
#include "th/doctor/rdma_checks.h"
#include "th/doctor/system_facts.h"

namespace th::doctor {
namespace {

HostFacts GatherFacts(const ExamineOptions& options) {
  HostFacts facts = ReadFileFacts(HostFiles(""));
  facts.verbs = AskVerbsLibrary(kVerbsLibrary);
  AskCudaLibrary(kCudaLibrary, &facts.gpu);
  facts.process.read_memory_error = TryReadingMemory();
  facts.memory.shared_memory = SizeOf("/dev/shm");
  AskClock(&facts.clock);
  if (options.to.has_value()) facts.route = ProbeRoute(*options.to, options.connect_timeout);
  return facts;
}

// "1 note", "3 notes".
std::string Counted(size_t count, absl::string_view what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

}  // namespace

std::vector<Finding> Judge(const HostFacts& facts) {
  std::vector<Finding> findings = CheckRdma(facts);
  findings.push_back(CheckGpus(facts.gpu));
  findings.push_back(CheckMemoryOfOthers(facts.process));
  findings.push_back(CheckSharedMemory(facts.memory));
  findings.push_back(CheckHugePages(facts.memory));
  findings.push_back(CheckOpenFiles(facts.process));
  findings.push_back(CheckCongestionControl(facts.tcp));
  findings.push_back(CheckSocketBuffers(facts.tcp));
  findings.push_back(CheckClockSource(facts.clock));
  findings.push_back(CheckClockSynchronisation(facts.clock));
  if (facts.route.has_value()) {
    for (Finding& finding : CheckRoute(*facts.route, facts)) {
      findings.push_back(std::move(finding));
    }
  }
  return findings;
}

std::vector<Finding> Examine(const ExamineOptions& options) { return Judge(GatherFacts(options)); }

size_t CountOf(const std::vector<Finding>& findings, Verdict verdict) {
  return static_cast<size_t>(absl::c_count_if(
      findings, [verdict](const Finding& each) { return each.verdict == verdict; }));
}

std::string FindingsAsText(const std::vector<Finding>& findings) {
  size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.check.size());
  std::string text;
  const std::string margin(sizeof("problem ") + width + 1, ' ');
  for (const Finding& finding : findings) {
    absl::StrAppendFormat(&text, "%-8s %-*s %s\n", VerdictName(finding.verdict),
                          static_cast<int>(width), finding.check, finding.found);
    absl::StrAppend(&text, margin, finding.means, "\n");
    if (!finding.advice.empty()) absl::StrAppend(&text, margin, "To do: ", finding.advice, "\n");
  }
  absl::StrAppend(&text, CountOf(findings, Verdict::kOk), " ok, ",
                  Counted(CountOf(findings, Verdict::kNote), "note"), ", ",
                  Counted(CountOf(findings, Verdict::kProblem), "problem"), "\n");
  return text;
}

nlohmann::json FindingsAsJson(const std::vector<Finding>& findings) {
  nlohmann::json checks = nlohmann::json::array();
  for (const Finding& finding : findings) {
    nlohmann::json check = {{"check", finding.check},
                            {"verdict", std::string(VerdictName(finding.verdict))},
                            {"found", finding.found},
                            {"means", finding.means}};
    if (!finding.advice.empty()) check["advice"] = finding.advice;
    checks.push_back(std::move(check));
  }
  return {{"checks", std::move(checks)},
          {"problems", CountOf(findings, Verdict::kProblem)},
          {"notes", CountOf(findings, Verdict::kNote)}};
}

}  // namespace th::doctor
