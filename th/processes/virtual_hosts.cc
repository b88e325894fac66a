#include "th/processes/virtual_hosts.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "th/processes/child_process.h"
#include "th/processes/search_path.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

constexpr absl::Duration kToolTimeout = absl::Seconds(20);
constexpr char kBridge[] = "switch";
constexpr char kInterface[] = "eth0";
constexpr char kLog[] = "virtual-hosts.log";
// The bytes that tbf lets pass at once, and the longest wait of a packet in its queue: enough for
// TCP to keep a link of 10 Gbit/s busy, little enough not to be seen in a transfer.
constexpr char kShape[] = "burst 128k latency 20ms";
constexpr int kPrefixBits = 24;

// The ways out of the two switches, and the other ends of these cables.
constexpr const char* kWaysOut[] = {"out0", "out1"};
constexpr const char* kFarEnds[] = {"far0", "far1"};
constexpr char kSecondBridge[] = "switch1";

std::string PortOf(size_t host) { return absl::StrCat("port", host); }

std::string ShapeLine(absl::string_view verb, absl::string_view device, uint64_t bytes_per_second) {
  return absl::StrCat("qdisc ", verb, " dev ", device, " root tbf rate ", bytes_per_second * 8,
                      "bit ", kShape);
}

absl::Status CheckRate(uint64_t bytes_per_second) {
  if (bytes_per_second >= kSlowestLink && bytes_per_second <= kFastestLink) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a virtual link of ", bytes_per_second,
                   " bytes a second cannot be shaped: give from 1mbit to 10gbit"));
}

absl::Status Lacks(const absl::Status& why) {
  return absl::FailedPreconditionError(absl::StrCat(kNoVirtualHosts, ": ", why.message()));
}

uint64_t SizeOf(const std::string& path) {
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path, error);
  return error ? 0 : size;
}

std::string TextAfter(const std::string& path, uint64_t offset) {
  std::ifstream file(path);
  file.seekg(static_cast<std::streamoff>(offset));
  std::stringstream text;
  text << file.rdbuf();
  return std::string(absl::StripAsciiWhitespace(text.str()));
}

}  // namespace

std::string VirtualHosts::AddressOf(size_t host) { return absl::StrCat("10.77.0.", host + 1); }

absl::StatusOr<std::unique_ptr<VirtualHosts>> VirtualHosts::Create(Options options) {
  if (options.rates.empty() || options.rates.size() > kMaxVirtualHosts) {
    return absl::InvalidArgumentError(
        absl::StrCat("from 1 to ", kMaxVirtualHosts, " virtual hosts, not ", options.rates.size()));
  }
  for (const uint64_t rate : options.rates) TH_RETURN_IF_ERROR(CheckRate(rate));
  if (options.second_site) TH_RETURN_IF_ERROR(CheckRate(options.second_site->rate));
  absl::StatusOr<NetworkNamespace> switch_namespace = NetworkNamespace::Create();
  if (!switch_namespace.ok()) return Lacks(switch_namespace.status());
  std::unique_ptr<VirtualHosts> hosts(
      new VirtualHosts(std::move(options), *std::move(switch_namespace)));
  if (const absl::Status built = hosts->Build(); !built.ok()) {
    return absl::IsInvalidArgument(built) ? built : Lacks(built);
  }
  return hosts;
}

absl::Status VirtualHosts::FindTools() {
  const absl::StatusOr<std::string> ip = FindTool("ip"), tc = FindTool("tc");
  for (const auto& tool : {ip, tc}) {
    if (tool.ok()) continue;
    return absl::NotFoundError(
        absl::StrCat(tool.status().message(), "; install iproute2 (apt-get install iproute2)"));
  }
  ip_ = *ip;
  tc_ = *tc;
  return absl::OkStatus();
}

