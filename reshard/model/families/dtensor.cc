// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/dtensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "reshard/sharding/cut.h"

namespace reshard {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

/// The number in "2" or in "dim=2" with one of `keys` as the key; none otherwise.
std::optional<Index> number(std::string_view text, std::initializer_list<std::string_view> keys) {
  text = trimmed(text);
  if (const std::size_t equals = text.find('='); equals != std::string_view::npos) {
    const auto key = trimmed(text.substr(0, equals));
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) return std::nullopt;
    text = trimmed(text.substr(equals + 1));
  }
  Index value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The text between the parentheses of "name(...)", or none.
std::optional<std::string_view> arguments(std::string_view text, std::string_view name) {
  if (!text.starts_with(name) || !text.ends_with(')')) return std::nullopt;
  text.remove_prefix(name.size());
  if (!text.starts_with('(')) return std::nullopt;
  return text.substr(1, text.size() - 2);
}

std::optional<Placement> placement_of(std::string_view text) {
  if (text == "R" || text == "Replicate()") return Placement{};
  for (const char* name : {"S", "Shard"})
    if (const auto inside = arguments(text, name))
      if (const auto dim = number(*inside, {"dim"}); dim && std::abs(*dim) <= kMaxDims)
        return Placement{Placement::Kind::shard, static_cast<int>(*dim), 1};
  for (const char* name : {"_S", "_StridedShard"}) {
    const auto inside = arguments(text, name);
    if (!inside) continue;
    const std::size_t comma = inside->find(',');
    if (comma == std::string_view::npos) continue;
    const auto dim = number(inside->substr(0, comma), {"dim"});
    const auto factor = number(inside->substr(comma + 1), {"sf", "split_factor"});
    if (dim && factor && std::abs(*dim) <= kMaxDims && *factor >= 1 && *factor <= kMaxSplitFactor)
      return Placement{Placement::Kind::strided_shard, static_cast<int>(*dim), *factor};
  }
  return std::nullopt;
}

/// Appends the stored positions `part` of the runs, as runs.
void append_slice(const std::vector<Interval>& runs, Interval part, std::vector<Interval>& out) {
  Index at = 0;
  for (const Interval& run : runs) {
    const Interval common = intersect(Interval{at, at + run.size()}, part);
    if (!common.empty()) {
      const Interval held = shift(common, run.begin() - at);
      if (!out.empty() && out.back().end() == held.begin()) {
        out.back() = Interval{out.back().begin(), held.end()};
      } else {
        out.push_back(held);
      }
    }
    at += run.size();
    if (at >= part.end()) break;
  }
}

}  // namespace

Result<Placement> parse_placement(std::string_view text) {
  if (const auto placement = placement_of(trimmed(text))) return *placement;
  return fail(Code::invalid_argument,
              fmt::format("placement '{}' must be R, S(dim) or _S(dim, sf) with sf from 1 to {}",
                          text, kMaxSplitFactor));
}

std::string to_string(const Placement& p) {
  switch (p.kind) {
    case Placement::Kind::replicate: return "R";
    case Placement::Kind::shard: return fmt::format("S({})", p.dim);
    case Placement::Kind::strided_shard: return fmt::format("_S({}, {})", p.dim, p.split_factor);
  }
  return "R";
}

std::vector<Interval> local_runs(Index extent, std::span<const DimShard> shards,
                                 std::span<const Index> coordinates) {
  std::vector<Interval> runs;
  if (extent > 0) runs.push_back(Interval{0, extent});
  for (std::size_t i = 0; i < shards.size(); ++i) {
    Index size = 0;
    for (const Interval& run : runs) size += run.size();
    std::vector<Interval> kept;
    for (Index j = 0; j < shards[i].split_factor; ++j) {
      const Interval chunk = part_of(CutRule::ceil, size, shards[i].split_factor, j);
      if (chunk.empty()) break;
      const Interval part = part_of(CutRule::ceil, chunk.size(), shards[i].size, coordinates[i]);
      if (!part.empty()) append_slice(runs, shift(part, chunk.begin()), kept);
    }
    runs = std::move(kept);
  }
  return runs;
}

std::vector<int> plain_order(std::span<const DimShard> shards) {
  std::vector<int> order;
  for (int i = static_cast<int>(shards.size()) - 1; i >= 0; --i) {
    const Index factor = shards[static_cast<std::size_t>(i)].split_factor;
    Index before = 1;
    std::size_t at = 0;
    for (; before < factor && at < order.size(); ++at)
      before *= shards[static_cast<std::size_t>(order[at])].size;
    if (before != factor) return {};
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(at), i);
  }
  return order;
}

}  // namespace reshard
