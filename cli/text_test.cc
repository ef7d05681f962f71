// SPDX-License-Identifier: Apache-2.0
// Numbers for people: what is printed is right to the digits shown, and what is read is what was
// meant.
#include "cli/text.h"

#include <gtest/gtest.h>

#include "cli/table.h"
#include "cli/tensor_kinds.h"

namespace reshard::cli {
namespace {

TEST(Text, bytes_have_three_digits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(9994), "9.99 kB");
  EXPECT_EQ(human_bytes(9996), "10.0 kB");
  EXPECT_EQ(human_bytes(99'960), "100 kB");
  EXPECT_EQ(human_bytes(999'400), "999 kB");
  EXPECT_EQ(human_bytes(999'600), "1.00 MB");
  EXPECT_EQ(human_bytes(470'190'000'000), "470 GB");
  EXPECT_EQ(human_bytes(std::numeric_limits<Index>::max()), "9223 PB");
}

TEST(Text, models_are_counted_in_billions) {
  EXPECT_EQ(human_count(12), "12");
  EXPECT_EQ(human_count(8'030'261'248), "8.03 B");
  EXPECT_EQ(human_count(235'093'634'560), "235 B");
}

TEST(Text, seconds_change_unit) {
  EXPECT_EQ(human_seconds(0.0000123), "12 us");
  EXPECT_EQ(human_seconds(0.00123), "1.23 ms");
  EXPECT_EQ(human_seconds(0.0456), "45.6 ms");
  EXPECT_EQ(human_seconds(12.345), "12.35 s");
  EXPECT_EQ(human_seconds(125.4), "2 min 5 s");
}

TEST(Text, digits_come_in_groups_of_three) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(plural(1, "rank"), "1 rank");
  EXPECT_EQ(plural(2048, "rank"), "2,048 ranks");
}

TEST(Text, ratios_of_nothing_are_no_numbers) {
  EXPECT_EQ(ratio(3, 2), "1.50x");
  EXPECT_EQ(ratio(3, 0), "-");
  EXPECT_EQ(rate(2'000'000'000, 0.5), "4.00 GB/s");
  EXPECT_EQ(rate(1, 0), "-");
}

TEST(Text, bytes_are_read_with_units) {
  EXPECT_EQ(parse_bytes("65536").value_or(0), 65536);
  EXPECT_EQ(parse_bytes("64MiB").value_or(0), 64 << 20);
  EXPECT_EQ(parse_bytes("64mib").value_or(0), 64 << 20);
  EXPECT_EQ(parse_bytes("1.5 GiB").value_or(0), 3 << 29);
  EXPECT_EQ(parse_bytes("5GB").value_or(0), 5'000'000'000);
  EXPECT_EQ(parse_bytes("1 B").value_or(0), 1);
}

TEST(Text, what_is_no_number_of_bytes_is_refused) {
  for (const char* text : {"", "x", "-1", "0", "0.4", "1e3", "64 MiBs", "MiB", "nan", "inf",
                           "99999999TiB", "1 2", "0x10", "5,000"})
    EXPECT_FALSE(parse_bytes(text).has_value()) << text;
}

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

TEST(TensorKinds, are_names_without_numbers) {
  ModelSpec model;
  ASSERT_TRUE(model.add("layers.0.experts.0.up", {2, 3}, DType::bf16).has_value());
  ASSERT_TRUE(model.add("head", {4}, DType::f32).has_value());
  ASSERT_TRUE(model.add("layers.0.experts.11.up", {2, 3}, DType::bf16).has_value());
  ASSERT_TRUE(model.add("layers.1.experts.0.up", {2, 4}, DType::bf16).has_value());
  ASSERT_TRUE(model.add("layers.x1.up", {1}, DType::bf16).has_value());
  const auto kinds = tensor_kinds(model);
  ASSERT_EQ(kinds.size(), 4u);
  EXPECT_EQ(kinds[0].pattern, "layers.N.experts.N.up");
  EXPECT_EQ(kinds[0].count, 2);
  EXPECT_EQ(kinds[0].bytes, 24);
  EXPECT_EQ(kinds[1].pattern, "head");
  EXPECT_EQ(kinds[2].shape, (Dims{2, 4}));
  EXPECT_EQ(kinds[3].pattern, "layers.x1.up");
}

TEST(TensorKinds, grouped_experts_and_virtual_stages_are_counted_but_names_with_digits_are_not) {
  EXPECT_EQ(pattern_of("model1.experts.linear_fc1.weight17"), "modelN.experts.linear_fc1.weightN");
  EXPECT_EQ(pattern_of("linear_fc2.bias3"), "linear_fc2.biasN");
  EXPECT_EQ(pattern_of("experts.3.w1.weight"), "experts.N.w1.weight");
  EXPECT_EQ(pattern_of("model.conv1d.weight"), "model.conv1d.weight");
}

TEST(TensorKinds, shapes_are_those_of_files) {
  ModelSpec model;
  ASSERT_TRUE(model.add("gate_up", {4, 8, 3, 2}, DType::bf16, {1U << 2}).has_value());
  EXPECT_EQ(tensor_kinds(model)[0].shape, (Dims{4, 8, 6}));
}

}  // namespace
}  // namespace reshard::cli
