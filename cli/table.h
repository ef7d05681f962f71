// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace reshard::cli {

/// Colours of a terminal, or none.
class Style {
 public:
  /// For standard output: colours on a terminal unless the environment sets NO_COLOR or TERM=dumb.
  static Style of_stdout();
  static Style plain() { return Style(false); }
  explicit Style(bool colours) : colours_(colours) {}

  std::string title(std::string_view text) const { return paint("1", text); }
  std::string quiet(std::string_view text) const { return paint("2", text); }
  std::string good(std::string_view text) const { return paint("32", text); }
  std::string bad(std::string_view text) const { return paint("31", text); }

 private:
  std::string paint(std::string_view code, std::string_view text) const;
  bool colours_;
};

/// Rows of text in aligned columns.
class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;  ///< without any titles, no title line is printed.
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// Replaces control characters, which names in files may contain, by '?'. @pre as many cells as
  /// columns
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  /// Each line ends in a newline and begins with `indent` spaces; titles are bold.
  std::string text(const Style& style, int indent = 2) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// The text broken at spaces, so that no line but that of a long word has more than `columns`
/// characters besides the `indent` spaces before each line but the first. No newline at the end.
std::string wrapped(const std::string& text, int columns, int indent);

}  // namespace reshard::cli
