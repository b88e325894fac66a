#include "th/client_flags/flag_checks.h"

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

}  // namespace

CLI::Validator IsName(const std::string& what) {
  return Valid("NAME", [what](const std::string& text) { return ValidateName(what, text); });
}

CLI::Validator IsServerList() {
  return Valid("HOST:PORT",
               [](const std::string& text) { return ServerList::Parse(text).status(); });
}

CLI::Validator IsLocation() {
  return Valid("LOCATION", [](const std::string& text) { return ParseLocation(text).status(); });
}

CLI::Validator IsDataAddress() {
  return Valid("ADDRESS", [](const std::string& text) { return ParseDataAddress(text).status(); });
}

CLI::Validator IsSeconds(double least, double most) {
  const std::string range = absl::StrFormat("%.15g to %.15g", least, most);
  return Valid("in " + range, [=](const std::string& text) {
    double seconds = 0;
    const bool within =
        absl::SimpleAtod(text, &seconds) && seconds >= least && seconds <= most;  // not a NaN
    return within ? absl::OkStatus()
                  : absl::InvalidArgumentError(
                        absl::StrFormat("\"%s\" is no number of seconds from %s", text, range));
  });
}

}  // namespace th
