// A worker's page over HTTP: /metrics for Prometheus, /healthz for whoever restarts processes.
//
//   TH_ASSIGN_OR_RETURN(const auto page, ServeMetrics("0.0.0.0:7079"));  // until it is destroyed
#ifndef TH_WORKER_METRICS_PAGE_H_
#define TH_WORKER_METRICS_PAGE_H_

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "th/monitoring/http_listener.h"

namespace th {

// --http HOST:PORT
void AddHttpFlag(CLI::App* app, std::string* address);

// Listens and logs where. Null where `address` is empty. Errors of BindAndListen.
absl::StatusOr<std::unique_ptr<HttpListener>> ServeMetrics(const std::string& address);

}  // namespace th

#endif  // TH_WORKER_METRICS_PAGE_H_
