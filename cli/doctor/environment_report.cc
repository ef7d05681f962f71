// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/environment_report.h"

#include <fmt/format.h>

#include <cstdlib>
#include <optional>
#include <vector>

#include "cli/doctor/environment.h"
#include "cli/json_report.h"

namespace reshard::cli::doctor {
namespace {

constexpr int kNameColumns = 24, kColumns = 110;

std::optional<std::string> value_of(const Variable& v) {
  const char* const value = std::getenv(std::string(v.name).c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

std::vector<std::string> split(std::string_view choices) {
  constexpr std::string_view kBetween = ", ";
  std::vector<std::string> out;
  while (!choices.empty()) {
    const std::size_t end = std::min(choices.find(kBetween), choices.size());
    out.emplace_back(choices.substr(0, end));
    choices.remove_prefix(std::min(choices.size(), end + kBetween.size()));
  }
  return out;
}

/// For a line of a terminal.
std::string without_controls(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return text;
}

std::string variable_text(const Variable& v, const Style& style) {
  constexpr int kIndent = kNameColumns + 4;
  const auto value = value_of(v);
  std::string help(v.help);
  if (!v.choices.empty()) help += fmt::format("; one of {}", v.choices);
  const std::string name = fmt::format("{:<{}}", v.name, kNameColumns);
  std::string out = fmt::format("{} {}  {}\n", value ? "*" : " ", value ? style.good(name) : name,
                                wrapped(help, kColumns - kIndent, kIndent));
  if (value) out += fmt::format("{:{}}= {}\n", "", kIndent, style.quiet(without_controls(*value)));
  return out;
}

}  // namespace

std::string environment_text(const Style& style) {
  std::string out, kind;
  int set = 0;
  for (const Variable& v : environment_variables()) {
    if (v.of == Variable::Of::internal) continue;
    if (name(v.of) != kind) {
      kind = name(v.of);
      out += style.title(kind) + "\n";
    }
    set += value_of(v).has_value();
    out += variable_text(v, style);
  }
  return out + fmt::format("* set here: {}\n", set);
}

std::string environment_json() {
  Json::Array list;
  for (const Variable& v : environment_variables()) {
    if (v.of == Variable::Of::internal) continue;
    const auto value = value_of(v);
    list.emplace_back(Json::Object{{"name", Json(std::string(v.name))},
                                   {"kind", Json(std::string(name(v.of)))},
                                   {"meaning", Json(std::string(v.help))},
                                   {"choices", json_list(split(v.choices))},
                                   {"set", Json(value.has_value())},
                                   {"value", value ? Json(*value) : Json()}});
  }
  return json_report("environment", {{"variables", Json(std::move(list))}});
}

}  // namespace reshard::cli::doctor
