#include "th/server/status_page.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace th {
namespace {

// ---------------------------------------------------------------------------------------------
// Prometheus

std::string LabelValue(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}});
}

std::string LabelsOf(const ModelKey& key) {
  return absl::StrCat("run=\"", LabelValue(key.run), "\",model=\"", LabelValue(key.model), "\"");
}

class MetricsWriter {
 public:
  void Family(absl::string_view name, absl::string_view type, absl::string_view help) {
    absl::StrAppend(&text_, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
  }
  template <typename Number>
  void Sample(absl::string_view name, absl::string_view labels, Number value) {
    absl::StrAppend(&text_, name);
    if (!labels.empty()) absl::StrAppend(&text_, "{", labels, "}");
    absl::StrAppend(&text_, " ", value, "\n");
  }
  template <typename Number>
  void Single(absl::string_view name, absl::string_view type, absl::string_view help,
              Number value) {
    Family(name, type, help);
    Sample(name, "", value);
  }
  void Histogram(absl::string_view name, absl::string_view help,
                 const DurationHistogram& histogram) {
    Family(name, "histogram", help);
    const std::string bucket_name = absl::StrCat(name, "_bucket");
    uint64_t count = 0;
    for (size_t i = 0; i < DurationHistogram::kBounds.size(); ++i) {
      count += histogram.Count(i);
      Sample(bucket_name, absl::StrCat("le=\"", DurationHistogram::kBounds[i], "\""), count);
    }
    count += histogram.Count(DurationHistogram::kBounds.size());
    Sample(bucket_name, "le=\"+Inf\"", count);
    Sample(absl::StrCat(name, "_sum"), "", histogram.SumSeconds());
    Sample(absl::StrCat(name, "_count"), "", count);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

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
    {"tensorhub_versions_published_total", &RegistryCounters::versions_published,
     "Versions that all ranks of a group have published."},
    {"tensorhub_versions_sealed_total", &RegistryCounters::versions_sealed,
     "Versions whose sums are known."},
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

void WriteShell(MetricsWriter& out, const ServerMetrics& metrics) {
  out.Single("tensorhub_streams", "gauge", "Workers' streams open now.", metrics.streams.load());
  out.Single("tensorhub_waits", "gauge", "Controllers that wait for a version now.",
             metrics.waits.load());
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
  out.Histogram("tensorhub_turn_seconds", "From a message's arrival to its answers.",
                metrics.turn_seconds);
  out.Histogram("tensorhub_durable_write_seconds", "Writing the state file, fsync included.",
                metrics.durable_write_seconds);
}

void WriteModels(MetricsWriter& out, const Catalog& catalog) {
  out.Family("tensorhub_versions", "gauge", "Versions known, withdrawn ones left out.");
  for (const CatalogModel& model : catalog.models) {
    const auto count = std::count_if(model.versions.begin(), model.versions.end(),
                                     [](const CatalogVersion& v) { return !v.withdrawn; });
    out.Sample("tensorhub_versions", LabelsOf(model.key), count);
  }
  out.Family("tensorhub_replicas", "gauge", "Groups by what they do with a version.");
  for (const CatalogModel& model : catalog.models) {
    std::map<std::string, uint64_t> by_state = {{"idle", model.idle.size()}};
    for (const CatalogVersion& version : model.versions) {
      for (const CatalogReplica& replica : version.replicas) ++by_state[replica.state];
    }
    for (const auto& [state, count] : by_state) {
      out.Sample("tensorhub_replicas",
                 absl::StrCat(LabelsOf(model.key), ",state=\"", LabelValue(state), "\""), count);
    }
  }
}

// ---------------------------------------------------------------------------------------------
// HTML

std::string Html(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string ReplicasText(const CatalogVersion& version) {
  std::string text;
  for (const CatalogReplica& replica : version.replicas) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", replica.group, " (", replica.state, ")");
  }
  return text.empty() ? "nobody" : text;
}

std::string VersionRow(const ModelKey& key, const CatalogVersion& version) {
  const char* state = version.withdrawn   ? "withdrawn"
                      : version.sealed    ? "sealed"
                      : version.published ? "published"
                                          : "publishing";
  return absl::StrCat("<tr><td>", Html(key.run), "<td>", Html(key.model), "<td>",
                      Html(version.info.ToString()), "<td>", state, "<td>", version.bytes, "<td>",
                      Html(ReplicasText(version)), "\n");
}

constexpr absl::string_view kHead =
    "<!doctype html><html lang=en><meta charset=utf-8><title>TensorHub</title>"
    "<style>body{font-family:sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:left}"
    "</style><h1>TensorHub reference server</h1>\n";

}  // namespace

std::string RenderMetrics(const StatusSnapshot& snapshot, const ServerMetrics& metrics) {
  MetricsWriter out;
  out.Family("tensorhub_build_info", "gauge", "Always 1; the label names the software.");
  out.Sample("tensorhub_build_info", absl::StrCat("version=\"", LabelValue(snapshot.version), "\""),
             1);
  out.Single("tensorhub_epoch", "gauge", "The server's reign.", snapshot.catalog.epoch.value);
  out.Single("tensorhub_uptime_seconds", "gauge", "Since the start.",
             absl::ToDoubleSeconds(snapshot.uptime));
  out.Single("tensorhub_workers", "gauge", "Workers with a lease.", snapshot.workers);
  out.Single("tensorhub_models", "gauge", "Models known.", snapshot.catalog.models.size());
  WriteModels(out, snapshot.catalog);
  for (const CounterRow& row : kCounters) {
    out.Single(row.name, "counter", row.help, snapshot.counters.*row.field);
  }
  WriteShell(out, metrics);
  return out.Take();
}

std::string RenderStatusPage(const StatusSnapshot& snapshot) {
  std::string page(kHead.data(), kHead.size());
  absl::StrAppend(&page, "<p>", Html(snapshot.address), ", epoch ", snapshot.catalog.epoch.value,
                  ", up ", absl::FormatDuration(absl::Trunc(snapshot.uptime, absl::Seconds(1))),
                  ", ", Html(snapshot.version), ", ", snapshot.workers,
                  " workers. <a href=/metrics>metrics</a> <a href=/healthz>health</a>\n",
                  "<table><tr><th>run<th>model<th>version<th>state<th>bytes<th>held by\n");
  for (const CatalogModel& model : snapshot.catalog.models) {
    for (const CatalogVersion& version : model.versions) {
      absl::StrAppend(&page, VersionRow(model.key, version));
    }
  }
  absl::StrAppend(&page, "</table></html>\n");
  return page;
}

}  // namespace th
