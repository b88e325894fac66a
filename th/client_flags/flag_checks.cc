#include "th/client_flags/flag_checks.h"

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "th/client/data_address.h"
#include "th/client/server_list.h"
#include "th/topology/location.h"
#include "th/weights/version.h"

namespace th {
namespace {

// CLI11 takes an empty text for "right".
CLI::Validator Valid(const std::string& shown,
                     std::function<absl::Status(const std::string&)> check) {
  return CLI::Validator(
      [check = std::move(check)](std::string& text) { return std::string(check(text).message()); },
      shown);
}

struct TransportSpelling {
  absl::string_view spelling;
  absl::string_view name;
};
constexpr TransportSpelling kTransportSpellings[] = {
    {"tcp", "tcp"},         {"same_host", "same_host"}, {"same-host", "same_host"},
    {"ibverbs", "ibverbs"}, {"rdma", "ibverbs"},        {"cuda_ipc", "cuda_ipc"},
    {"cuda", "cuda_ipc"},   {"cuda-ipc", "cuda_ipc"}};

}  // namespace

CLI::Validator IsName(const std::string& what) {
  return Valid("NAME", [what](const std::string& text) { return ValidateName(what, text); });
}

CLI::Validator IsServerList() {
  return Valid("HOST:PORT", [](const std::string& text) { return CheckServers(text); });
}

CLI::Validator IsLocation() {
  return Valid("LOCATION", [](const std::string& text) { return ParseLocation(text).status(); });
}

CLI::Validator IsDataAddress() {
  return Valid("ADDRESS", [](const std::string& text) {
    return ParseDataAddress(text, LocalAddresses()).status();
  });
}

CLI::Validator IsTransport() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        for (const TransportSpelling& each : kTransportSpellings) {
          if (text != each.spelling) continue;
          text = std::string(each.name);
          return "";
        }
        return absl::StrCat("\"", text,
                            "\" is no transport; there are tcp, same_host (or same-host), ibverbs "
                            "(or rdma), cuda_ipc (or cuda)");
      },
      "TRANSPORT");
}

}  // namespace th
