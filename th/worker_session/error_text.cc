#include "th/worker_session/error_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "th/protocol/error_fields.h"

namespace th {
namespace {

std::string ReceivedText(const ErrorText::Received& received) {
  static constexpr struct {
    uint64_t bytes;
    absl::string_view name;
  } kUnits[] = {{uint64_t{1} << 30, "GiB"}, {uint64_t{1} << 20, "MiB"}, {uint64_t{1} << 10, "KiB"}};
  for (const auto& unit : kUnits) {
    if (received.total_bytes < unit.bytes) continue;
    const double scale = static_cast<double>(unit.bytes);
    return absl::StrFormat("%.1f of %.1f %s received", received.held_bytes / scale,
                           received.total_bytes / scale, unit.name);
  }
  return absl::StrFormat("%d of %d bytes received", received.held_bytes, received.total_bytes);
}

std::string What(const FailedSource& source) {
  return source.detail.empty() ? std::string(SourceFailureName(source.failure)) : source.detail;
}

// Each once, the latest first; with how often the first one was tried. What the cause tells of the
// latest is left to the cause. May be empty.
std::string SourcesText(const std::vector<FailedSource>& sources, absl::string_view cause) {
  const FailedSource& last = sources.back();
  std::vector<const FailedSource*> others;
  size_t tries = 0;
  for (auto source = sources.rbegin(); source != sources.rend(); ++source) {
    const bool named = std::any_of(others.begin(), others.end(), [&](const FailedSource* other) {
      return other->name == source->name;
    });
    if (source->name == last.name) {
      ++tries;
    } else if (!named) {
      others.push_back(&*source);
    }
  }
  const bool said = !last.detail.empty() && absl::StrContains(cause, last.detail);
  if (said && last.address.empty() && others.empty()) return "";
  std::string text = absl::StrCat("source ", last.name.ToString());
  if (!last.address.empty()) absl::StrAppend(&text, " (", last.transport, " ", last.address, ")");
  if (!said) absl::StrAppend(&text, " ", What(last));
  if (tries > 1) absl::StrAppend(&text, ", tried ", tries, " times");
  if (others.empty()) return text;
  std::vector<std::string> named;
  for (size_t i = 0; i < std::min(others.size(), kMaxSourcesNamed); ++i) {
    named.push_back(absl::StrCat(others[i]->name.ToString(), " ", What(*others[i])));
  }
  if (others.size() > kMaxSourcesNamed) named.push_back("...");
  return absl::StrCat(text, ", ", others.size(), others.size() == 1 ? " other" : " others",
                      " tried (", absl::StrJoin(named, ", "), ")");
}

std::string Printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

std::string Head(const ErrorText& text) {
  std::string head = absl::StrCat(ErrorCodeName(text.code), " ", text.key.ToString());
  if (!text.version.empty()) absl::StrAppend(&head, " version=", text.version);
  if (text.rank.has_value()) absl::StrAppend(&head, " rank=", text.rank->ToString());
  return head;
}

}  // namespace

absl::string_view ErrorCodeName(ErrorCode code) {
  static constexpr absl::string_view kNames[] = {
      "UPDATE_STALLED",    "UPDATE_DEADLINE",    "UPDATE_FAILED",    "UPDATE_REFUSED",
      "PUBLISH_DEADLINE",  "PUBLISH_FAILED",     "PUBLISH_REFUSED",  "UNPUBLISH_FAILED",
      "UNPUBLISH_REFUSED", "RESET_REFUSED",      "PUBLICATION_LOST", "GROUP_CHANGED",
      "JOIN_REFUSED",      "SERVER_UNREACHABLE", "MEMBERSHIP_ENDED", "SESSION_ENDED",
      "COMMAND_FAILED",    "COMMAND_DEADLINE"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

absl::string_view SourceFailureName(SourceFailure failure) {
  switch (failure) {
    case SourceFailure::kConnect:
      return "cannot be reached";
    case SourceFailure::kClosed:
      return "closed the connection";
    case SourceFailure::kStalled:
      return "went silent";
    case SourceFailure::kRefused:
      return "refused this reader";
    case SourceFailure::kCorrupt:
      return "sent bytes that do not match their sums";
    case SourceFailure::kGenerationChanged:
      return "has changed its buffer";
  }
  return "failed";
}

std::string Compose(const ErrorText& text) {
  std::vector<std::string> parts;
  if (text.received.has_value()) parts.push_back(ReceivedText(*text.received));
  const std::string cause = text.cause.substr(0, kMaxCauseBytes);
  if (!text.failed_sources.empty()) {
    std::string sources = SourcesText(text.failed_sources, cause);
    if (!sources.empty()) parts.push_back(std::move(sources));
  }
  if (!cause.empty()) parts.push_back(cause);
  if (!text.aftermath.empty()) parts.push_back(text.aftermath);
  if (text.operation.has_value()) {
    parts.push_back(absl::StrCat("operation ", text.operation->value));
  }
  return Printable(
      absl::StrCat(Head(text), ": ", absl::StrJoin(parts, "; "), EventSuffix(text.event)));
}

absl::Status ComposeStatus(absl::StatusCode code, const ErrorText& text) {
  absl::Status status(code == absl::StatusCode::kOk ? absl::StatusCode::kInternal : code,
                      Compose(text));
  SetFields({.word = std::string(ErrorCodeName(text.code)),
             .rank = text.rank.has_value() ? Printable(text.rank->ToString()) : "",
             .event = text.event.ToString()},
            &status);
  return status;
}

}  // namespace th
