// SPDX-License-Identifier: Apache-2.0
// Protects: what parse_json accepts is exactly UTF-8 JSON within the limits, and is kept unchanged.
#include "reshard/io/files/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

#include "reshard/io/files/utf8.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;

std::string error_of(std::string_view text, const JsonLimits& limits = {}) {
  const auto json = parse_json(text, limits);
  return json ? "no error" : json.error().message;
}

TEST(Json, numbers_and_order_survive_a_round_trip) {
  const std::string text =
      R"({"z": 1e-06, "a": [18446744073709551615, -9223372036854775808, 1.0], "é\n": null, "o": {}})";
  const auto json = parse_json(text);
  ASSERT_TRUE(json) << json.error().message;
  EXPECT_EQ(json->dump(), text);
  EXPECT_EQ(parse_json(json->dump(true))->dump(), text);
}

TEST(Json, integers_are_those_that_fit_in_64_bits) {
  const auto json = parse_json("[9223372036854775807, 9223372036854775808, 3.0, true, \"4\"]");
  ASSERT_TRUE(json);
  const auto& values = *json->array();
  EXPECT_EQ(values[0].integer(), INT64_MAX);
  for (std::size_t i = 1; i < values.size(); ++i) EXPECT_FALSE(values[i].integer()) << i;
}

TEST(Json, pretty_text_has_two_spaces_per_level) {
  EXPECT_EQ(parse_json(R"({"a":[1,2],"b":[]})")->dump(true),
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": []\n}");
}

TEST(Json, errors_name_the_byte_and_stay_on_one_line) {
  EXPECT_EQ(error_of("{\"a\": 1,}").substr(0, 18), "not JSON at byte 8");
  EXPECT_THAT(error_of("[1] 2"), HasSubstr("not JSON at byte 4"));
  EXPECT_THAT(error_of(""), HasSubstr("not JSON"));
  EXPECT_EQ(error_of("[\"\xff\"]"), "not UTF-8 at byte 2");
  EXPECT_EQ(error_of("{\n  \"a\": 1,\n  }").substr(0, 28), "not JSON at line 3, column 3");
  EXPECT_EQ(error_of("\n[\"\xff\"]"), "not UTF-8 at line 2, column 3");
  EXPECT_THAT(error_of("[1,\n"), HasSubstr("not JSON at line 2, column 1"));
  EXPECT_EQ(error_of(std::string_view("{}\0x", 4)), "not JSON at byte 2: a NUL byte");
  EXPECT_EQ(error_of("[\"a\nb\"]").find('\n'), std::string::npos);
  EXPECT_LT(error_of("\"" + std::string(5000, 'x')).size(), 300u);
}

TEST(Json, numbers_that_python_writes_survive_a_round_trip_where_they_are_allowed) {
  const std::string text =
      R"({"NaN": NaN, "a": [0.0, Infinity, -Infinity], "b\\\"": "-Infinity, NaN", "c": "NaN"})";
  const auto json = parse_json(text, {.non_finite = true});
  ASSERT_TRUE(json) << json.error().message;
  EXPECT_EQ(json->dump(), text);
  const auto& list = *json->find("a")->array();
  EXPECT_EQ(list[1].number(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(list[2].number(), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(*json->find("NaN")->number()));
  EXPECT_FALSE(list[1].integer());
  EXPECT_EQ(list[1].describe(), "Infinity");
  EXPECT_THAT(error_of(text), HasSubstr("not JSON at byte 8")) << "by default it is JSON";
}

TEST(Json, words_that_python_does_not_write_are_errors_where_its_numbers_are_allowed) {
  const JsonLimits python = {.non_finite = true};
  for (const char* text :
       {"[nan]", "[-NaN]", "[+Infinity]", "[Infinity1]", "[1Infinity]", "[NaNs]", "[NaN NaN]",
        "[inf]", "[- Infinity]", "\"NaN", "\"\\", "NaN\"a\"", "[1 NaN]"})
    EXPECT_THAT(error_of(text, python), HasSubstr("not JSON")) << text;
  EXPECT_EQ(error_of(R"({"a": 1, -Infinity: 2})", python),
            "not JSON at byte 9: -Infinity is no key");
  EXPECT_EQ(error_of("NaN", python), "no error");
}

TEST(Json, limits_hold) {
  const std::string deep = std::string(5, '[') + std::string(5, ']');
  EXPECT_EQ(error_of(deep, {.depth = 5}), "no error");
  EXPECT_EQ(error_of(deep, {.depth = 4}), "JSON nested deeper than 4 levels");
  EXPECT_EQ(error_of("[1,2,3]", {.values = 4}), "no error");
  EXPECT_EQ(error_of("[1,2,3]", {.values = 3}), "more than 3 JSON values");
  EXPECT_EQ(error_of("[1,2]", {.bytes = 4}), "5 bytes of JSON, more than the 4 allowed");
  EXPECT_THAT(error_of(std::string(1'000'000, '[')), HasSubstr("deeper than 64"));
}

TEST(Json, a_key_may_not_stand_twice_in_one_object) {
  EXPECT_EQ(error_of(R"({"a": {"b": 1}, "b": {"b": 2}})"), "no error");
  EXPECT_EQ(error_of(R"({"a": {"b": 1, "c": 0, "b": 1}})"),
            R"(key "b" appears twice in one object)");
  EXPECT_EQ(error_of(R"({"a": 1, "\u0061": 2})"), R"(key "a" appears twice in one object)");
}

RC_GTEST_PROP(Json, any_text_survives_quoting, ()) {
  static const std::vector<std::string> kPieces = {
      "a",      "\"", "\\",       "\n",           "\x01",
      "\x7f",   "/",  "\xc3\xa9", "\xe2\x80\xa8", "\xf0\x9f\x98\x80",
      "\\u0041"};
  std::string text;
  for (const auto& piece :
       *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(kPieces)))
    text += piece;
  const auto back = parse_json(json_quote(text));
  RC_ASSERT(back && back->string() != nullptr && *back->string() == text);
}

