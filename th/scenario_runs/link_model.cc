#include "th/scenario_runs/link_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "th/bench/transfer_bench.h"

namespace th {
namespace {

// Two latencies between which the simulated time of one reader is taken to be a straight line.
constexpr absl::Duration kLeastMessage = absl::Microseconds(10);
constexpr absl::Duration kOtherMessage = absl::Milliseconds(1);
constexpr absl::Duration kMostMessage = absl::Milliseconds(20);
constexpr uint64_t kLeastHopBytes = uint64_t{64} << 10;
constexpr uint64_t kMostHopBytes = uint64_t{4} << 20;

absl::Duration FitMessage(const FanoutTimes& measured, LinkModel model,
                          const SimulateFanout& simulate) {
  const auto one = measured.seconds.find(1);
  if (one == measured.seconds.end()) return model.message;
  model.message = kLeastMessage;
  const double least = simulate(1, model);
  model.message = kOtherMessage;
  const double other = simulate(1, model);
  if (other <= least) return kLeastMessage;
  const double share = (one->second - least) / (other - least);
  return std::clamp(kLeastMessage + share * (kOtherMessage - kLeastMessage), kLeastMessage,
                    kMostMessage);
}

uint64_t FitHop(const FanoutTimes& measured, uint64_t segment_bytes, LinkModel model,
                const SimulateFanout& simulate) {
  const auto few = measured.seconds.begin();
  const auto many = std::prev(measured.seconds.end());
  if (few == many) return segment_bytes;
  const double hops = many->first - few->first;
  model.hop_bytes = segment_bytes;
  const double simulated = (simulate(many->first, model) - simulate(few->first, model)) / hops;
  const double real = (many->second - few->second) / hops;
  const double more = (real - simulated) * measured.rate * model.goodput;
  const double hop = static_cast<double>(segment_bytes) + more;
  return static_cast<uint64_t>(
      std::clamp(hop, static_cast<double>(kLeastHopBytes), static_cast<double>(kMostHopBytes)));
}

}  // namespace

Scenario OnRealLinks(Scenario scenario, const LinkModel& model) {
  FabricSpec& fabric = scenario.fabric;
  for (auto& [host, rates] : fabric.hosts) {
    rates.up *= model.goodput;
    rates.down *= model.goodput;
  }
  for (auto& [sites, link] : fabric.site_links) {
    link.rate *= model.goodput;
    link.latency += model.message;
  }
  fabric.same_site_latency = model.message;
  fabric.same_host_latency = std::min(fabric.same_host_latency, model.message);
  if (model.hop_bytes == 0) return scenario;
  const uint64_t hop = std::min(model.hop_bytes, scenario.shard_bytes);
  scenario.segments = static_cast<uint32_t>((scenario.shard_bytes + hop - 1) / hop);
  scenario.segment_bytes = scenario.shard_bytes / scenario.segments;
  scenario.shard_bytes = scenario.segment_bytes * scenario.segments;
  return scenario;
}

double LastReaderSeconds(const ScenarioResult& result, const std::vector<std::string>& without) {
  std::vector<double> seconds;
  for (size_t i = result.versions.size() > 1 ? 1 : 0; i < result.versions.size(); ++i) {
    absl::Duration began = absl::InfiniteDuration(), ended;
    for (const ReadResult& read : result.reads) {
      const bool counts = read.label == result.versions[i].label &&
                          std::find(without.begin(), without.end(), read.group) == without.end();
      if (!counts) continue;
      began = std::min(began, read.began);
      ended = std::max(ended, read.ended);
    }
    if (ended > began) seconds.push_back(absl::ToDoubleSeconds(ended - began));
  }
  return seconds.empty() ? 0 : Median(std::move(seconds));
}

LinkModel FitLinkModel(const FanoutTimes& measured, uint64_t segment_bytes,
                       const SimulateFanout& simulate) {
  LinkModel model;
  model.hop_bytes = segment_bytes;
  if (measured.flow_seconds > 0) {
    model.goodput = std::min(1.0, measured.bytes / measured.flow_seconds / measured.rate);
  }
  model.message = FitMessage(measured, model, simulate);
  model.hop_bytes = FitHop(measured, segment_bytes, model, simulate);
  return model;
}

}  // namespace th
