#include "th/doctor/doctor.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "th/doctor/file_facts.h"
#include "th/doctor/host_checks.h"
#include "th/doctor/host_files.h"
#include "th/doctor/network_checks.h"
#include "th/doctor/peer_checks.h"
#include "th/doctor/rdma_checks.h"
#include "th/doctor/system_facts.h"

namespace th::doctor {
namespace {

// Examines the pair with the address that the route has found.
PeerFacts GatherPeerFacts(const ExamineOptions& options, const RouteFacts& route) {
  PeerTarget target = {.name = route.target};
  if (route.outcome == RouteFacts::Outcome::kConnected) target.address = route.peer_address;
  uint32_t port = 0;
  if (absl::SimpleAtoi(options.to->port, &port)) target.port = static_cast<uint16_t>(port);
  return ProbePeer(target, *options.peer);
}

HostFacts GatherFacts(const ExamineOptions& options) {
  HostFacts facts = ReadFileFacts(HostFiles(""));
  facts.server = options.server;
  facts.verbs = AskVerbsLibrary(kVerbsLibrary);
  AskCudaLibrary(kCudaLibrary, &facts.gpu);
  facts.process.read_memory_error = TryReadingMemory();
  facts.memory.shared_memory = SizeOf("/dev/shm");
  AskClock(&facts.clock);
  if (options.to.has_value()) facts.route = ProbeRoute(*options.to, options.connect_timeout);
  if (options.to.has_value() && options.peer.has_value()) {
    facts.peer = GatherPeerFacts(options, *facts.route);
  }
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
  if (facts.server.has_value()) findings.push_back(CheckServer(*facts.server));
  if (facts.peer.has_value()) {
    for (Finding& finding : CheckPeer(*facts.peer, facts)) findings.push_back(std::move(finding));
  }
  return findings;
}

std::vector<Finding> Examine(const ExamineOptions& options) { return Judge(GatherFacts(options)); }

absl::StatusOr<std::unique_ptr<PeerAnswers>> ListenForPeers(const ListenOptions& options) {
  PeerAnswersOptions answers = {.on_peer = options.on_peer};
  answers.sources = {.version = options.version,
                     .read_facts = [] { return ReadFileFacts(HostFiles("")); },
                     .examine = [] { return Examine({}); }};
  return PeerAnswers::Start(options.at, std::move(answers));
}

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
  for (const Finding& finding : findings) checks.push_back(FindingAsJson(finding));
  return {{"checks", std::move(checks)},
          {"problems", CountOf(findings, Verdict::kProblem)},
          {"notes", CountOf(findings, Verdict::kNote)}};
}

}  // namespace th::doctor
