// Metrics in Prometheus' text format 0.0.4
// (prometheus.io/docs/instrumenting/exposition_formats).
//
//   PrometheusText out;
//   out.Single("tensorhub_workers", "gauge", "Workers with a lease.", workers);
//   out.Family("tensorhub_versions", "gauge", "Versions known.");
//   for (...) out.Sample("tensorhub_versions", PrometheusLabels().With("model", name), count);
//   WriteProcessFigures(out, ReadProcessFigures());
//   return out.Take();
//
// Pure. Names, types and help texts are the caller's constants and taken as they are.
#ifndef TH_MONITORING_PROMETHEUS_TEXT_H_
#define TH_MONITORING_PROMETHEUS_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "th/monitoring/process_figures.h"

namespace th {

// The labels of one sample. A value.
class PrometheusLabels {
 public:
  // These and one more, whose value may be any bytes: what is no UTF-8 becomes U+FFFD, as one
  // sample that cannot be read would cost all others.
  PrometheusLabels With(absl::string_view name, absl::string_view value) const;
  // `run="r1",model="m"`; empty without labels.
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class PrometheusText {
 public:
  // The head of a metric. Its samples follow at once.
  void Family(absl::string_view name, absl::string_view type, absl::string_view help);
  template <typename Number>
  void Sample(absl::string_view name, const PrometheusLabels& labels, Number value) {
    Line(name, labels, Digits(value));
  }
  // A metric with one sample, without labels.
  template <typename Number>
  void Single(absl::string_view name, absl::string_view type, absl::string_view help,
              Number value) {
    Family(name, type, help);
    Sample(name, {}, value);
  }
  // The samples of a histogram, which has kBounds (upper bounds in seconds), Count(bucket) of each
  // bucket alone, the last one beyond all bounds, and SumSeconds().
  template <typename Histogram>
  void HistogramSamples(absl::string_view name, const PrometheusLabels& labels,
                        const Histogram& histogram) {
    const std::string bucket_name = absl::StrCat(name, "_bucket");
    uint64_t count = 0;
    for (size_t i = 0; i <= Histogram::kBounds.size(); ++i) {
      count += histogram.Count(i);
      const std::string bound =
          i < Histogram::kBounds.size() ? absl::StrCat(Histogram::kBounds[i]) : "+Inf";
      Sample(bucket_name, labels.With("le", bound), count);
    }
    Sample(absl::StrCat(name, "_sum"), labels, histogram.SumSeconds());
    Sample(absl::StrCat(name, "_count"), labels, count);
  }
  std::string Take() { return std::move(text_); }

 private:
  void Line(absl::string_view name, const PrometheusLabels& labels, absl::string_view value);
  // All digits of a double: a counter of seconds beyond 10^6 would move in steps of 10 otherwise.
  static std::string Digits(double value);
  template <typename Integer, typename = std::enable_if_t<std::is_integral_v<Integer>>>
  static std::string Digits(Integer value) {
    return absl::StrCat(value);
  }

  std::string text_;
};

// The type of the text, for HTTP.
inline constexpr char kPrometheusContentType[] = "text/plain; version=0.0.4; charset=utf-8";

// tensorhub_build_info, whose label is the software.
void WriteBuildInfo(PrometheusText& out, absl::string_view software);

// The metrics that Prometheus' clients call process_*.
void WriteProcessFigures(PrometheusText& out, const ProcessFigures& process);

}  // namespace th

#endif  // TH_MONITORING_PROMETHEUS_TEXT_H_
