// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/form/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reshard/base/number_text.h"

namespace reshard {
namespace {

using Kind = ProgramAction::Kind;
using Memory = ProgramBuffer::Kind;

/// Peers and formats that a line names.
constexpr std::size_t kNamed = 4;

/// Sums of sizes that a file gave may be larger than any memory.
void add(Index& sum, Index bytes) {
  if (__builtin_add_overflow(sum, bytes, &sum)) sum = INT64_MAX;
}

/// The bytes between the first and the last that the loops of a copy reach.
ProgramSpan span_of(const StridedCopy& c, BufferId buffer, Index offset, Index run,
                    Index StridedCopy::Loop::* stride) {
  ProgramSpan span{buffer, offset, offset + run};
  for (int i = 0; i < c.num_loops; ++i) {
    const auto& loop = c.loops[static_cast<std::size_t>(i)];
    const Index last = (loop.count - 1) * (loop.*stride);
    (last < 0 ? span.begin : span.end) += last;
  }
  return span;
}

ProgramSpan source_of(const ProgramPiece& p) {
  return span_of(p.copy, p.src, p.copy.src_offset, p.copy.source_bytes(p.copy.run_bytes),
                 &StridedCopy::Loop::src_stride);
}

ProgramSpan target_of(const ProgramPiece& p) {
  return span_of(p.copy, p.dst, p.copy.dst_offset, p.copy.run_bytes,
                 &StridedCopy::Loop::dst_stride);
}

void extend(ProgramSpan& span, const ProgramSpan& by) {
  span.begin = std::min(span.begin, by.begin);
  span.end = std::max(span.end, by.end);
}

ProgramAction action_of(const Program& program, const ProgramPiece& piece) {
  const ProgramBuffer& src = program.buffers[piece.src.index()];
  const ProgramBuffer& dst = program.buffers[piece.dst.index()];
  const Rank me = program.rank.value() < 0 && dst.kind == Memory::target ? dst.rank : program.rank;
  ProgramAction out{
      .bytes = piece.copy.bytes(), .from = source_of(piece), .to = target_of(piece), .pieces = 1};
  if (src.kind == Memory::source && src.rank != me) {
    out.kind = Kind::read;
    out.peer = src.rank;
  } else if (src.kind == Memory::staging || src.kind == Memory::scratch) {
    out.kind = Kind::unpack;
  } else {
    out.kind = dst.kind == Memory::target ? Kind::copy : Kind::pack;
  }
  if (piece.conversion.converts()) out.conversion = piece.conversion;
  return out;
}

void add_pieces(const Program& program, const ProgramOp& op, std::vector<ProgramAction>& out) {
  for (const ProgramPiece& piece : program.pieces_of(op)) {
    ProgramAction action = action_of(program, piece);
    const auto same = std::ranges::find_if(out, [&](const ProgramAction& a) {
      return a.kind == action.kind && a.from && a.to && a.from->buffer == piece.src &&
             a.to->buffer == piece.dst && a.conversion == action.conversion;
    });
    if (same == out.end()) {
      out.push_back(std::move(action));
      continue;
    }
    add(same->bytes, action.bytes);
    extend(*same->from, *action.from);
    extend(*same->to, *action.to);
    ++same->pieces;
  }
}

ProgramSpan rows_at(const Place& at, Index rows, Index stride, Index row) {
  return {at.buffer, at.offset, at.offset + (rows == 0 ? 0 : (rows - 1) * stride + row)};
}

ProgramAction action_of(ProgramOp::Kind kind, const ProgramMatrix& m) {
  const Index rows = m.end - m.begin;
  const Index row = m.cols * bits(m.values_dtype) / 8;
  const ProgramSpan values = rows_at(m.values, rows, m.values_row, row);
  const ProgramSpan data = rows_at(m.data, rows, m.data_row, m.cols * bits(m.format.data) / 8);
  ProgramAction out{.bytes = rows * row, .from = values, .to = data, .matrix = &m};
  switch (kind) {
    case ProgramOp::Kind::quantise: out.kind = Kind::quantise; break;
    case ProgramOp::Kind::dequantise:
      out.kind = Kind::dequantise;
      std::swap(out.from, out.to);
      break;
    default:
      out.kind = Kind::amax;
      out.to = ProgramSpan{m.amax.buffer, m.amax.offset, m.amax.offset + 4};
  }
  return out;
}

void add_op(const Program& program, const ProgramOp& op, std::vector<ProgramAction>& out) {
  switch (op.kind) {
    case ProgramOp::Kind::clear:
      for (std::uint32_t i = op.first; i < op.end; ++i) {
        const ProgramRange& r = program.ranges[i];
        out.push_back({.kind = Kind::clear,
                       .bytes = r.bytes,
                       .to = ProgramSpan{r.at.buffer, r.at.offset, r.at.offset + r.bytes}});
      }
      return;
    case ProgramOp::Kind::max:
      for (std::uint32_t i = op.first; i < op.end; ++i) {
        const ProgramMaximum& m = program.maxima[i];
        out.push_back(
            {.kind = Kind::max,
             .bytes = 4,
             .from = ProgramSpan{m.from.buffer, m.from.offset, m.from.offset + 4 * m.count},
             .to = ProgramSpan{m.to.buffer, m.to.offset, m.to.offset + 4}});
      }
      return;
    case ProgramOp::Kind::amax:
    case ProgramOp::Kind::quantise:
    case ProgramOp::Kind::dequantise:
      for (std::uint32_t i = op.first; i < op.end; ++i)
        out.push_back(action_of(op.kind, program.matrices[i]));
      return;
    default: add_pieces(program, op, out);
  }
}

/// "rank 3", "ranks 3, 4, 5, 6 and 2 more".
std::string ranks_text(const std::vector<Rank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < kNamed; ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i].value());
  if (ranks.size() > kNamed) text += fmt::format(" and {} more", ranks.size() - kNamed);
  return text;
}

