// Prometheus samples of what updates and unpublishes cost. The server and the workers use the same
// functions, so that their metrics have the same labels.
//
//   out.Family("tensorhub_stall_seconds_total", "counter", "...");
//   for (...) AddStallSamples(out, "tensorhub_stall_seconds_total", LabelsOf(model), totals.stall);
//
// The caller has called out.Family(name, ...) before; `labels` are on every sample. Pure.
#ifndef TH_MONITORING_COST_SAMPLES_H_
#define TH_MONITORING_COST_SAMPLES_H_

#include <vector>

#include "absl/strings/string_view.h"
#include "th/monitoring/prometheus_text.h"
#include "th/protocol/cost.h"

namespace th {

// Adds the seconds of each stall phase, with the label `phase`; phases without stall too.
void AddStallSamples(PrometheusText& out, absl::string_view name, const PrometheusLabels& labels,
                     const StallByPhase& stall);
// Adds the bytes of each kind, with the labels `transport`, `distance` and `source` ("publisher" or
// "relay").
void AddReceivedSamples(PrometheusText& out, absl::string_view name, const PrometheusLabels& labels,
                        const std::vector<ReceivedBytes>& received);
// Adds the number of sources for each transport that was passed over and its reason, with the
// labels `transport` and `reason`.
void AddPassedOverSamples(PrometheusText& out, absl::string_view name,
                          const PrometheusLabels& labels,
                          const std::vector<PassedOver>& passed_over);

}  // namespace th

#endif  // TH_MONITORING_COST_SAMPLES_H_
