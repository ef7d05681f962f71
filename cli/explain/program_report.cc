// SPDX-License-Identifier: Apache-2.0
#include "cli/explain/program_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/hash.h"
#include "reshard/base/number_text.h"
#include "reshard/program/form/serialise.h"

namespace reshard::cli {
namespace {

/// Peers, and kinds of work, that the text lists at most.
constexpr std::size_t kPeersShown = 16, kWorkShown = 40;

std::string left_out(std::size_t rows, std::size_t shown, const char* what) {
  return rows > shown ? fmt::format("  and {} more {}\n", rows - shown, what) : "";
}

std::string totals_text(const Program& p, const ProgramTotals& t, const Style& style) {
  Table table({{""}, {"", Table::Align::right}, {""}});
  table.add({"steps", grouped(static_cast<Index>(p.steps.size())),
             fmt::format("{}, {}, {}", plural(t.tiles, "tile"), plural(t.exchanges, "exchange"),
                         plural(t.barriers, "barrier"))});
  const auto add = [&](const char* what, Index bytes, const std::string& how) {
    if (bytes > 0) table.add({what, human_bytes(bytes), how});
  };
  add("reads", t.read, "from other ranks' memory");
  add("receives", t.received, "in messages");
  add("sends", t.sent, "in messages");
  add("  of them forwards", t.forwarded, "that it has received");
  add("copies", t.copied, "within its memory");
  add("packs", t.packed, "into staging or scratch");
  add("unpacks", t.unpacked, "from staging or scratch");
  add("quantises", t.quantised, "of values");
  add("dequantises", t.dequantised, "of values");
  add("staging", p.staging_bytes, "");
  add("scratch", p.scratch_bytes, "of each thread");
  return table.text(style);
}

std::string peers_text(const ProgramTotals& t, const Style& style) {
  if (t.peers.empty()) return "";
  auto peers = t.peers;
  std::ranges::stable_sort(peers, std::ranges::greater(), [](const ProgramTotals::Peer& p) {
    return static_cast<double>(p.sent) + static_cast<double>(p.received) +
           static_cast<double>(p.read);
  });
  Table table({{"peer"},
               {"reads of it", Table::Align::right},
               {"receives", Table::Align::right},
               {"sends it", Table::Align::right},
               {"messages", Table::Align::right}});
  for (std::size_t i = 0; i < peers.size() && i < kPeersShown; ++i)
    table.add({fmt::format("rank {}", peers[i].peer.value()), human_bytes(peers[i].read),
               human_bytes(peers[i].received), human_bytes(peers[i].sent),
               grouped(peers[i].messages)});
  return table.text(style) + left_out(peers.size(), kPeersShown, "peers");
}

std::string work_text(const ProgramTotals& t, const Style& style) {
  Table table({{"steps", Table::Align::right},
               {"kind"},
               {"bytes", Table::Align::right},
               {"first to last"},
               {"work of each"}});
  for (std::size_t i = 0; i < t.work.size() && i < kWorkShown; ++i) {
    const ProgramTotals::Work& w = t.work[i];
    const std::string range = w.steps == 1
                                  ? std::to_string(w.first.value())
                                  : fmt::format("{} to {}", w.first.value(), w.last.value());
    table.add({grouped(w.steps), std::string(name(w.kind)), human_bytes(w.bytes), range, w.what});
  }
  return table.text(style) + left_out(t.work.size(), kWorkShown, "kinds of work");
}

}  // namespace

std::string program_text(const Program& p, const ProgramLayouts& layouts, std::size_t most_steps,
                         const Style& style) {
  const ProgramTotals totals = totals_of(p);
  const auto bytes = serialise(p);
  std::string text =
      totals_text(p, totals, style) + peers_text(totals, style) + work_text(totals, style);
  for (std::uint32_t s = 0; s < p.steps.size() && s < most_steps; ++s)
    text += step_text(p, layouts, StepId(s));
  if (most_steps > 0 && most_steps < p.steps.size())
    text += "and " + plural(static_cast<Index>(p.steps.size() - most_steps), "more step") + "\n";
  return text +
         style.quiet(fmt::format("digest {}; {} serialised\n", hex(digest_of_serialised(bytes)),
                                 human_bytes(static_cast<Index>(bytes.size()))));
}

}  // namespace reshard::cli
