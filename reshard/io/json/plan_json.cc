// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/json/plan_json.h"

#include <fmt/format.h>

#include "reshard/base/hash.h"

namespace reshard {
namespace {

Index bytes_of(const Planner& planner, const Transfer& t) {
  return t.box.volume() * planner.element_bits(t.tensor) / 8;
}

Json conversions_json(const Planner& planner) {
  Json::Array list;
  for (const ConversionUse& use : conversions_of(planner))
    list.emplace_back(Json::Object{{"from", Json(to_string(use.conversion.from))},
                                   {"to", Json(to_string(use.conversion.to))},
                                   {"tensors", Json(use.tensors)},
                                   {"elements", Json(use.elements)},
                                   {"loses_precision", Json(use.loses_precision)},
                                   {"example", Json(use.example)}});
  return Json(std::move(list));
}

Json omitted_json(const Planner& planner) {
  Json::Array list;
  for (const std::string& name : omitted_by(planner)) list.emplace_back(name);
  return Json(std::move(list));
}

/// Adds the number of peers and of bytes in a list sorted by peer.
template <class Peer>
void add_up(const Planner& planner, const std::vector<Transfer>& sorted, Peer&& peer, Index& peers,
            Index& bytes) {
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (i == 0 || peer(sorted[i]) != peer(sorted[i - 1])) ++peers;
    bytes += bytes_of(planner, sorted[i]);
  }
}

}  // namespace

RankSummary summarise_rank(const Planner& planner, const RankPlan& part) {
  RankSummary s;
  s.rank = part.rank;
  add_up(planner, part.sends, [](const Transfer& t) { return t.dst; }, s.peers_to, s.bytes_sent);
  add_up(
      planner, part.recvs, [](const Transfer& t) { return t.src; }, s.peers_from, s.bytes_received);
  for (const Transfer& t : part.locals) s.bytes_local += bytes_of(planner, t);
  s.transfers = static_cast<Index>(part.sends.size() + part.recvs.size() + part.locals.size());
  return s;
}

Json json_number(double value) { return Json(Json::Number{fmt::format("{:.9g}", value)}); }

Json::Object plan_object(const PlanSummary& plan, const Planner& planner, const PlanCost& cost) {
  Json::Object object{{"plan_seconds", json_number(cost.seconds)},
                      {"ranks", Json(plan.ranks)},
                      {"bytes_total", Json(plan.bytes_total)},
                      {"bytes_wire", Json(plan.bytes_wire)},
                      {"bytes_local", Json(plan.bytes_local)},
                      {"messages", Json(plan.messages)},
                      {"transfers", Json(plan.transfers)},
                      {"max_egress_bytes", Json(plan.max_egress_bytes)},
                      {"max_ingress_bytes", Json(plan.max_ingress_bytes)},
                      {"optimal_max_egress_bytes", Json(plan.optimal_max_egress_bytes)},
                      {"digest", Json(hex(planner.digest()))},
                      {"peak_rss_bytes", Json(cost.peak_rss_bytes)},
                      {"conversions", conversions_json(planner)},
                      {"omitted", omitted_json(planner)}};
  if (const auto& relays = planner.relays())
    object.push_back({"relays", Json(Json::Object{{"used", Json(relays->used)},
                                                  {"direct_bytes", Json(relays->direct_bytes)},
                                                  {"busiest_bytes", Json(relays->busiest_bytes)},
                                                  {"least_bytes", Json(relays->least_bytes)},
                                                  {"hops", Json(Index{relays->hops})}})});
  return object;
}

Json::Object plan_object(const RankSummary& part, const Planner& planner, const PlanCost& cost) {
  PlanSummary keys;
  keys.ranks = planner.ranks().size();
  keys.bytes_total = part.bytes_received + part.bytes_local;
  keys.bytes_wire = part.bytes_received;
  keys.bytes_local = part.bytes_local;
  keys.messages = part.peers_to + part.peers_from;
  keys.transfers = part.transfers;
  keys.max_egress_bytes = part.bytes_sent;
  keys.max_ingress_bytes = part.bytes_received;
  keys.optimal_max_egress_bytes = planner.optimal_max_egress_bytes();
  Json::Object object = plan_object(keys, planner, cost);
  object.insert(object.begin(), {"rank", Json(Index{part.rank.value()})});
  return object;
}

Json::Array transfer_list(const Planner& planner, const RankPlan& part, std::size_t most) {
  const ModelSpec& model = planner.source().model();
  Json::Array list;
  for (const auto* transfers : {&part.locals, &part.recvs, &part.sends}) {
    for (std::size_t i = 0; i < transfers->size() && i < most; ++i) {
      const Transfer& t = (*transfers)[i];
      Json::Object object{{"tensor", Json(model[t.tensor].name)},
                          {"from", Json(Index{t.src.value()})},
                          {"to", Json(Index{t.dst.value()})},
                          {"box", Json(to_string(t.box))},
                          {"bytes", Json(bytes_of(planner, t))}};
      if (t.relay.relayed()) object.push_back({"hop", Json(Index{t.relay.hop})});
      list.emplace_back(std::move(object));
    }
  }
  return list;
}

}  // namespace reshard