RC_GTEST_PROP(Json, numbers_of_python_stay_between_any_strings, ()) {
  static const std::vector<std::string> kValues = {
      "NaN", "Infinity", "-Infinity", "1",          "\"NaN\"",        "\"\\\\\"",     "\"\\\"NaN\"",
      "[]",  "null",     "[NaN]",     "\"[NaN, \"", "{\"NaN\": NaN}", "\"-Infinity\""};
  std::string text = "[";
  for (const auto& value :
       *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(kValues)))
    text += (text.size() > 1 ? ", " : "") + value;
  text += "]";
  const auto json = parse_json(text, {.non_finite = true});
  RC_ASSERT(json && json->dump() == text);
}

TEST(JsonMembers, are_those_of_the_whole_object_in_order) {
  for (const std::string text : {R"({})", R"({"a": 1, "b": {"a": 2, "c": []}, "": null})",
                                 R"({"b": [{"x": "y"}], "a": "b"})"}) {
    Json::Object members;
    const auto add = [&](std::string key, Json value) {
      members.push_back({std::move(key), std::move(value)});
    };
    ASSERT_TRUE(parse_json_members(text, {}, add));
    EXPECT_EQ(Json(std::move(members)).dump(), parse_json(text)->dump());
  }
}

TEST(JsonMembers, have_the_errors_of_the_whole_text) {
  for (const std::string text :
       {R"({"a": 1, "b": 2, "a": 3})", R"({"b": {"a": 1, "a": 2}})", R"({"a": 1)", R"({"a": 1} x)",
        R"({"a": [[[[1]]]]})", "{\"a\": \"\x80\"}", R"({"a": [1, 2, 3, 4, 5, 6, 7]})"}) {
    const JsonLimits limits{.values = 8, .depth = 4};
    const auto whole = parse_json(text, limits);
    const auto members = parse_json_members(text, limits, [](const std::string&, const Json&) {});
    ASSERT_FALSE(whole) << text;
    ASSERT_FALSE(members) << text;
    EXPECT_EQ(members.error().message, whole.error().message);
    EXPECT_EQ(members.error().code, Code::corrupt);
  }
  EXPECT_EQ(parse_json_members("[1]", {}, {}).error().message, "must be an object, is a list");
}

TEST(Utf8, overlong_forms_surrogates_and_cut_characters_are_refused) {
  EXPECT_FALSE(files::find_invalid_utf8(
      "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xed\x9f\xbf\xf4\x8f\xbf\xbf"));
  for (std::string_view bad :
       {"\x80", "\xc0\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xc3", "\xe2\x82", "\xf0\x9f\x98"})
    EXPECT_EQ(files::find_invalid_utf8("ab" + std::string(bad)), 2u) << json_quote(bad);
}

TEST(Utf8, cutting_keeps_characters_whole) {
  EXPECT_EQ(files::cut_utf8("a\xe2\x82\xac", 3), "a");
  EXPECT_EQ(files::cut_utf8("a\xe2\x82\xac", 4), "a\xe2\x82\xac");
  std::string cut_inside(99, 'a');
  cut_inside.append("\xe2\x82\xac").append(9, 'b');
  EXPECT_FALSE(files::find_invalid_utf8(in_quotes(cut_inside)));
}

}  // namespace
}  // namespace reshard
