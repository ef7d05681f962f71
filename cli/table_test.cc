// SPDX-License-Identifier: Apache-2.0
// Protects: columns line up, with and without colours, and no control character reaches the
// terminal.
#include "cli/table.h"

#include <gtest/gtest.h>

namespace reshard::cli {
namespace {

TEST(Table, columns_are_aligned) {
  Table table({{"name"}, {"bytes", Table::Align::right}, {"note"}});
  table.add({"a", "1", ""});
  table.add({"longer", "12,345", "x"});
  EXPECT_EQ(table.text(Style::plain()),
            "  name     bytes  note\n"
            "  a            1\n"
            "  longer  12,345  x\n");
}

TEST(Table, without_titles_has_no_title_line) {
  Table table({{""}, {""}});
  table.add({"a", "b"});
  EXPECT_EQ(table.text(Style::plain(), 0), "a  b\n");
}

TEST(Table, colours_do_not_move_columns) {
  Table table({{"a"}, {"b"}});
  table.add({"\u00e9\u00e9", "y"});
  table.add({"xx", "y"});
  EXPECT_EQ(table.text(Style::plain(), 0), "a   b\n\u00e9\u00e9  y\nxx  y\n");
  EXPECT_EQ(table.text(Style(true), 0), "\x1b[1ma   b\x1b[0m\n\u00e9\u00e9  y\nxx  y\n");
}

TEST(Table, prints_no_control_characters) {
  Table table({{""}});
  table.add({"a\x1b[31m\n\x7f"});
  EXPECT_EQ(table.text(Style::plain(), 0), "a?[31m??\n");
}

}  // namespace
}  // namespace reshard::cli
