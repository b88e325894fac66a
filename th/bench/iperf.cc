#include "th/bench/iperf.h"

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "th/processes/child_process.h"
#include "th/processes/search_path.h"
#include "th/processes/tool_process.h"
#include "th/status/status_macros.h"

namespace th {
namespace {

constexpr absl::Duration kListenTimeout = absl::Seconds(5);
constexpr absl::Duration kRunTimeout = absl::Minutes(2);

}  // namespace

absl::StatusOr<double> GigabytesPerSecondOfIperf(absl::string_view text) {
  const nlohmann::json report = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (report.is_object() && report.contains("error")) {
    return absl::InvalidArgumentError(absl::StrCat("iperf3: ", report["error"].dump()));
  }
  const nlohmann::json::json_pointer place("/end/sum_received/bits_per_second");
  if (!report.is_object() || !report.contains(place) || !report[place].is_number()) {
    return absl::InvalidArgumentError("iperf3 did not say how fast it was");
  }
  return report[place].get<double>() / 8e9;
}

absl::StatusOr<double> MeasureIperf(uint64_t bytes, uint32_t connections,
                                    const std::function<bool()>& stopped) {
  TH_ASSIGN_OR_RETURN(const std::string program, FindTool("iperf3"));
  TH_ASSIGN_OR_RETURN(const uint16_t port, UnusedPort("iperf3"));
  TH_ASSIGN_OR_RETURN(const auto server,
                      ChildProcess::Start({.name = "iperf3 server",
                                           .arguments = {program, "-s", "-1", "--forceflush", "-p",
                                                         absl::StrCat(port)},
                                           .log_path = "/dev/null"}));
  TH_RETURN_IF_ERROR(AwaitListening(*server, port, kListenTimeout, stopped));
  TH_ASSIGN_OR_RETURN(
      const auto client,
      ChildProcess::Start({.name = "iperf3",
                           .arguments = {program, "-c", "127.0.0.1", "-p", absl::StrCat(port), "-P",
                                         absl::StrCat(connections), "-n", absl::StrCat(bytes), "-C",
                                         "cubic", "--json"},
                           .log_path = "/dev/null"}));
  TH_ASSIGN_OR_RETURN(const std::vector<std::string> lines,
                      ReadToEnd(*client, kRunTimeout, stopped));
  return GigabytesPerSecondOfIperf(absl::StrJoin(lines, "\n"));
}

}  // namespace th
