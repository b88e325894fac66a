#include "th/client/server_list.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "th/client/cancel_hook.h"
#include "th/client/data_address.h"
#include "th/client/detached_call.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"

namespace th {
namespace {

constexpr absl::string_view kFilePrefix = "file:";

absl::StatusOr<std::vector<std::string>> ParseAddresses(absl::string_view text) {
  std::vector<std::string> servers = absl::StrSplit(text, ',');
  if (servers.size() > kMaxServers) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are ", servers.size(), " servers, at most ", kMaxServers));
  }
  for (const std::string& server : servers) TH_RETURN_IF_ERROR(ParseHostPort(server).status());
  return servers;
}

absl::StatusOr<std::vector<std::string>> ReadAddresses(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::UnavailableError(absl::StrCat(
        path, " is a folder; name the file in it that tensorhub_server --address-file writes"));
  }
  std::ifstream file(path);
  if (!file.is_open()) {
    return absl::UnavailableError(absl::StrCat("no server has written its address to ", path,
                                               "; start one with tensorhub_server --address-file ",
                                               path));
  }
  std::string text(kMaxServerFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxServerFileBytes) {
    return absl::UnavailableError(absl::StrCat(
        path, " holds no server's address: it has more than ", kMaxServerFileBytes, " bytes"));
  }
  absl::StatusOr<std::vector<std::string>> servers =
      ParseAddresses(absl::StripAsciiWhitespace(text));
  if (servers.ok()) return servers;
  return absl::UnavailableError(
      absl::StrCat(path, " holds no server's address: ", servers.status().message()));
}

using FileReading = DetachedCall<absl::StatusOr<ServerList>>;

std::atomic<int> file_readings{0};

// On a thread of its own, as a file server may hang.
absl::StatusOr<std::shared_ptr<FileReading>> StartReading(absl::string_view text) {
  if (file_readings.fetch_add(1) >= kMaxServerFileReadings) {
    file_readings.fetch_sub(1);
    return absl::UnavailableError(
        absl::StrCat(kMaxServerFileReadings, " threads wait for files of servers' addresses as ",
                     text, ": the file system that they lie on does not answer"));
  }
  return FileReading::Start([text = std::string(text)] {
    absl::StatusOr<ServerList> servers = ServerList::Parse(text);
    file_readings.fetch_sub(1);
    return servers;
  });
}

}  // namespace

absl::StatusOr<ServerList> ServerList::Parse(absl::string_view text) {
  absl::string_view path = text;
  if (!absl::ConsumePrefix(&path, kFilePrefix)) {
    TH_ASSIGN_OR_RETURN(std::vector<std::string> servers, ParseAddresses(text));
    return ServerList(std::move(servers));
  }
  TH_RETURN_IF_ERROR(CheckServers(text));
  TH_ASSIGN_OR_RETURN(std::vector<std::string> servers, ReadAddresses(std::string(path)));
  ServerList list(std::move(servers));
  list.file_ = std::string(path);
  return list;
}

void ServerList::ReadAgain(absl::Duration patience) {
  if (file_.empty()) return;
  if (reading_ == nullptr)
    reading_ = Reading::Start([path = file_] { return ReadAddresses(path); });
  std::optional<absl::StatusOr<std::vector<std::string>>> read = reading_->AwaitFor(patience);
  if (!read.has_value()) return;
  reading_.reset();
  absl::StatusOr<std::vector<std::string>> servers = *std::move(read);
  if (!servers.ok() || *servers == servers_) return;
  servers_ = *std::move(servers);
  current_ = servers_.front();
  next_ = 1;
  redirects_ = 0;
}

absl::Status CheckServers(absl::string_view text) {
  if (text == kFilePrefix)
    return absl::InvalidArgumentError(
        "file: names no file; give one like file:/shared/run-7/address");
  if (absl::StartsWith(text, kFilePrefix)) return absl::OkStatus();
  return ParseAddresses(text).status();
}

absl::StatusOr<ServerList> AwaitServers(absl::string_view text, absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  if (!absl::StartsWith(text, kFilePrefix)) return ServerList::Parse(text);
  for (;;) {
    TH_ASSIGN_OR_RETURN(const std::shared_ptr<FileReading> reading, StartReading(text));
    std::optional<absl::StatusOr<ServerList>> servers;
    do {
      TH_RETURN_IF_ERROR(CheckNotCancelled("no server was reached"));
      servers = reading->AwaitFor(kServerFilePoll);
    } while (!servers.has_value() && MonotonicNow() < deadline);
    if (!servers.has_value()) {
      return absl::UnavailableError(
          absl::StrCat(text, " was not read within ", absl::FormatDuration(timeout),
                       ": the file system that it lies on does not answer"));
    }
    if (!absl::IsUnavailable(servers->status()) || MonotonicNow() >= deadline) {
      return *std::move(servers);
    }
    TH_RETURN_IF_ERROR(CheckNotCancelled("no server was reached"));
    absl::SleepFor(kServerFilePoll);
  }
}

void ServerList::MoveAfter(const StreamOutcome& outcome) {
  const bool follows = redirects_ < kMaxRedirects && ParseHostPort(outcome.redirect).ok();
  if (follows) {
    ++redirects_;
    current_ = outcome.redirect;
    return;
  }
  redirects_ = 0;
  if (outcome.joined) return;
  current_ = servers_[next_ % servers_.size()];
  next_ = (next_ + 1) % servers_.size();
}

}  // namespace th
