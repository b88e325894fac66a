// UTF-8 as the rules for names and labels need it.
#ifndef TH_TEXT_UTF8_H_
#define TH_TEXT_UTF8_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace th {

// The bytes of a foreign name that an error message shows at most.
inline constexpr size_t kMaxQuotedBytes = 160;

// Takes the first code point off `rest`, which must not be empty. nullopt, and `rest` as it was,
// when it does not begin with well-formed UTF-8 (overlong forms and surrogates are not).
std::optional<char32_t> TakeCodePoint(absl::string_view& rest);

bool IsUtf8(absl::string_view text);

// Unicode's White_Space.
bool IsWhiteSpace(char32_t code_point);

// True for code points that show nothing, or change how their neighbours show: controls, zero-width
// and bidirectional format characters, line separators, private use and non-characters.
bool IsUnprintable(char32_t code_point);

// `text` in single quotes, made safe for a message: unprintable bytes escaped, long text cut.
std::string Quoted(absl::string_view text);

}  // namespace th

#endif  // TH_TEXT_UTF8_H_
