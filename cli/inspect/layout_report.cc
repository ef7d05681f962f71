// SPDX-License-Identifier: Apache-2.0
#include "cli/inspect/layout_report.h"

#include <fmt/format.h>

#include "reshard/base/number_text.h"

namespace reshard::cli {

std::string explanation_text(const ModelLayout& layout, const SlotFiles& files,
                             const Style& style) {
  const RankBytes bytes = bytes_per_rank(layout);
  Table table({{"tensors"},
               {"count", Table::Align::right},
               {"local tensor"},
               {"shape"},
               {"ranks", Table::Align::right},
               {"how"}});
  for (const KindInLayout& kind : explain_layout(layout, files))
    table.add({kind.pattern, grouped(kind.count), kind.local.empty() ? "-" : kind.local,
               kind.local.empty() ? "-" : to_string(kind.shape), grouped(kind.ranks), kind.how});
  const std::string up_to =
      bytes.most > bytes.least ? fmt::format(" to {}", human_bytes(bytes.most)) : "";
  return "\n" +
         style.title(fmt::format("{}: {}, {} local tensors in all, {}{} per rank", layout.name(),
                                 plural(layout.ranks().size(), "rank"), grouped(layout.num_slots()),
                                 human_bytes(bytes.least), up_to)) +
         "\n" + table.text(style);
}

Json explanation_json(const ModelLayout& layout, const SlotFiles& files) {
  const RankBytes bytes = bytes_per_rank(layout);
  Json::Array kinds;
  for (const KindInLayout& kind : explain_layout(layout, files)) {
    Json::Array shape;
    for (Index size : kind.shape) shape.emplace_back(size);
    kinds.emplace_back(Json::Object{{"pattern", Json(kind.pattern)},
                                    {"count", Json(kind.count)},
                                    {"local", kind.local.empty() ? Json() : Json(kind.local)},
                                    {"shape", Json(std::move(shape))},
                                    {"ranks", Json(kind.ranks)},
                                    {"how", Json(kind.how)}});
  }
  return Json(Json::Object{{"layout", Json(layout.name())},
                           {"ranks", Json(layout.ranks().size())},
                           {"local_tensors", Json(layout.num_slots())},
                           {"min_bytes", Json(bytes.least)},
                           {"max_bytes", Json(bytes.most)},
                           {"kinds", Json(std::move(kinds))}});
}

}  // namespace reshard::cli
