// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "cli/commands.h"
#include "cli/json_report.h"
#include "cli/measure.h"
#include "cli/table.h"
#include "reshard/base/closest_name.h"
#include "reshard/io/card_file.h"
#include "reshard/io/files/json.h"

namespace reshard::cli {
namespace {

constexpr std::array kLayouts = {"fsdp", "vllm", "sglang", "megatron"};

const RuleSet::Card* card_of(const KnownClass& known, const char* layout) {
  const auto found =
      std::ranges::find(known.cards, card_framework(layout), &RuleSet::Card::framework);
  return found == known.cards.end() ? nullptr : &*found;
}

/// True for layouts that have code of their own for classes that all layouts know.
bool is_family(const KnownClass& known, std::string_view layout) {
  return known.has_family && layout != "vllm" && layout != "sglang";
}

std::string cell(const KnownClass& known, const char* layout) {
  if (is_family(known, layout)) return "family";
  const RuleSet::Card* card = card_of(known, layout);
  return card == nullptr ? "-" : "card " + card->release;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool is_meant(const KnownClass& known, const std::string& name) {
  const auto has = [&](const std::string& text) { return lower(text).find(name) != text.npos; };
  return has(known.name) || std::ranges::any_of(known.model_types, has);
}

std::string as_json(const std::vector<KnownClass>& classes) {
  Json::Array list;
  for (const KnownClass& known : classes) {
    Json::Object layouts;
    for (const char* layout : kLayouts) {
      const RuleSet::Card* card = card_of(known, layout);
      const bool family = is_family(known, layout);
      Json::Object how{{"known", Json(family || card != nullptr)}};
      if (card != nullptr && !family) {
        how.push_back({"card", Json(card->framework + " " + card->release)});
        how.push_back({"proof", Json(card->proof)});
      }
      layouts.push_back({layout, Json(std::move(how))});
    }
    Json::Array types;
    for (const std::string& type : known.model_types) types.emplace_back(type);
    list.emplace_back(Json::Object{{"class", Json(known.name)},
                                   {"model_types", Json(std::move(types))},
                                   {"family", Json(known.has_family)},
                                   {"layouts", Json(std::move(layouts))}});
  }
  return json_report("models", {{"models", Json(std::move(list))}});
}

/// How each layout of the class was proved.
std::string details(const KnownClass& known) {
  std::string out;
  for (const char* layout : kLayouts) {
    const RuleSet::Card* card = card_of(known, layout);
    const bool learned = card != nullptr && !card->proof.starts_with("written");
    if (is_family(known, layout))
      out += fmt::format("  {}: family, compared with the framework by reshard's tests\n", layout);
    else if (card != nullptr)
      out += fmt::format("  {}: card of {} {}, {}{}\n", layout, card->framework, card->release,
                         learned ? "which predicted " : "", card->proof);
    else
      out += fmt::format("  {}: not known\n", layout);
  }
  return out;
}

}  // namespace

Result<int> execute(const ModelsArguments& a) {
  std::vector<KnownClass> classes = RESHARD_TRY(known_classes());
  std::vector<std::string> names;
  for (const KnownClass& known : classes) names.push_back(known.name);
  std::erase_if(classes, [&](const KnownClass& k) { return !is_meant(k, lower(a.name)); });
  if (classes.empty())
    return fail(Code::not_found,
                fmt::format("no known class has '{}' in its name or model_type{}; hf takes the "
                            "checkpoints of every class",
                            a.name, did_you_mean(a.name, names)));
  if (a.json) {
    print(as_json(classes));
    return 0;
  }
  std::vector<Table::Column> columns = {{"class"}, {"model_type"}};
  for (const char* layout : kLayouts) columns.push_back({layout});
  Table table(columns);
  for (const KnownClass& known : classes) {
    std::vector<std::string> row = {known.name,
                                    fmt::format("{}", fmt::join(known.model_types, ", "))};
    for (const char* layout : kLayouts) row.push_back(cell(known, layout));
    table.add(std::move(row));
  }
  const Style style = Style::of_stdout();
  print(table.text(style, 0));
  if (!a.name.empty())
    for (const KnownClass& known : classes)
      print("\n" + style.title(known.name) + "\n" + details(known));
  return 0;
}

}  // namespace reshard::cli
