// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cli/json_report.h"
#include "cli/measure.h"
#include "cli/progress_bar.h"
#include "cli/table.h"
#include "cli/test_stop.h"
#include "reshard/base/number_text.h"
#include "reshard/convert/hooks.h"
#include "reshard/io/files/json.h"
#include "reshard/io/json/plan_json.h"

namespace reshard::cli {
namespace {

/// Lines of each list that the text form prints.
constexpr std::size_t kShown = 20;

Json side_json(const VerifiedCheckpoint& side) {
  return Json(Json::Object{{"path", Json(side.path)},
                           {"layout", Json(side.layout)},
                           {"tensors", Json(side.tensors)},
                           {"bytes", Json(side.bytes)},
                           {"seconds", json_number(side.seconds)}});
}

std::string verify_json(const VerifyReport& c) {
  Json::Array differing;
  for (const TensorDifference& d : c.differing)
    differing.emplace_back(
        Json::Object{{"tensor", Json(d.name)}, {"a", Json(d.a)}, {"b", Json(d.b)}});
  const double seconds = c.a.seconds + c.b.seconds;
  const Index bytes = c.a.bytes + c.b.bytes;
  return json_report(
      "verify",
      {{"equal", Json(c.equal())},
       {"same", Json(c.same)},
       {"converted", Json(c.converted)},
       {"left_out", Json(c.left_out)},
       {"ignored", json_list(c.ignored)},
       {"a", side_json(c.a)},
       {"b", side_json(c.b)},
       {"gb_per_s", json_number(seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0)},
       {"differing", Json(std::move(differing))},
       {"only_a", json_list(c.only_a)},
       {"only_b", json_list(c.only_b)},
       {"other_shapes", json_list(c.other_shapes)}});
}

void add_missing(Table& table, const std::vector<std::string>& names, bool in_a) {
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i)
    table.add({names[i], in_a ? "there" : "missing", in_a ? "missing" : "there"});
}

std::string verify_text(const VerifyReport& c) {
  const Style style = Style::of_stdout();
  Table sides({{""},
               {"checkpoint"},
               {"layout"},
               {"tensors", Table::Align::right},
               {"bytes read", Table::Align::right},
               {"at", Table::Align::right}});
  for (const auto* side : {&c.a, &c.b})
    sides.add({side == &c.a ? "A" : "B", side->path, side->layout, grouped(side->tensors),
               human_bytes(side->bytes), rate(side->bytes, side->seconds)});
  std::string text = sides.text(style);
  if (c.converted > 0)
    text += style.quiet(fmt::format("{} of A were compared as B stores them, in another dtype or "
                                    "through a value map",
                                    plural(c.converted, "tensor"))) +
            "\n";
  if (!c.ignored.empty())
    text += style.quiet(fmt::format("{} not compared, such as '{}'",
                                    plural(static_cast<Index>(c.ignored.size()), "tensor"),
                                    c.ignored.front())) +
            "\n";
  if (c.left_out > 0)
    text += style.quiet(fmt::format("{} of one side alone: scales of inputs, or columns in "
                                    "order, which layouts of ranks leave out",
                                    plural(c.left_out, "tensor"))) +
            "\n";
  if (c.equal())
    return text +
           style.good(fmt::format("the same: {} agree in every bit", plural(c.same, "tensor"))) +
           "\n";
  Table table({{"tensor"}, {"A"}, {"B"}});
  for (std::size_t i = 0; i < c.differing.size() && i < kShown; ++i)
    table.add({c.differing[i].name, c.differing[i].a, c.differing[i].b});
  add_missing(table, c.only_a, true);
  add_missing(table, c.only_b, false);
  if (!table.empty()) text += table.text(style);
  for (std::size_t i = 0; i < c.other_shapes.size() && i < kShown; ++i)
    text += "  " + c.other_shapes[i] + "\n";
  const auto shapes = c.other_shapes.empty()
                          ? ""
                          : fmt::format(", {} stored in another shape", c.other_shapes.size());
  return text +
         style.bad(fmt::format("not the same: {} differ, {} only in A, {} only in B, {} agree{}",
                               c.differing.size(), c.only_a.size(), c.only_b.size(), c.same,
                               shapes)) +
         "\n";
}

}  // namespace

Result<int> execute(const VerifyArguments& a) {
  catch_interrupts();
  ProgressBar bar;
  VerifyOptions options = a.options;
  options.progress = bar.progress();
  const auto report = RESHARD_TRY(verify_checkpoints(options, stop_for_test));
  print(a.json ? verify_json(report) : verify_text(report));
  return report.equal() ? kDone : kFailed;
}

}  // namespace reshard::cli
