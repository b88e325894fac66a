#include "th/text/utf8.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace th {
namespace {

struct CodePointRange {
  char32_t first;
  char32_t last;
};

constexpr CodePointRange kWhiteSpace[] = {
    {0x09, 0x0d},     {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
    {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
};

constexpr CodePointRange kUnprintable[] = {
    {0x00, 0x1f},     {0x7f, 0x9f},     {0xad, 0xad},     {0x061c, 0x061c},    {0x180e, 0x180e},
    {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f}, {0xe000, 0xf8ff},    {0xfdd0, 0xfdef},
    {0xfeff, 0xfeff}, {0xfff0, 0xfffb}, {0xfffe, 0xffff}, {0xe0000, 0x10ffff},
};

template <size_t kCount>
bool InRanges(const CodePointRange (&ranges)[kCount], char32_t code_point) {
  return std::any_of(std::begin(ranges), std::end(ranges), [&](const CodePointRange& range) {
    return range.first <= code_point && code_point <= range.last;
  });
}

// The length of the sequence that `lead` begins and the lowest code point that needs that length.
struct SequenceForm {
  size_t length;
  char32_t payload;
  char32_t lowest;
};

std::optional<SequenceForm> FormOf(uint8_t lead) {
  if (lead < 0x80) return SequenceForm{1, lead, 0};
  if ((lead & 0xe0) == 0xc0) return SequenceForm{2, lead & 0x1fu, 0x80};
  if ((lead & 0xf0) == 0xe0) return SequenceForm{3, lead & 0x0fu, 0x800};
  if ((lead & 0xf8) == 0xf0) return SequenceForm{4, lead & 0x07u, 0x10000};
  return std::nullopt;
}

}  // namespace

std::optional<char32_t> TakeCodePoint(absl::string_view& rest) {
  const std::optional<SequenceForm> form = FormOf(static_cast<uint8_t>(rest.front()));
  if (!form.has_value() || rest.size() < form->length) return std::nullopt;
  char32_t code_point = form->payload;
  for (size_t i = 1; i < form->length; ++i) {
    const auto byte = static_cast<uint8_t>(rest[i]);
    if ((byte & 0xc0) != 0x80) return std::nullopt;
    code_point = (code_point << 6) | (byte & 0x3fu);
  }
  const bool surrogate = code_point >= 0xd800 && code_point <= 0xdfff;
  if (code_point < form->lowest || code_point > 0x10ffff || surrogate) return std::nullopt;
  rest.remove_prefix(form->length);
  return code_point;
}

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    if (!TakeCodePoint(text).has_value()) return false;
  }
  return true;
}

bool IsWhiteSpace(char32_t code_point) { return InRanges(kWhiteSpace, code_point); }

bool IsUnprintable(char32_t code_point) {
  // Every plane ends in two non-characters.
  return InRanges(kUnprintable, code_point) || (code_point & 0xfffe) == 0xfffe;
}

std::string Quoted(absl::string_view text) {
  std::string quoted = "'";
  absl::string_view rest = text;
  while (!rest.empty() && text.size() - rest.size() < kMaxQuotedBytes) {
    const absl::string_view before = rest;
    const std::optional<char32_t> code_point = TakeCodePoint(rest);
    if (!code_point.has_value()) rest.remove_prefix(1);
    const absl::string_view piece = before.substr(0, before.size() - rest.size());
    const bool plain = code_point.has_value() && !IsUnprintable(*code_point);
    absl::StrAppend(&quoted, plain ? std::string(piece) : absl::CHexEscape(piece));
  }
  absl::StrAppend(&quoted, rest.empty() ? "'" : "...'");
  return quoted;
}

}  // namespace th
