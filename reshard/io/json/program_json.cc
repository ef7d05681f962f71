// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/json/program_json.h"

#include <algorithm>

#include "reshard/base/hash.h"
#include "reshard/program/form/serialise.h"

namespace reshard {
namespace {

Json text(std::string_view s) { return Json(std::string(s)); }

std::string_view name(ProgramBuffer::Kind kind) {
  switch (kind) {
    case ProgramBuffer::Kind::staging: return "staging";
    case ProgramBuffer::Kind::scratch: return "scratch";
    case ProgramBuffer::Kind::source: return "source";
    case ProgramBuffer::Kind::target: return "target";
  }
  return "staging";
}

Json span_json(const Program& p, const ProgramLayouts& layouts, const ProgramSpan& at) {
  const ProgramBuffer& b = p.buffers[at.buffer.index()];
  Json::Object object{{"memory", text(name(b.kind))}};
  if (b.kind == ProgramBuffer::Kind::source || b.kind == ProgramBuffer::Kind::target) {
    object.push_back({"rank", Json(Index{b.rank.value()})});
    object.push_back({"tensor", Json(name_of(p, layouts, at.buffer))});
  }
  object.push_back({"begin", Json(at.begin)});
  object.push_back({"end", Json(at.end)});
  return Json(std::move(object));
}

Json action_json(const Program& p, const ProgramLayouts& layouts, const ProgramAction& a) {
  Json::Object object{{"does", text(name(a.kind))}, {"bytes", Json(a.bytes)}};
  if (a.kind == ProgramAction::Kind::send || a.kind == ProgramAction::Kind::receive)
    object.push_back({"message", Json(a.message)});
  if (a.peer.value() >= 0) object.push_back({"peer", Json(Index{a.peer.value()})});
  if (a.from) object.push_back({"from", span_json(p, layouts, *a.from)});
  if (a.to) object.push_back({"to", span_json(p, layouts, *a.to)});
  if (a.matrix != nullptr) {
    object.push_back({"format", Json(to_string(a.matrix->format))});
    object.push_back({"rows", Json(Json::Array{Json(a.matrix->begin), Json(a.matrix->end)})});
  }
  if (a.conversion)
    object.push_back({"conversion", Json(Json::Array{Json(to_string(a.conversion->from)),
                                                     Json(to_string(a.conversion->to))})});
  return Json(std::move(object));
}

Json step_json(const Program& p, const ProgramLayouts& layouts, StepId id) {
  const ProgramStep& step = p.steps[id.index()];
  Json::Array waits, actions;
  for (const StepId w : p.waits_of(id)) waits.emplace_back(Index{w.value()});
  for (const ProgramAction& a : actions_of(p, step)) actions.push_back(action_json(p, layouts, a));
  return Json(Json::Object{{"step", Json(Index{id.value()})},
                           {"kind", text(name(step.kind))},
                           {"bytes", Json(step.bytes)},
                           {"waits_for", Json(std::move(waits))},
                           {"actions", Json(std::move(actions))}});
}

Json peers_json(const ProgramTotals& totals) {
  Json::Array list;
  for (const ProgramTotals::Peer& peer : totals.peers)
    list.emplace_back(Json::Object{{"rank", Json(Index{peer.peer.value()})},
                                   {"bytes_sent", Json(peer.sent)},
                                   {"bytes_received", Json(peer.received)},
                                   {"bytes_read", Json(peer.read)},
                                   {"messages", Json(peer.messages)}});
  return Json(std::move(list));
}

Json work_json(const ProgramTotals& totals) {
  Json::Array list;
  for (const ProgramTotals::Work& work : totals.work)
    list.emplace_back(Json::Object{{"kind", text(name(work.kind))},
                                   {"what", Json(work.what)},
                                   {"steps", Json(work.steps)},
                                   {"bytes", Json(work.bytes)},
                                   {"first", Json(Index{work.first.value()})},
                                   {"last", Json(Index{work.last.value()})}});
  return Json(std::move(list));
}

}  // namespace

Json::Object program_object(const Program& p, const ProgramLayouts& layouts,
                            std::size_t most_steps) {
  const ProgramTotals t = totals_of(p);
  const auto bytes = serialise(p);
  Json::Object object{{"rank", Json(Index{p.rank.value()})},
                      {"digest", Json(hex(digest_of_serialised(bytes)))},
                      {"plan_digest", Json(hex(p.plan_digest))},
                      {"serialised_bytes", Json(static_cast<Index>(bytes.size()))},
                      {"steps", Json(static_cast<Index>(p.steps.size()))},
                      {"tiles", Json(t.tiles)},
                      {"exchanges", Json(t.exchanges)},
                      {"barriers", Json(t.barriers)},
                      {"messages", Json(t.messages)},
                      {"bytes_sent", Json(t.sent)},
                      {"bytes_forwarded", Json(t.forwarded)},
                      {"bytes_received", Json(t.received)},
                      {"bytes_read", Json(t.read)},
                      {"bytes_copied", Json(t.copied)},
                      {"bytes_packed", Json(t.packed)},
                      {"bytes_unpacked", Json(t.unpacked)},
                      {"bytes_quantised", Json(t.quantised)},
                      {"bytes_dequantised", Json(t.dequantised)},
                      {"bytes_delivered", Json(p.delivered())},
                      {"staging_bytes", Json(p.staging_bytes)},
                      {"scratch_bytes", Json(p.scratch_bytes)},
                      {"peers", peers_json(t)},
                      {"work", work_json(t)}};
  Json::Array list;
  for (std::uint32_t s = 0; s < p.steps.size() && s < most_steps; ++s)
    list.push_back(step_json(p, layouts, StepId(s)));
  if (most_steps > 0) object.push_back({"list", Json(std::move(list))});
  return object;
}

}  // namespace reshard
