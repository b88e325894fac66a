#include "th/monitoring/cost_samples.h"

#include <cstddef>

#include "absl/time/time.h"
#include "th/topology/location.h"

namespace th {

void AddStallSamples(PrometheusText& out, absl::string_view name, const PrometheusLabels& labels,
                     const StallByPhase& stall) {
  for (size_t i = 0; i < kStallPhases; ++i) {
    out.Sample(name, labels.With("phase", StallPhaseName(static_cast<StallPhase>(i))),
               absl::ToDoubleSeconds(stall[i]));
  }
}

void AddReceivedSamples(PrometheusText& out, absl::string_view name, const PrometheusLabels& labels,
                        const std::vector<ReceivedBytes>& received) {
  for (const ReceivedBytes& one : received) {
    out.Sample(name,
               labels.With("transport", one.transport)
                   .With("distance", DistanceName(one.distance))
                   .With("source", one.publisher ? "publisher" : "relay"),
               one.bytes);
  }
}

void AddPassedOverSamples(PrometheusText& out, absl::string_view name,
                          const PrometheusLabels& labels,
                          const std::vector<PassedOver>& passed_over) {
  for (const PassedOver& one : passed_over) {
    out.Sample(name, labels.With("transport", one.transport).With("reason", one.reason),
               one.sources);
  }
}

}  // namespace th
