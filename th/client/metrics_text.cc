#include "th/client/metrics_text.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "th/monitoring/cost_samples.h"
#include "th/monitoring/prometheus_text.h"

namespace th {
namespace {

using Memberships = std::vector<MembershipFigures>;
using Transports = std::map<std::string, Transport::Counters>;

PrometheusLabels LabelsOf(const MembershipFigures& membership) {
  return PrometheusLabels()
      .With("run", membership.key.run)
      .With("model", membership.key.model)
      .With("group", membership.name.group)
      .With("rank", absl::StrCat(membership.name.rank.value));
}

// A metric with one sample a membership, of whatever `value(membership)` is.
template <typename Value>
void WriteEach(PrometheusText& out, const Memberships& memberships, const char* name,
               const char* type, const char* help, Value value) {
  out.Family(name, type, help);
  for (const MembershipFigures& one : memberships) out.Sample(name, LabelsOf(one), value(one));
}

void WriteEnded(PrometheusText& out, const Memberships& memberships) {
  constexpr char kName[] = "tensorhub_worker_calls_total";
  out.Family(kName, "counter", "Calls that have ended, by verb and outcome.");
  for (const MembershipFigures& one : memberships) {
    for (const auto& [how, count] : one.ended) {
      const auto& [verb, outcome] = how;
      out.Sample(kName, LabelsOf(one).With("verb", VerbName(verb)).With("outcome", outcome), count);
    }
  }
}

void WriteStall(PrometheusText& out, const Memberships& memberships) {
  constexpr char kName[] = "tensorhub_worker_stall_seconds_total";
  out.Family(kName, "counter", "Seconds waited inside update, receive and unpublish, by phase.");
  for (const MembershipFigures& one : memberships) {
    AddStallSamples(out, kName, LabelsOf(one), one.stall);
  }
  constexpr char kUpdate[] = "tensorhub_worker_update_seconds";
  out.Family(kUpdate, "histogram", "Updates and receives that moved, from the call to its end.");
  for (const MembershipFigures& one : memberships) {
    out.HistogramSamples(kUpdate, LabelsOf(one), one.update_seconds);
  }
}

void WriteReceived(PrometheusText& out, const Memberships& memberships) {
  constexpr char kName[] = "tensorhub_worker_received_bytes_total";
  out.Family(kName, "counter", "Bytes received, by transport, distance and kind of source.");
  for (const MembershipFigures& one : memberships) {
    AddReceivedSamples(out, kName, LabelsOf(one), one.received.received);
  }
  WriteEach(out, memberships, "tensorhub_worker_unchanged_bytes_total", "counter",
            "Bytes that an update skipped, because the buffer held them already.",
            [](const MembershipFigures& one) { return one.received.unchanged_bytes; });
  WriteEach(out, memberships, "tensorhub_worker_reread_bytes_total", "counter",
            "Bytes received and thrown away, so received again.",
            [](const MembershipFigures& one) { return one.received.reread_bytes; });
  WriteEach(out, memberships, "tensorhub_worker_rerouted_bytes_total", "counter",
            "Bytes received after a fill's first re-route.",
            [](const MembershipFigures& one) { return one.received.rerouted_bytes; });
  WriteEach(out, memberships, "tensorhub_worker_reroutes_total", "counter",
            "Sources that were lost or replaced during a fill.",
            [](const MembershipFigures& one) { return one.received.reroutes; });
  WriteEach(out, memberships, "tensorhub_worker_corrupt_segments_total", "counter",
            "Segments received with a wrong checksum, and received again.",
            [](const MembershipFigures& one) { return one.corrupt_segments; });
}

void WritePassedOver(PrometheusText& out, const Memberships& memberships) {
  constexpr char kName[] = "tensorhub_worker_transports_passed_over_total";
  out.Family(kName, "counter",
             "Sources that offer this transport and were read over another one, by reason.");
  for (const MembershipFigures& one : memberships) {
    AddPassedOverSamples(out, kName, LabelsOf(one), one.received.passed_over);
  }
}

void WriteServed(PrometheusText& out, const Memberships& memberships) {
  WriteEach(out, memberships, "tensorhub_worker_readers", "gauge", "Readers served now.",
            [](const MembershipFigures& one) { return one.served.now; });
  WriteEach(out, memberships, "tensorhub_worker_readers_admitted_total", "counter",
            "Readers admitted.", [](const MembershipFigures& one) { return one.served.admitted; });
  WriteEach(out, memberships, "tensorhub_worker_readers_refused_total", "counter",
            "Readers refused.", [](const MembershipFigures& one) { return one.served.refused; });
  WriteEach(out, memberships, "tensorhub_worker_sent_bytes_total", "counter",
            "Bytes sent to readers.",
            [](const MembershipFigures& one) { return one.served.bytes_sent; });
}

void WriteTransport(PrometheusText& out, const Transports& transports, const char* name,
                    const char* help, uint64_t Transport::Counters::*field) {
  out.Family(name, "counter", help);
  for (const auto& [transport, counters] : transports) {
    out.Sample(name, PrometheusLabels().With("transport", transport), counters.*field);
  }
}

}  // namespace

std::string RenderMetrics(const Memberships& memberships, const Transports& transports,
                          const ProcessFigures& process) {
  using Counters = Transport::Counters;
  PrometheusText out;
  WriteEach(out, memberships, "tensorhub_worker_connected", "gauge",
            "1 while the server knows of this rank.",
            [](const MembershipFigures& one) { return one.connected ? 1 : 0; });
  WriteEnded(out, memberships);
  WriteStall(out, memberships);
  WriteReceived(out, memberships);
  WritePassedOver(out, memberships);
  WriteServed(out, memberships);
  WriteTransport(out, transports, "tensorhub_transport_sent_bytes_total",
                 "Bytes that this process sent over a transport.", &Counters::bytes_sent);
  WriteTransport(out, transports, "tensorhub_transport_received_bytes_total",
                 "Bytes that this process received over a transport.", &Counters::bytes_received);
  WriteTransport(out, transports, "tensorhub_transport_transfers_served_total",
                 "Transfers that this process admitted.", &Counters::transfers_served);
  WriteTransport(out, transports, "tensorhub_transport_transfers_refused_total",
                 "Transfers that this process refused.", &Counters::transfers_refused);
  WriteProcessFigures(out, process);
  return out.Take();
}

}  // namespace th
