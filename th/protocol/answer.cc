#include "th/protocol/answer.h"

#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace th {
namespace {

bool IsPublished(const StartOperation& asked, const VersionInfo& version) {
  if (asked.derived_from.has_value() && version.sequence != *asked.derived_from) return false;
  return asked.label.empty() || version.label == asked.label;
}

bool IsSelected(const VersionSelector& selector, const VersionInfo& version) {
  if (const auto* label = std::get_if<VersionLabel>(&selector)) return version.label == *label;
  const auto* sequence = std::get_if<VersionSequence>(&selector);
  return sequence == nullptr || version.sequence == *sequence;
}

}  // namespace

std::string WhyNoAnswer(const StartOperation& asked, const VersionInfo& version) {
  switch (asked.kind) {
    case OperationKind::kPublish:
      if (IsPublished(asked, version)) return "";
      return absl::StrCat("names ", version.ToString(), ", and ",
                          asked.label.empty() ? "a form of another version"
                                              : absl::StrCat("'", asked.label.text(), "'"),
                          " was published");
    case OperationKind::kUpdate:
      if (IsSelected(asked.selector, version)) return "";
      return absl::StrCat("names ", version.ToString(), ", and ", ToString(asked.selector),
                          " was asked for");
    case OperationKind::kUnpublish:
      return "";
  }
  return "";
}

bool SaysForgotten(const absl::Status& end) {
  return absl::IsAborted(end) && absl::StrContains(end.message(), kForgotten);
}

bool SaysNothingDoneForRank(const absl::Status& end) {
  return absl::IsAborted(end) && absl::StrContains(end.message(), kNothingDoneForRank);
}

}  // namespace th
