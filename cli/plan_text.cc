// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_text.h"

#include <fmt/format.h>

#include "reshard/base/number_text.h"
#include "reshard/convert/inspect/explain_layout.h"
#include "reshard/plan/conversions.h"

namespace reshard::cli {
namespace {

void add_side(Table& table, const char* side, const ModelLayout& layout) {
  const auto bytes = bytes_per_rank(layout);
  table.add({side, layout.name(), plural(layout.ranks().size(), "rank"), to_string(layout.ranks()),
             bytes.least == bytes.most ? human_bytes(bytes.most) + " each"
                                       : fmt::format("{} to {} each", human_bytes(bytes.least),
                                                     human_bytes(bytes.most))});
}

std::string percent(Index part, Index whole) {
  if (whole == 0) return "";
  return fmt::format("{:.1f} %", 100 * static_cast<double>(part) / static_cast<double>(whole));
}

/// Follows the line of a model whose checkpoint has tensors that the model lacks.
std::string left_out(const Model& model) {
  return model.left_out.empty() ? "" : fmt::format("; {}", left_out_text(model.left_out));
}

void add_routes(Table& table, const RelaySummary& relays) {
  if (relays.direct_bytes == 0) {
    table.add({"routes", "direct", "no byte needs a network interface"});
    return;
  }
  table.add({"routes", relays.used ? "relayed" : "direct",
             relays.used
                 ? fmt::format("{} one after another at most; direct, the busiest network "
                               "interface would carry {}",
                               plural(relays.hops, "send"), human_bytes(relays.direct_bytes))
                 : std::string("relays would not gain enough")});
  table.add({"busiest interface", human_bytes(relays.busiest_bytes),
             fmt::format("{} the least possible of any route, {}",
                         ratio(relays.busiest_bytes, relays.least_bytes),
                         human_bytes(relays.least_bytes))});
}

}  // namespace

std::string left_out_text(const std::vector<std::string>& names) {
  return fmt::format("{} of the checkpoint left out, such as '{}'",
                     plural(static_cast<Index>(names.size()), "tensor"), names.front());
}

std::string model_line(const Model& model) {
  Index parameters = 0;
  for (const CanonicalTensor& t : model.tensors->tensors()) parameters += volume(t.shape);
  const std::string layers =
      model.config ? fmt::format("{}, ", plural(model.config->num_hidden_layers, "layer")) : "";
  const std::string plain =
      model.config && !model.config->quantization.empty()
          ? fmt::format(" as {} (its checkpoint is in {})", name(model.config->dtype),
                        in_quotes(model.config->quantization))
          : "";
  return fmt::format("{}: {}{} parameters in {}, {}{}{}", model.name, layers,
                     human_count(parameters), plural(model.tensors->size(), "tensor"),
                     human_bytes(model.tensors->bytes()), plain, left_out(model));
}

Table sides_table(const LayoutPair& pair) {
  Table table({{""}, {""}, {"", Table::Align::right}, {""}, {""}});
  add_side(table, "from", *pair.from.stored());
  add_side(table, "to", *pair.to.stored());
  return table;
}

std::string notes_text(const LayoutPair& pair, const Style& style) {
  const Planner& planner = *pair.planner;
  std::string text;
  for (const std::string& note : pair.notes) text += style.quiet("  " + note) + "\n";
  for (const ConversionUse& use : conversions_of(planner))
    text += style.quiet("  " + to_string(use)) + "\n";
  const auto omitted = omitted_by(planner);
  if (!omitted.empty())
    text += style.quiet(fmt::format("  leaves out {}, which {} does not hold, such as '{}'",
                                    plural(static_cast<Index>(omitted.size()), "tensor"),
                                    planner.target().name(), omitted[0])) +
            "\n";
  return text;
}

Table summary_table(const PlanSummary& plan, const std::optional<RelaySummary>& relays) {
  Table table({{""}, {"", Table::Align::right}, {""}});
  table.add({"bytes delivered", human_bytes(plan.bytes_total), ""});
  table.add(
      {"  on the wire", human_bytes(plan.bytes_wire), percent(plan.bytes_wire, plan.bytes_total)});
  table.add(
      {"  local", human_bytes(plan.bytes_local), percent(plan.bytes_local, plan.bytes_total)});
  table.add({"messages", grouped(plan.messages), ""});
  table.add({"transfers", grouped(plan.transfers), ""});
  if (plan.bytes_wire == 0) return table;
  // The bound is that of plans in which sources alone send.
  const bool relayed = relays && relays->used;
  std::string sender = fmt::format("rank {}", plan.busiest_sender.value());
  if (!relayed)
    sender += fmt::format("; {} the least possible, {}",
                          ratio(plan.max_egress_bytes, plan.optimal_max_egress_bytes),
                          human_bytes(plan.optimal_max_egress_bytes));
  table.add({"busiest sender", human_bytes(plan.max_egress_bytes), sender});
  table.add({"busiest receiver", human_bytes(plan.max_ingress_bytes),
             fmt::format("rank {}", plan.busiest_receiver.value())});
  if (relays) add_routes(table, *relays);
  return table;
}

Table conversion_table(const std::vector<ConversionRow>& rows) {
  Table table({{""},
               {"tensors", Table::Align::right},
               {"from", Table::Align::right},
               {"to", Table::Align::right},
               {"such as"}});
  for (const ConversionRow& row : rows)
    table.add({row.how, grouped(row.tensors), human_bytes(row.bytes_from),
               human_bytes(row.bytes_to), row.example});
  return table;
}

Json conversion_json(const std::vector<ConversionRow>& rows) {
  Json::Array list;
  for (const ConversionRow& row : rows)
    list.emplace_back(Json::Object{{"route", Json(row.route)},
                                   {"tensors", Json(row.tensors)},
                                   {"bytes_from", Json(row.bytes_from)},
                                   {"bytes_to", Json(row.bytes_to)},
                                   {"example", Json(row.example)}});
  return Json(std::move(list));
}

}  // namespace reshard::cli
