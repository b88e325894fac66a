// Text of others as valid UTF-8, for what takes nothing else.
#ifndef TH_TEXT_CLEAN_TEXT_H_
#define TH_TEXT_CLEAN_TEXT_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace th {

// `text` as valid UTF-8 of at most `max_bytes`: what is not becomes U+FFFD, what is too long is
// cut.
std::string CleanText(absl::string_view text, size_t max_bytes);

}  // namespace th

#endif  // TH_TEXT_CLEAN_TEXT_H_
