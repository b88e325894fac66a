#include "th/worker/metrics_page.h"

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "th/client/client.h"
#include "th/monitoring/listen_address.h"
#include "th/monitoring/prometheus_text.h"
#include "th/status/status_macros.h"
#include "th/version/version.h"

namespace th {
namespace {

HttpResponse Metrics() {
  PrometheusText out;
  WriteBuildInfo(out, BuildVersion());
  return {.content_type = kPrometheusContentType, .body = absl::StrCat(out.Take(), MetricsText())};
}

HttpResponse Page(const std::string& path) {
  if (path == "/metrics") return Metrics();
  if (path == "/healthz") return {.body = "ok\n"};
  return {.status = 404, .body = "there are /metrics and /healthz\n"};
}

}  // namespace

void AddHttpFlag(CLI::App* app, std::string* address) {
  app->add_option("--http", *address, "where to show metrics and health; default: nowhere")
      ->check(CLI::Validator(WhyNoListenAddress, "HOST:PORT"));
}

absl::StatusOr<std::unique_ptr<HttpListener>> ServeMetrics(const std::string& address) {
  if (address.empty()) return nullptr;
  TH_ASSIGN_OR_RETURN(const ListenAddress listen, ParseListenAddress(address));
  TH_ASSIGN_OR_RETURN(auto listener, HttpListener::Start(listen, &Page));
  LOG(INFO) << "metrics at http://" << listener->address().ToString() << "/metrics";
  return listener;
}

}  // namespace th
