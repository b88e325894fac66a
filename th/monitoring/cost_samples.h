// Samples of what updates cost, with the same labels from the server and from workers.
//
//   out.Family("tensorhub_stall_seconds_total", "counter", "...");
//   for (...) AddStallSamples(out, "tensorhub_stall_seconds_total", LabelsOf(model), totals.stall);
//
// Pure.
#ifndef TH_MONITORING_COST_SAMPLES_H_
#define TH_MONITORING_COST_SAMPLES_H_

#include <vector>

#include "absl/strings/string_view.h"
#include "th/monitoring/prometheus_text.h"
#include "th/protocol/cost.h"

namespace th {

// Seconds by `phase`, all of them.
void AddStallSamples(PrometheusText& out, absl::string_view name, const PrometheusLabels& labels,
                     const StallByPhase& stall);
// Bytes by `transport`, `distance` and `source`.
void AddReceivedSamples(PrometheusText& out, absl::string_view name, const PrometheusLabels& labels,
                        const std::vector<ReceivedBytes>& received);
// Sources by `transport` and `reason`.
void AddPassedOverSamples(PrometheusText& out, absl::string_view name,
                          const PrometheusLabels& labels,
                          const std::vector<PassedOver>& passed_over);

}  // namespace th

#endif  // TH_MONITORING_COST_SAMPLES_H_
