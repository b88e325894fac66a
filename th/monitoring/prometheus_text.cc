#include "th/monitoring/prometheus_text.h"

#include <array>
#include <charconv>

#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "th/text/clean_text.h"

namespace th {
namespace {

// The longest double without an exponent has fewer.
constexpr size_t kMostDigits = 1100;

}  // namespace

PrometheusLabels PrometheusLabels::With(absl::string_view name, absl::string_view value) const {
  PrometheusLabels more = *this;
  const std::string quoted = absl::StrReplaceAll(CleanText(value, std::string::npos),
                                                 {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}});
  absl::StrAppend(&more.text_, text_.empty() ? "" : ",", name, "=\"", quoted, "\"");
  return more;
}

void PrometheusText::Family(absl::string_view name, absl::string_view type,
                            absl::string_view help) {
  absl::StrAppend(&text_, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

void PrometheusText::Line(absl::string_view name, const PrometheusLabels& labels,
                          absl::string_view value) {
  absl::StrAppend(&text_, name);
  if (!labels.text().empty()) absl::StrAppend(&text_, "{", labels.text(), "}");
  absl::StrAppend(&text_, " ", value, "\n");
}

std::string PrometheusText::Digits(double value) {
  std::array<char, kMostDigits> text{};
  const std::to_chars_result end =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  return std::string(text.data(), end.ptr);
}

void WriteBuildInfo(PrometheusText& out, absl::string_view software) {
  out.Family("tensorhub_build_info", "gauge", "Always 1; the label names the software.");
  out.Sample("tensorhub_build_info", PrometheusLabels().With("version", software), 1);
}

void WriteProcessFigures(PrometheusText& out, const ProcessFigures& process) {
  out.Single("process_cpu_seconds_total", "counter", "User and system processor time.",
             absl::ToDoubleSeconds(process.cpu));
  out.Single("process_resident_memory_bytes", "gauge", "Resident memory.", process.resident_bytes);
  out.Single("process_open_fds", "gauge", "File descriptors open now.", process.open_descriptors);
  out.Single("process_max_fds", "gauge", "The limit of open file descriptors.",
             process.max_descriptors);
  out.Single("process_start_time_seconds", "gauge",
             "When the process started, in seconds since 1970.",
             absl::ToDoubleSeconds(process.started - absl::UnixEpoch()));
}

}  // namespace th
