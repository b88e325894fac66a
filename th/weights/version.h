// How weight versions are named and described.
#ifndef TH_WEIGHTS_VERSION_H_
#define TH_WEIGHTS_VERSION_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "th/identifiers/identifiers.h"

namespace th {

// The longest label a caller may give a version.
inline constexpr size_t kMaxLabelBytes = 128;
// The most bytes (keys and values together) of the caller's attributes a version.
inline constexpr size_t kMaxAttributesBytes = size_t{1} << 20;
// Longest run, model, group, form and buffer names.
inline constexpr size_t kMaxNameBytes = 256;
// The form a replica holds unless its owner says otherwise.
inline constexpr char kDefaultForm[] = "hf";

// The caller's own key-value pairs of a version (say, the optimizer step), handed to every reader.
using Attributes = std::map<std::string, std::string>;

// The caller's name of a version: 1 to kMaxLabelBytes bytes of printable UTF-8 without white space;
// never "latest" or "latest-K". An integer is taken as its decimal digits.
// Not unique for ever: a roll-back frees the labels of what it withdraws.
class VersionLabel {
 public:
  VersionLabel() = default;  // no label
  // INVALID_ARGUMENT, naming the rule broken.
  static absl::StatusOr<VersionLabel> Parse(absl::string_view text);
  static VersionLabel FromStep(int64_t step);

  const std::string& text() const { return text_; }
  bool empty() const { return text_.empty(); }
  friend auto operator<=>(const VersionLabel&, const VersionLabel&) = default;

 private:
  explicit VersionLabel(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

// The latest version that a reader asks for. `back`: so many published versions before the latest,
// of those that the server knows (after its restart: that somebody holds).
struct LatestVersion {
  uint32_t back = 0;
  friend auto operator<=>(const LatestVersion&, const LatestVersion&) = default;
};
using VersionSelector = std::variant<LatestVersion, VersionLabel, VersionSequence>;

// "latest", "latest-2" (two before it), "#2.17" (a sequence) or a label.
std::string ToString(const VersionSelector& selector);
// The inverse. INVALID_ARGUMENT on anything else.
absl::StatusOr<VersionSelector> ParseVersionSelector(absl::string_view text);

// A version as its readers know it.
struct VersionInfo {
  VersionSequence sequence;
  VersionLabel label;
  Lineage lineage;
  Attributes attributes;

  friend bool operator==(const VersionInfo&, const VersionInfo&) = default;
  // "step-57 (#2.17)".
  std::string ToString() const;
};

// INVALID_ARGUMENT when empty, longer than kMaxNameBytes, not UTF-8 or with white space or control
// characters. `what` names the thing in the message ("run", "group").
absl::Status ValidateName(absl::string_view what, absl::string_view name);
// The bytes of keys and values together.
size_t BytesOf(const Attributes& attributes);
// INVALID_ARGUMENT when keys and values exceed kMaxAttributesBytes together.
absl::Status ValidateAttributes(const Attributes& attributes);

}  // namespace th

#endif  // TH_WEIGHTS_VERSION_H_
