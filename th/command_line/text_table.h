// A table for people: columns as wide as their widest cell, numbers to the right.
//
//   TextTable table({{"READER"}, {"BYTES", Align::kRight}});
//   table.AddRow({"rollout-1/0", "45.4 MB"});
//   std::cout << table.ToString();
//
// Not thread-safe.
#ifndef TH_COMMAND_LINE_TEXT_TABLE_H_
#define TH_COMMAND_LINE_TEXT_TABLE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace th {

enum class Align { kLeft, kRight };

class TextTable {
 public:
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };
  explicit TextTable(std::vector<Column> columns);
  // Missing cells are empty, cells beyond the columns are dropped.
  void AddRow(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  // The titles and the rows, a line each, without white space at the ends of lines.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// The number of terminal columns that UTF-8 `text` takes: its code points.
size_t DisplayWidth(absl::string_view text);
// `text` cut to `width` columns, the last of them an ellipsis when something was cut.
std::string FitWidth(absl::string_view text, size_t width);

}  // namespace th

#endif  // TH_COMMAND_LINE_TEXT_TABLE_H_