/// "reads from", before the ranks; or all of it where none is named.
std::string verb(Kind kind) {
  switch (kind) {
    case Kind::read: return "reads the memory of";
    case Kind::copy: return "copies into the target";
    case Kind::pack: return "packs";
    case Kind::unpack: return "unpacks";
    case Kind::clear: return "writes zeros";
    case Kind::amax: return "finds largest magnitudes";
    case Kind::max: return "combines largest magnitudes";
    case Kind::quantise: return "quantises to";
    case Kind::dequantise: return "dequantises from";
    case Kind::send: return "sends to";
    case Kind::receive: return "receives from";
    case Kind::forward: return "forwards to";
  }
  return "";
}

std::string matrix_rows(const ProgramMatrix& m) {
  return fmt::format("rows {}..{} of {} x {}", m.begin, m.end, m.rows, m.cols);
}

}  // namespace

std::string_view name(ProgramAction::Kind kind) {
  switch (kind) {
    case Kind::read: return "read";
    case Kind::copy: return "copy";
    case Kind::pack: return "pack";
    case Kind::unpack: return "unpack";
    case Kind::clear: return "clear";
    case Kind::amax: return "amax";
    case Kind::max: return "max";
    case Kind::quantise: return "quantise";
    case Kind::dequantise: return "dequantise";
    case Kind::send: return "send";
    case Kind::receive: return "receive";
    case Kind::forward: return "forward";
  }
  return "copy";
}

std::string_view name(ProgramStep::Kind kind) {
  switch (kind) {
    case ProgramStep::Kind::tile: return "tile";
    case ProgramStep::Kind::exchange: return "exchange";
    case ProgramStep::Kind::barrier: return "barrier";
  }
  return "tile";
}

std::vector<ProgramAction> actions_of(const Program& program, const ProgramStep& step) {
  std::vector<ProgramAction> out;
  if (step.kind == ProgramStep::Kind::tile)
    for (const ProgramOp& op : program.ops_of(step)) add_op(program, op, out);
  if (step.kind != ProgramStep::Kind::exchange) return out;
  for (const ProgramMessage& m : program.messages_of(step)) {
    const ProgramSpan at{m.at.buffer, m.at.offset, m.at.offset + m.bytes};
    const bool relays = m.is_send && (m.id & kForwarded) != 0;
    ProgramAction action{.kind = relays ? Kind::forward : (m.is_send ? Kind::send : Kind::receive),
                         .bytes = m.bytes};
    (m.is_send ? action.from : action.to) = at;
    action.peer = m.peer;
    action.message = m.id;
    out.push_back(std::move(action));
  }
  return out;
}

