// SPDX-License-Identifier: Apache-2.0
#include "cli/table.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "reshard/base/check.h"

namespace reshard::cli {
namespace {

/// Columns that a text takes on the screen: its code points. No name that is printed needs more.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

Style Style::of_stdout() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool wanted = no_color == nullptr || *no_color == '\0';
  const bool able =
      term != nullptr && std::string_view(term) != "dumb" && ::isatty(STDOUT_FILENO) == 1;
  return Style(wanted && able);
}

std::string Style::paint(std::string_view code, std::string_view text) const {
  return colours_ ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
}

void Table::add(std::vector<std::string> cells) {
  RESHARD_CHECK(cells.size() == columns_.size());
  for (std::string& cell : cells)
    for (char& c : cell)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  rows_.push_back(std::move(cells));
}

std::string Table::text(const Style& style, int indent) const {
  std::vector<std::size_t> widths;
  bool titled = false;
  for (const Column& column : columns_) {
    widths.push_back(width(column.title));
    titled |= !column.title.empty();
  }
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));

  const auto line = [&](auto&& cell) {
    std::string out(static_cast<std::size_t>(indent), ' ');
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string& text = cell(i);
      const std::string padding(widths[i] - width(text), ' ');
      out += columns_[i].align == Align::right ? padding + text : text + padding;
      if (i + 1 < columns_.size()) out += "  ";
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out;
  };
  std::string out;
  if (titled)
    out +=
        style.title(line([&](std::size_t i) -> const std::string& { return columns_[i].title; })) +
        "\n";
  for (const auto& row : rows_)
    out += line([&](std::size_t i) -> const std::string& { return row[i]; }) + "\n";
  return out;
}

std::string wrapped(const std::string& text, int columns, int indent) {
  std::string out, line;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    if (!line.empty() && static_cast<int>(line.size() + 1 + word.size()) > columns) {
      out += line + "\n" + std::string(static_cast<std::size_t>(indent), ' ');
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return out + line;
}

}  // namespace reshard::cli
