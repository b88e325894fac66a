#include "th/server/metrics_text.h"

#include <cstddef>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "th/monitoring/cost_samples.h"
#include "th/monitoring/descriptors.h"
#include "th/monitoring/prometheus_text.h"
#include "th/protocol/messages.h"

namespace th {
namespace {

PrometheusLabels LabelsOf(const ModelKey& key) {
  return PrometheusLabels().With("run", key.run).With("model", key.model);
}

struct CounterRow {
  const char* name;
  uint64_t RegistryCounters::*field;
  const char* help;
};

constexpr CounterRow kCounters[] = {
    {"tensorhub_joins_total", &RegistryCounters::joins, "Workers admitted."},
    {"tensorhub_joins_refused_total", &RegistryCounters::joins_refused, "Joins refused."},
    {"tensorhub_leases_expired_total", &RegistryCounters::leases_expired,
     "Workers dropped for silence."},
    {"tensorhub_workers_replaced_total", &RegistryCounters::workers_replaced,
     "Ranks taken over by a new worker."},
    {"tensorhub_notices_total", &RegistryCounters::notices, "Notices of a leave."},
    {"tensorhub_retained_lost_total", &RegistryCounters::retained_lost,
     "Pinned or retained versions, in a form, that lost their last holder."},
    {"tensorhub_versions_published_total", &RegistryCounters::versions_published,
     "Versions that all ranks of a group have published."},
    {"tensorhub_versions_sealed_total", &RegistryCounters::versions_sealed,
     "Versions whose checksums are known."},
    {"tensorhub_versions_withdrawn_total", &RegistryCounters::versions_withdrawn,
     "Versions withdrawn by a roll-back."},
    {"tensorhub_updates_moved_total", &RegistryCounters::updates_moved,
     "Group updates that moved."},
    {"tensorhub_updates_not_available_total", &RegistryCounters::updates_not_available,
     "Group updates that found nothing newer."},
    {"tensorhub_operations_failed_total", &RegistryCounters::operations_failed,
     "Group operations that ended badly."},
    {"tensorhub_assignments_total", &RegistryCounters::assignments,
     "Assignments of sources to readers."},
    {"tensorhub_sources_failed_total", &RegistryCounters::sources_failed,
     "Sources that a reader gave up."},
    {"tensorhub_sources_suspected_total", &RegistryCounters::sources_suspected,
     "Sources that sent wrong bytes and were kept."},
    {"tensorhub_sources_left_total", &RegistryCounters::sources_left,
     "Sources that a reader was moved away from for being slow."},
    {"tensorhub_messages_refused_total", &RegistryCounters::messages_refused,
     "Messages that broke a rule."},
};

void WriteShell(PrometheusText& out, const ServerMetrics& metrics) {
  out.Single("tensorhub_streams", "gauge", "Workers' streams open now.", metrics.streams.load());
  out.Single("tensorhub_waits", "gauge", "Controllers that wait for a version now.",
             metrics.waits.load());
  out.Single("tensorhub_connections_refused_total", "counter",
             "Connections refused because the limit of open files is reached.",
             metrics.connections_refused.load());
  out.Single("tensorhub_frames_received_total", "counter", "Messages from workers.",
             metrics.frames_received.load());
  out.Single("tensorhub_frames_sent_total", "counter", "Messages to workers.",
             metrics.frames_sent.load());
  out.Single("tensorhub_frames_ignored_total", "counter", "Messages of a kind that is not known.",
             metrics.frames_ignored.load());
  out.Single("tensorhub_frames_refused_total", "counter", "Malformed messages.",
             metrics.frames_refused.load());
  out.Single("tensorhub_streams_overflowed_total", "counter",
             "Streams closed because their worker did not read.",
             metrics.streams_overflowed.load());
  out.Single("tensorhub_calls_total", "counter", "Calls of controllers.", metrics.calls.load());
  out.Single("tensorhub_pauses_total", "counter", "Times that this server was stopped or hung.",
             metrics.pauses.load());
  out.Single("tensorhub_calls_refused_total", "counter", "Calls refused, too many at once.",
             metrics.calls_refused.load());
  out.Single("tensorhub_durable_writes_total", "counter", "Writes of the state file.",
             metrics.durable_writes.load());
  out.Single("tensorhub_event_log_lost_total", "counter",
             "Events that could not be written to the file of --event-log.",
             metrics.events_lost.load());
  out.Family("tensorhub_turn_seconds", "histogram", "From a message's arrival to its answers.");
  out.HistogramSamples("tensorhub_turn_seconds", {}, metrics.turn_seconds);
  out.Family("tensorhub_durable_write_seconds", "histogram",
             "Writing the state file, fsync included.");
  out.HistogramSamples("tensorhub_durable_write_seconds", {}, metrics.durable_write_seconds);
}

void WriteModels(PrometheusText& out, const std::vector<ModelFigures>& figures) {
  out.Family("tensorhub_versions", "gauge", "Versions known, withdrawn ones left out.");
  for (const ModelFigures& model : figures) {
    out.Sample("tensorhub_versions", LabelsOf(model.key), model.versions);
  }
  out.Family("tensorhub_retained_versions_lost", "gauge",
             "Pinned or retained versions, in a form, that nobody holds or receives now.");
  for (const ModelFigures& model : figures) {
    out.Sample("tensorhub_retained_versions_lost", LabelsOf(model.key), model.retained_lost);
  }
  out.Family("tensorhub_latest_version_lost", "gauge",
             "Forms of the latest version that nobody holds or receives now.");
  for (const ModelFigures& model : figures) {
    out.Sample("tensorhub_latest_version_lost", LabelsOf(model.key), model.latest_lost);
  }
  out.Family("tensorhub_replicas", "gauge", "Groups by what they do with a version.");
  for (const ModelFigures& model : figures) {
    for (const auto& [state, count] : model.replicas) {
      out.Sample("tensorhub_replicas", LabelsOf(model.key).With("state", state), count);
    }
  }
}

void WriteHistograms(PrometheusText& out, const std::vector<ModelFigures>& figures) {
  out.Family("tensorhub_update_seconds", "histogram",
             "Group updates that moved, from the first rank's call to the last rank's end; without "
             "copies that a group makes of its own.");
  for (const ModelFigures& model : figures) {
    out.HistogramSamples("tensorhub_update_seconds", LabelsOf(model.key), model.update_seconds);
  }
  out.Family("tensorhub_rank_stall_seconds", "histogram",
             "Seconds that one rank waited inside one update or unpublish, failed ones too: one "
             "sample for "
             "each.");
  for (const ModelFigures& model : figures) {
    out.HistogramSamples("tensorhub_rank_stall_seconds", LabelsOf(model.key), model.stall_seconds);
  }
}

PrometheusLabels LabelsOf(const ModelFigures& model, const GroupFigures& group) {
  return LabelsOf(model.key).With("group", group.group);
}

void WriteGroups(PrometheusText& out, const std::vector<ModelFigures>& figures, absl::Time now) {
  out.Family("tensorhub_group_versions_behind", "gauge",
             "Published versions newer than the last one that the group completed.");
  for (const ModelFigures& model : figures) {
    for (const GroupFigures& group : model.groups) {
      out.Sample("tensorhub_group_versions_behind", LabelsOf(model, group), group.versions_behind);
    }
  }
  out.Family("tensorhub_group_since_publish_seconds", "gauge",
             "Since the group's last publish; of groups that have published since the server's "
             "start.");
  for (const ModelFigures& model : figures) {
    for (const GroupFigures& group : model.groups) {
      if (!group.published_at.has_value()) continue;
      out.Sample("tensorhub_group_since_publish_seconds", LabelsOf(model, group),
                 absl::ToDoubleSeconds(now - *group.published_at));
    }
  }
  out.Family("tensorhub_versions_behind_max", "gauge",
             "Published versions that the group which is furthest behind lacks.");
  for (const ModelFigures& model : figures) {
    out.Sample("tensorhub_versions_behind_max", LabelsOf(model.key), model.most_versions_behind);
  }
  out.Family("tensorhub_groups_left_out", "gauge",
             "Groups without samples of their own, because a model or all have too many.");
  for (const ModelFigures& model : figures) {
    out.Sample("tensorhub_groups_left_out", LabelsOf(model.key), model.groups_left_out);
  }
}

struct TotalRow {
  const char* name;
  uint64_t ModelTotals::*field;
  const char* help;
};

constexpr TotalRow kTotals[] = {
    {"tensorhub_model_publishes_total", &ModelTotals::publishes, "Versions published."},
    {"tensorhub_model_moves_total", &ModelTotals::moves, "Group updates that moved."},
    {"tensorhub_model_not_available_total", &ModelTotals::not_available,
     "Group updates that found nothing newer."},
    {"tensorhub_drains_total", &ModelTotals::drains, "Buffers that an unpublish has drained."},
    {"tensorhub_readers_cut_total", &ModelTotals::readers_cut,
     "Readers that had not finished by a drain's deadline."},
    {"tensorhub_model_sources_failed_total", &ModelTotals::sources_failed,
     "Sources that a reader gave up."},
    {"tensorhub_model_sources_suspected_total", &ModelTotals::sources_suspected,
     "Sources that sent wrong bytes and were kept."},
    {"tensorhub_model_offloads_total", &ModelTotals::offloads, "Offloads begun."},
    {"tensorhub_model_offloads_failed_total", &ModelTotals::offloads_failed,
     "Offloads without room, or that ended badly."},
    {"tensorhub_model_leases_expired_total", &ModelTotals::leases_expired,
     "Workers dropped for silence."},
    {"tensorhub_claims_refused_total", &ModelTotals::claims_refused,
     "Costs that a rank claimed and that cannot be; left out of the sums."},
};

// One sample a model, of whatever `value(totals)` is.
template <typename Value>
void WriteTotal(PrometheusText& out, const std::vector<ModelFigures>& figures, const char* name,
                const char* help, Value value) {
  out.Family(name, "counter", help);
  for (const ModelFigures& model : figures) {
    out.Sample(name, LabelsOf(model.key), value(model.totals));
  }
}

void WriteStall(PrometheusText& out, const std::vector<ModelFigures>& figures) {
  constexpr char kName[] = "tensorhub_stall_seconds_total";
  out.Family(kName, "counter", "Seconds that ranks waited inside update and unpublish, by phase.");
  for (const ModelFigures& model : figures) {
    AddStallSamples(out, kName, LabelsOf(model.key), model.totals.stall);
  }
}

void WriteReceived(PrometheusText& out, const std::vector<ModelFigures>& figures) {
  constexpr char kName[] = "tensorhub_received_bytes_total";
  out.Family(kName, "counter",
             "Bytes that updates received, by transport, distance and kind of source.");
  for (const ModelFigures& model : figures) {
    AddReceivedSamples(out, kName, LabelsOf(model.key), model.totals.fill.received);
  }
}

void WritePassedOver(PrometheusText& out, const std::vector<ModelFigures>& figures) {
  constexpr char kName[] = "tensorhub_transports_passed_over_total";
  out.Family(kName, "counter",
             "Sources that offer this transport and were read over another one, by reason.");
  for (const ModelFigures& model : figures) {
    AddPassedOverSamples(out, kName, LabelsOf(model.key), model.totals.fill.passed_over);
  }
}

void WriteCopies(PrometheusText& out, const std::vector<ModelFigures>& figures) {
  constexpr char kName[] = "tensorhub_copies_sent_total";
  out.Family(
      kName, "counter",
      "Copies of a version that groups which moved received, by who sent them; without the copies "
      "that a group makes of its own to keep what is retained.");
  for (const ModelFigures& model : figures) {
    const PrometheusLabels labels = LabelsOf(model.key);
    out.Sample(kName, labels.With("source", "publisher"), model.totals.copies_published);
    out.Sample(kName, labels.With("source", "relay"), model.totals.copies_relayed);
  }
}

void WriteFailures(PrometheusText& out, const std::vector<ModelFigures>& figures) {
  constexpr char kName[] = "tensorhub_failures_total";
  out.Family(kName, "counter", "Group operations that ended badly, by kind and cause.");
  for (const ModelFigures& model : figures) {
    for (const FailureCount& failure : model.totals.failures) {
      const auto code = static_cast<absl::StatusCode>(failure.code);
      out.Sample(kName,
                 LabelsOf(model.key)
                     .With("operation", OperationKindName(static_cast<OperationKind>(failure.kind)))
                     .With("cause", absl::StatusCodeToString(code)),
                 failure.count);
    }
  }
}

void WriteTotals(PrometheusText& out, const std::vector<ModelFigures>& figures) {
  WriteStall(out, figures);
  WriteReceived(out, figures);
  WritePassedOver(out, figures);
  WriteCopies(out, figures);
  WriteFailures(out, figures);
  WriteTotal(out, figures, "tensorhub_reread_bytes_total",
             "Bytes received and thrown away, so received again.",
             [](const ModelTotals& totals) { return totals.fill.reread_bytes; });
  WriteTotal(out, figures, "tensorhub_unchanged_bytes_total",
             "Bytes that updates skipped, because the buffers held them already.",
             [](const ModelTotals& totals) { return totals.fill.unchanged_bytes; });
  WriteTotal(out, figures, "tensorhub_rerouted_bytes_total",
             "Bytes received after a fill's first re-route.",
             [](const ModelTotals& totals) { return totals.fill.rerouted_bytes; });
  WriteTotal(out, figures, "tensorhub_reroutes_total",
             "Sources that were lost or replaced during a fill.",
             [](const ModelTotals& totals) { return totals.fill.reroutes; });
  for (const TotalRow& row : kTotals) {
    WriteTotal(out, figures, row.name, row.help,
               [&](const ModelTotals& totals) { return totals.*row.field; });
  }
}

}  // namespace

std::string RenderMetrics(const StatusSnapshot& snapshot, const ServerMetrics& metrics) {
  PrometheusText out;
  WriteBuildInfo(out, snapshot.version);
  out.Single("tensorhub_epoch", "gauge", "The number of the server's epoch.", snapshot.epoch.value);
  out.Single("tensorhub_uptime_seconds", "gauge", "Since the start.",
             absl::ToDoubleSeconds(snapshot.uptime));
  out.Single("tensorhub_workers", "gauge", "Workers with a lease.", snapshot.workers);
  out.Single("tensorhub_connections_max", "gauge",
             "The most connections of workers and controllers, by the limit of open files.",
             ConnectionLimit(snapshot.process.max_descriptors));
  WriteProcessFigures(out, snapshot.process);
  out.Single("tensorhub_models", "gauge", "Models known.", snapshot.figures.size());
  WriteModels(out, snapshot.figures);
  WriteTotals(out, snapshot.figures);
  WriteHistograms(out, snapshot.figures);
  WriteGroups(out, snapshot.figures, snapshot.now);
  for (const CounterRow& row : kCounters) {
    out.Single(row.name, "counter", row.help, snapshot.counters.*row.field);
  }
  WriteShell(out, metrics);
  return out.Take();
}

}  // namespace th