std::string work_of(const Program& program, const ProgramStep& step) {
  if (step.kind == ProgramStep::Kind::barrier) return "waits for all ranks";
  std::vector<Kind> order;
  std::map<Kind, std::vector<Rank>> peers;
  std::map<Kind, std::string> formats;
  for (const ProgramAction& a : actions_of(program, step)) {
    if (std::ranges::find(order, a.kind) == order.end()) order.push_back(a.kind);
    if (a.peer.value() >= 0) peers[a.kind].push_back(a.peer);
    if (a.kind == Kind::quantise || a.kind == Kind::dequantise)
      formats[a.kind] = to_string(a.matrix->format);
  }
  std::string text;
  for (const Kind kind : order) {
    text += (text.empty() ? "" : ", ") + verb(kind);
    if (auto it = peers.find(kind); it != peers.end()) {
      std::ranges::sort(it->second);
      it->second.erase(std::unique(it->second.begin(), it->second.end()), it->second.end());
      text += " " + ranks_text(it->second);
    }
    if (const auto it = formats.find(kind); it != formats.end()) text += " " + it->second;
  }
  return text.empty() ? "joins what it waits for" : text;
}

std::string name_of(const Program& program, const ProgramLayouts& layouts, BufferId id) {
  const ProgramBuffer& b = program.buffers[id.index()];
  if (b.kind == Memory::staging) return "staging";
  if (b.kind == Memory::scratch) return "scratch";
  const bool is_source = b.kind == Memory::source;
  const ModelLayout* layout = is_source ? layouts.source : layouts.target;
  if (layout == nullptr)
    return fmt::format("local tensor {} of the {}", b.slot.value(),
                       is_source ? "source" : "target");
  return layout->slot(b.slot).name;
}

std::string to_string(const Program& program, const ProgramLayouts& layouts,
                      const ProgramSpan& at) {
  const ProgramBuffer& b = program.buffers[at.buffer.index()];
  const std::string name = name_of(program, layouts, at.buffer);
  const ModelLayout* layout = b.kind == Memory::source   ? layouts.source
                              : b.kind == Memory::target ? layouts.target
                                                         : nullptr;
  if (layout != nullptr) {
    if (at.begin == 0 && at.end == b.bytes) return name;
    const Dims shape = layout->local_shape(b.slot, b.rank);
    const Index rows = shape.size() == 0 ? 0 : shape[0];
    const Index row = rows == 0 ? 0 : b.bytes / rows;
    // A range of columns reaches over the rows in between.
    if (row > 0)
      return fmt::format("{} [rows {}..{}]", name, at.begin / row, (at.end + row - 1) / row);
  }
  return fmt::format("{} [bytes {}..{}]", name, at.begin, at.end);
}

std::string to_string(const Program& program, const ProgramLayouts& layouts,
                      const ProgramAction& a) {
  const auto at = [&](const std::optional<ProgramSpan>& span) {
    return span ? to_string(program, layouts, *span) : std::string();
  };
  const std::string bytes = human_bytes(a.bytes);
  const std::string as = a.conversion ? fmt::format(", {} to {}", to_string(a.conversion->from),
                                                    to_string(a.conversion->to))
                                      : "";
  switch (a.kind) {
    case Kind::read:
      return fmt::format("reads {} of {} from rank {}'s memory into {}{}", bytes, at(a.from),
                         a.peer.value(), at(a.to), as);
    case Kind::copy:
      return fmt::format("copies {} of {} into {}{}", bytes, at(a.from), at(a.to), as);
    case Kind::pack:
      return fmt::format("packs {} of {} into {}{}", bytes, at(a.from), at(a.to), as);
    case Kind::unpack:
      return fmt::format("unpacks {} of {} into {}{}", bytes, at(a.from), at(a.to), as);
    case Kind::clear: return fmt::format("writes {} of zeros to {}", bytes, at(a.to));
    case Kind::amax:
      return fmt::format("finds the largest magnitude of {} in {}", matrix_rows(*a.matrix),
                         at(a.from));
    case Kind::max: return fmt::format("combines the largest magnitudes in {}", at(a.from));
    case Kind::quantise:
      return fmt::format("quantises {} from {} to {} in {}", matrix_rows(*a.matrix), at(a.from),
                         to_string(a.matrix->format), at(a.to));
    case Kind::dequantise:
      return fmt::format("dequantises {} from {} in {} to {}", matrix_rows(*a.matrix),
                         to_string(a.matrix->format), at(a.from), at(a.to));
    case Kind::send:
    case Kind::forward:
      return fmt::format("{} message {} ({}) to rank {} from {}",
                         a.kind == Kind::send ? "sends" : "forwards", a.message, bytes,
                         a.peer.value(), at(a.from));
    case Kind::receive:
      return fmt::format("receives message {} ({}) from rank {} into {}", a.message, bytes,
                         a.peer.value(), at(a.to));
  }
  return "";
}

