#include "th/command_line/text_table.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace th {
namespace {

constexpr char kGap[] = "  ";

bool ContinuesCodePoint(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

std::string Pad(const std::string& cell, size_t width, Align align) {
  const std::string space(width - std::min(width, DisplayWidth(cell)), ' ');
  return align == Align::kRight ? space + cell : cell + space;
}

}  // namespace

TextTable::TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

void TextTable::AddRow(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string TextTable::ToString() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(DisplayWidth(column.title));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  std::string text;
  const auto append = [&](auto cell_of) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      absl::StrAppend(&line, i == 0 ? "" : kGap, Pad(cell_of(i), widths[i], columns_[i].align));
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  };
  append([&](size_t i) { return columns_[i].title; });
  for (const auto& row : rows_) append([&](size_t i) { return row[i]; });
  return text;
}

size_t DisplayWidth(absl::string_view text) {
  return text.size() - std::count_if(text.begin(), text.end(), ContinuesCodePoint);
}

std::string FitWidth(absl::string_view text, size_t width) {
  if (DisplayWidth(text) <= width) return std::string(text);
  if (width == 0) return "";
  size_t end = 0;
  for (size_t points = 0; end < text.size(); ++end) {
    if (!ContinuesCodePoint(text[end]) && ++points == width) break;
  }
  return absl::StrCat(text.substr(0, end), "…");
}

}  // namespace th
