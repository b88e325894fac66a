#include "th/text/utf8.h"

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::EndsWith;
using ::testing::Le;
using ::testing::SizeIs;

TEST(Utf8Test, TellsWellFormedFromIllFormed) {
  struct Case {
    std::string text;
    bool well_formed;
  };
  const Case cases[] = {
      {"", true},
      {"plain", true},
      {"\xc3\xbc", true},           // U+00FC
      {"\xe4\xb8\xad", true},       // U+4E2D
      {"\xf0\x9f\x98\x80", true},   // U+1F600
      {"\xf4\x8f\xbf\xbf", true},   // U+10FFFF, the last
      {"\xf4\x90\x80\x80", false},  // beyond it
      {"\xc3", false},              // cut off
      {"\xe4\xb8", false},          // cut off
      {"\xc3x", false},             // no continuation
      {"\x80", false},              // begins with a continuation
      {"\xc0\xaf", false},          // overlong '/'
      {"\xe0\x80\xaf", false},      // overlong '/'
      {"\xf0\x80\x80\xaf", false},  // overlong '/'
      {"\xed\xa0\x80", false},      // surrogate
      {"\xff", false},
      {"good\xffgood", false},
      {std::string("a\0b", 3), true},
  };
  for (const Case& c : cases) EXPECT_EQ(IsUtf8(c.text), c.well_formed) << Quoted(c.text);
}

TEST(Utf8Test, TakesOneCodePointAfterAnother) {
  absl::string_view rest = "a\xc3\xbc\xf0\x9f\x98\x80";
  EXPECT_EQ(TakeCodePoint(rest), U'a');
  EXPECT_EQ(TakeCodePoint(rest), char32_t{0xfc});
  EXPECT_EQ(TakeCodePoint(rest), char32_t{0x1f600});
  EXPECT_TRUE(rest.empty());
}

TEST(Utf8Test, LeavesIllFormedTextAsItWas) {
  absl::string_view rest = "\xff!";
  EXPECT_EQ(TakeCodePoint(rest), std::nullopt);
  EXPECT_EQ(rest.size(), 2u);
}

TEST(Utf8Test, KnowsWhiteSpaceAndWhatShowsNothing) {
  struct Case {
    char32_t code_point;
    bool white_space;
    bool unprintable;
  };
  const Case cases[] = {
      {U'a', false, false},   {U' ', true, false},    {U'\t', true, true},
      {0xa0, true, false},    {0x2003, true, false},  {0x3000, true, false},
      {0x2028, true, true},   {0x200b, false, true},  {0x202e, false, true},
      {0xfeff, false, true},  {0x7f, false, true},    {0x85, true, true},
      {0xfc, false, false},   {0x4e2d, false, false}, {0x1f600, false, false},
      {0x1fffe, false, true}, {0xfffe, false, true},  {0xe000, false, true},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(IsWhiteSpace(c.code_point), c.white_space) << uint32_t{c.code_point};
    EXPECT_EQ(IsUnprintable(c.code_point), c.unprintable) << uint32_t{c.code_point};
  }
}

TEST(Utf8Test, QuotesForMessages) {
  EXPECT_EQ(Quoted("layers.0"), "'layers.0'");
  EXPECT_EQ(Quoted("\xc3\xbc"), "'\xc3\xbc'");
  EXPECT_EQ(Quoted("a\nb\xff"), "'a\\nb\\xff'");
  EXPECT_EQ(Quoted(""), "''");
}

TEST(Utf8Test, CutsLongTextWhenItQuotes) {
  EXPECT_THAT(Quoted(std::string(100'000, 'x')), EndsWith("x...'"));
  EXPECT_THAT(Quoted(std::string(100'000, '\xff')), SizeIs(Le(4 * kMaxQuotedBytes + 5)));
}

}  // namespace
}  // namespace th