std::string step_text(const Program& program, const ProgramLayouts& layouts, StepId id) {
  const ProgramStep& step = program.steps[id.index()];
  std::string text =
      fmt::format("step {}  {}  {}", id.value(), name(step.kind), human_bytes(step.bytes));
  const auto waits = program.waits_of(id);
  for (std::size_t i = 0; i < waits.size() && i < kNamed; ++i)
    text += fmt::format("{}{}", i == 0 ? "  after " : ", ", waits[i].value());
  if (waits.size() > kNamed) text += fmt::format(" and {} more", waits.size() - kNamed);
  text += "\n";
  const auto actions = actions_of(program, step);
  if (actions.empty()) text += "  " + work_of(program, step) + "\n";
  for (const ProgramAction& a : actions) text += "  " + to_string(program, layouts, a) + "\n";
  return text;
}

namespace {

void add_action(const ProgramAction& a, ProgramTotals& out,
                std::map<Rank, ProgramTotals::Peer>& peers) {
  switch (a.kind) {
    case Kind::read:
      add(out.read, a.bytes);
      add(peers[a.peer].read, a.bytes);
      break;
    case Kind::copy: add(out.copied, a.bytes); break;
    case Kind::pack: add(out.packed, a.bytes); break;
    case Kind::unpack: add(out.unpacked, a.bytes); break;
    case Kind::quantise: add(out.quantised, a.bytes); break;
    case Kind::dequantise: add(out.dequantised, a.bytes); break;
    case Kind::forward: add(out.forwarded, a.bytes); [[fallthrough]];
    case Kind::send:
      add(out.sent, a.bytes);
      add(peers[a.peer].sent, a.bytes);
      break;
    case Kind::receive:
      add(out.received, a.bytes);
      add(peers[a.peer].received, a.bytes);
      break;
    default: return;
  }
  if (a.kind == Kind::send || a.kind == Kind::receive || a.kind == Kind::forward) {
    ++out.messages;
    ++peers[a.peer].messages;
  }
}

}  // namespace

ProgramTotals totals_of(const Program& program) {
  ProgramTotals out;
  std::map<Rank, ProgramTotals::Peer> peers;
  std::map<std::pair<ProgramStep::Kind, std::string>, std::size_t> known;
  for (std::uint32_t s = 0; s < program.steps.size(); ++s) {
    const ProgramStep& step = program.steps[s];
    ++(step.kind == ProgramStep::Kind::tile       ? out.tiles
       : step.kind == ProgramStep::Kind::exchange ? out.exchanges
                                                  : out.barriers);
    for (const ProgramAction& a : actions_of(program, step)) add_action(a, out, peers);
    std::string what = work_of(program, step);
    const auto [at, is_new] = known.try_emplace({step.kind, what}, out.work.size());
    if (is_new) out.work.push_back({step.kind, std::move(what), StepId(s), StepId(s), 0, 0});
    ProgramTotals::Work& work = out.work[at->second];
    work.last = StepId(s);
    ++work.steps;
    add(work.bytes, step.bytes);
  }
  for (auto& [rank, peer] : peers) {
    peer.peer = rank;
    out.peers.push_back(peer);
  }
  return out;
}

}  // namespace reshard
