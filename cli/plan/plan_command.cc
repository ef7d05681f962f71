// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/commands.h"
#include "cli/complain.h"
#include "cli/json_report.h"
#include "cli/measure.h"
#include "cli/plan/plan_prediction.h"
#include "cli/plan_text.h"
#include "reshard/base/hash.h"
#include "reshard/base/number_text.h"
#include "reshard/convert/conversion_routes.h"
#include "reshard/convert/layout_pair.h"
#include "reshard/io/cluster_file.h"
#include "reshard/io/json/plan_json.h"
#include "reshard/plan/print.h"
#include "reshard/plan/summary.h"
#include "reshard/simulate/cluster_places.h"

namespace reshard::cli {
namespace {

/// Peers that the text form lists at most.
constexpr std::size_t kPeersShown = 16;
/// Adding up more transfers takes seconds, so the command announces it.
constexpr Index kManyTransfers = 50'000'000;

std::string timing_line(const LayoutPair& pair, const char* last_phase, double last_seconds) {
  return fmt::format("planned in {}: layouts {}, plan {}, {} {}; peak memory {}; digest {}\n",
                     human_seconds(pair.layout_seconds + pair.planner_seconds + last_seconds),
                     human_seconds(pair.layout_seconds), human_seconds(pair.planner_seconds),
                     last_phase, human_seconds(last_seconds), human_bytes(peak_rss_bytes()),
                     hex(pair.planner->digest()));
}

struct Peer {
  Index sent = 0, received = 0, transfers = 0;
};

Table peers_table(const Planner& planner, const RankPlan& part, std::size_t& left_out) {
  std::map<Rank, Peer> peers;
  const auto bytes = [&](const Transfer& t) {
    return t.box.volume() * planner.element_bits(t.tensor) / 8;
  };
  for (const Transfer& t : part.sends) {
    peers[t.dst].sent += bytes(t);
    ++peers[t.dst].transfers;
  }
  for (const Transfer& t : part.recvs) {
    peers[t.src].received += bytes(t);
    ++peers[t.src].transfers;
  }
  std::vector<std::pair<Rank, Peer>> sorted(peers.begin(), peers.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second.sent + a.second.received > b.second.sent + b.second.received;
  });
  left_out = sorted.size() - std::min(sorted.size(), kPeersShown);
  sorted.resize(sorted.size() - left_out);
  Table table({{"peer"},
               {"sends it", Table::Align::right},
               {"receives", Table::Align::right},
               {"transfers", Table::Align::right}});
  for (const auto& [rank, peer] : sorted)
    table.add({fmt::format("rank {}", rank.value()), human_bytes(peer.sent),
               human_bytes(peer.received), grouped(peer.transfers)});
  return table;
}

/// Number of transfers to list.
std::size_t most_transfers(const PlanArguments& a) {
  return a.transfers < 0 ? std::size_t(-1) : static_cast<std::size_t>(a.transfers);
}

std::string rank_text(const Model& model, const LayoutPair& pair, const RankPlan& part,
                      const RankSummary& sum, const PlanArguments& a, double seconds) {
  const Style style = Style::of_stdout();
  const auto bytes_on = [&](const ModelLayout& layout) {
    return layout.ranks().contains(part.rank) ? human_bytes(local_bytes(layout, part.rank))
                                              : std::string("nothing");
  };
  Table facts({{""}, {"", Table::Align::right}, {""}});
  facts.add({"holds before", bytes_on(*pair.from.stored()), pair.from.stored()->name()});
  facts.add({"holds after", bytes_on(*pair.to.stored()), pair.to.stored()->name()});
  facts.add({"sends", human_bytes(sum.bytes_sent), "to " + plural(sum.peers_to, "rank")});
  facts.add(
      {"receives", human_bytes(sum.bytes_received), "from " + plural(sum.peers_from, "rank")});
  facts.add({"copies locally", human_bytes(sum.bytes_local), ""});
  facts.add({"transfers", grouped(sum.transfers), ""});
  std::string text = style.title(model_line(model)) + "\n";
  text +=
      style.title(fmt::format("rank {} of {}", part.rank.value(), pair.planner->ranks().size())) +
      "\n" + facts.text(style);
  std::size_t left_out = 0;
  if (const Table peers = peers_table(*pair.planner, part, left_out); !peers.empty()) {
    text += peers.text(style);
    if (left_out > 0) text += fmt::format("  and {} more with less\n", left_out);
  }
  for (const std::string& note : pair.notes) text += style.quiet("  " + note) + "\n";
  if (a.transfers != 0) text += to_text(*pair.planner, part, most_transfers(a));
  return text + style.quiet(timing_line(pair, "rank's part", seconds));
}

void add_notes(Json::Object& object, const LayoutPair& pair) {
  if (pair.notes.empty()) return;
  Json::Array notes;
  for (const std::string& note : pair.notes) notes.emplace_back(note);
  object.push_back({"notes", Json(std::move(notes))});
}

Result<int> plan_rank(const Model& model, const LayoutPair& pair, const PlanArguments& a) {
  const Rank rank(static_cast<Rank::rep>(*a.rank));
  if (!pair.planner->ranks().contains(rank))
    return fail(Code::invalid_argument,
                fmt::format("rank {} is in neither layout; their ranks are {}", rank.value(),
                            to_string(pair.planner->ranks())));
  const Stopwatch watch;
  const RankPlan part = pair.planner->rank_plan(rank);
  const double seconds = watch.seconds();
  const RankSummary sum = summarise_rank(*pair.planner, part);
  const auto predicted = RESHARD_TRY(PlanPrediction::of(a, *pair.planner, nullptr));
  if (!a.json) {
    print(rank_text(model, pair, part, sum, a, seconds) + (predicted ? predicted->text(rank) : ""));
    return 0;
  }
  auto object = plan_object(
      sum, *pair.planner, {pair.layout_seconds + pair.planner_seconds + seconds, peak_rss_bytes()});
  if (a.transfers != 0)
    object.push_back({"list", Json(transfer_list(*pair.planner, part, most_transfers(a)))});
  add_notes(object, pair);
  if (predicted) predicted->add_to(object);
  print(json_report("plan", std::move(object)));
  return 0;
}

/// Announces work of more than some seconds.
void announce(const Planner& planner) {
  const Index transfers = planner.min_transfers();
  if (transfers < kManyTransfers) return;
  complain(
      fmt::format("adding up {} transfers of {}, which takes a while; --rank R plans one alone",
                  human_count(transfers), plural(planner.ranks().size(), "rank")));
}

Result<int> plan_all(const Model& model, const LayoutPair& pair, const PlanArguments& a) {
  announce(*pair.planner);
  const Stopwatch watch;
  const PlanSummary sum = summarise(*pair.planner, num_threads(a.threads), !a.cluster.empty());
  const double seconds = watch.seconds();
  const auto predicted = RESHARD_TRY(PlanPrediction::of(a, *pair.planner, &sum));
  std::vector<ConversionRow> rows;
  if (pair.quantises()) rows = RESHARD_TRY(conversion_rows(pair, ConversionSide::receiver));
  if (a.json) {
    const PlanCost cost{pair.layout_seconds + pair.planner_seconds + seconds, peak_rss_bytes()};
    auto object = plan_object(sum, *pair.planner, cost);
    if (pair.quantises()) object.push_back({"routes", conversion_json(rows)});
    add_notes(object, pair);
    if (predicted) predicted->add_to(object);
    print(json_report("plan", std::move(object)));
    return 0;
  }
  const Style style = Style::of_stdout();
  print(style.title(model_line(model)) + "\n" + sides_table(pair).text(style) + "\n" +
        summary_table(sum, pair.planner->relays()).text(style) +
        (rows.empty() ? "" : conversion_table(rows).text(style)) + notes_text(pair, style) +
        style.quiet(timing_line(pair, "all ranks", seconds)) +
        (predicted ? predicted->text() : ""));
  return 0;
}

}  // namespace

Result<int> execute(const PlanArguments& a) {
  const Model model = RESHARD_TRY(
      open_model(a.model, {.layers = a.layers, .ignore = a.ignore, .prefix = a.prefix}));
  PairOptions options{.only = a.only};
  if (!a.cluster.empty())
    options.relays = relays_on(RESHARD_TRY(read_cluster(a.cluster)), a.routes);
  const LayoutPair pair = RESHARD_TRY(make_layout_pair(model, a.from, a.to, options));
  if (a.dot) {
    print(to_dot(*pair.planner));
    return 0;
  }
  return a.rank ? plan_rank(model, pair, a) : plan_all(model, pair, a);
}

}  // namespace reshard::cli