absl::Status VirtualHosts::Build() {
  TH_RETURN_IF_ERROR(FindTools());
  std::vector<std::string> links = {absl::StrCat("link add ", kBridge, " type bridge"),
                                    absl::StrCat("link set ", kBridge, " up")};
  if (options_.second_site) {
    links.push_back(absl::StrCat("link add ", kSecondBridge, " type bridge"));
    links.push_back(absl::StrCat("link set ", kSecondBridge, " up"));
  }
  std::vector<std::string> downlinks;
  for (size_t i = 0; i < options_.rates.size(); ++i) {
    TH_ASSIGN_OR_RETURN(NetworkNamespace host, NetworkNamespace::Create());
    links.push_back(absl::StrCat("link add ", PortOf(i), " type veth peer name ", kInterface,
                                 " netns ", host.path()));
    const bool second = options_.second_site && i >= options_.second_site->first_host;
    links.push_back(
        absl::StrCat("link set ", PortOf(i), " master ", second ? kSecondBridge : kBridge, " up"));
    downlinks.push_back(ShapeLine("add", PortOf(i), options_.rates[i]));
    hosts_.push_back(std::move(host));
  }
  TH_RETURN_IF_ERROR(Run(ip_, switch_, links));
  TH_RETURN_IF_ERROR(Run(tc_, switch_, downlinks));
  for (size_t i = 0; i < hosts_.size(); ++i) {
    TH_RETURN_IF_ERROR(
        Run(ip_, hosts_[i],
            {"link set lo up",
             absl::StrCat("addr add ", AddressOf(i), "/", kPrefixBits, " dev ", kInterface),
             absl::StrCat("link set ", kInterface, " up")}));
    TH_RETURN_IF_ERROR(Run(tc_, hosts_[i], {ShapeLine("add", kInterface, options_.rates[i])}));
  }
  return options_.second_site ? JoinSites(*options_.second_site) : absl::OkStatus();
}

// A cable out of each switch, shaped towards its far end, where the delayed link takes over.
absl::Status VirtualHosts::JoinSites(const SecondSite& site) {
  std::vector<std::string> links, shapes;
  for (size_t i = 0; i < 2; ++i) {
    links.push_back(absl::StrCat("link add ", kWaysOut[i], " type veth peer name ", kFarEnds[i]));
    links.push_back(absl::StrCat("link set ", kWaysOut[i], " master ",
                                 i == 0 ? kBridge : kSecondBridge, " up"));
    links.push_back(absl::StrCat("link set ", kFarEnds[i], " up"));
    shapes.push_back(ShapeLine("add", kWaysOut[i], site.rate));
  }
  TH_RETURN_IF_ERROR(Run(ip_, switch_, links));
  TH_RETURN_IF_ERROR(Run(tc_, switch_, shapes));
  TH_ASSIGN_OR_RETURN(between_sites_, DelayedLink::Start({.network_namespace = switch_.fd(),
                                                          .first = kFarEnds[0],
                                                          .second = kFarEnds[1],
                                                          .latency = site.latency}));
  return absl::OkStatus();
}

absl::Status VirtualHosts::SetRate(size_t host, uint64_t bytes_per_second) {
  TH_RETURN_IF_ERROR(CheckRate(bytes_per_second));
  TH_RETURN_IF_ERROR(Run(tc_, switch_, {ShapeLine("change", PortOf(host), bytes_per_second)}));
  return Run(tc_, hosts_[host], {ShapeLine("change", kInterface, bytes_per_second)});
}

absl::Status VirtualHosts::Cut(size_t host) {
  return Run(ip_, switch_, {absl::StrCat("link set ", PortOf(host), " down")});
}

absl::Status VirtualHosts::Restore(size_t host) {
  return Run(ip_, switch_, {absl::StrCat("link set ", PortOf(host), " up")});
}

absl::Status VirtualHosts::DropPacketsOver(size_t host, uint32_t bytes) {
  // Several segments that the kernel hands on as one pass any MTU.
  for (const NetworkNamespace& each : hosts_) {
    TH_RETURN_IF_ERROR(Run(ip_, each, {absl::StrCat("link set ", kInterface, " gso_max_segs 1")}));
  }
  return Run(ip_, switch_, {absl::StrCat("link set ", PortOf(host), " mtu ", bytes)});
}

absl::Status VirtualHosts::Run(const std::string& tool, const NetworkNamespace& where,
                               const std::vector<std::string>& lines) const {
  const std::string log = absl::StrCat(options_.folder, "/", kLog);
  const uint64_t before = SizeOf(log);
  TH_ASSIGN_OR_RETURN(const auto process, ChildProcess::Start({.name = tool,
                                                               .arguments = {tool, "-batch", "-"},
                                                               .log_path = log,
                                                               .network_namespace = where.fd()}));
  for (const std::string& line : lines) {
    // One that ends early says why in its log.
    if (!process->WriteLine(line).ok()) break;
  }
  process->CloseInput();
  TH_RETURN_IF_ERROR(process->AwaitEnd(kToolTimeout));
  if (process->exit_status() == 0) return absl::OkStatus();
  const std::string said = TextAfter(log, before);
  return absl::InternalError(absl::StrCat(tool, " ", process->Condition(), ": ",
                                          said.empty() ? "it does not say why" : said));
}

}  // namespace th
