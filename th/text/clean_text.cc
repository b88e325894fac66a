#include "th/text/clean_text.h"

#include "th/text/utf8.h"

namespace th {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

std::string CleanText(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes && IsUtf8(text)) return std::string(text);
  std::string clean;
  while (!text.empty()) {
    absl::string_view rest = text;
    absl::string_view piece = kReplacement;
    size_t taken = 1;
    if (TakeCodePoint(rest).has_value()) {
      taken = text.size() - rest.size();
      piece = text.substr(0, taken);
    }
    if (clean.size() + piece.size() > max_bytes) break;
    clean.append(piece.data(), piece.size());
    text.remove_prefix(taken);
  }
  return clean;
}

}  // namespace th
