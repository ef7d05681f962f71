// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/tile_fingerprints.h"

#include <algorithm>
#include <functional>

namespace reshard::conversion {
namespace {

/// The first element of a box and one past the last.
Interval extent(const TileBox& p) {
  Index end = p.where.offset + 1;
  for (int d = 0; d < p.box.rank(); ++d) end += (p.box[d].size() - 1) * p.where.strides[d];
  return p.box.volume() == 0 ? Interval{} : Interval{p.where.offset, end};
}

/// The dimension with the largest stride; -1 if the box has one element.
int outermost(const TileBox& p) {
  int outer = -1;
  for (int d = 0; d < p.box.rank(); ++d)
    if (p.box[d].size() > 1 && (outer < 0 || p.where.strides[d] > p.where.strides[outer]))
      outer = d;
  return outer;
}

/// Positions [first, first + count) of a dimension.
TileBox positions(const TileBox& p, int d, Index first, Index count) {
  const Index begin = p.box[d].begin() + first;
  TileBox part{p.box.with(d, Interval{begin, begin + count}), p.where};
  part.where.offset += first * p.where.strides[d];
  return part;
}

struct Place {
  TileRange range;
  std::size_t tile;
};

/// Appends the parts of a range that belong to the tile.
void add_rows(const TileRange& range, std::size_t tile, std::vector<Place>& out) {
  if (range.row == range.stride) {
    out.push_back({range, tile});
    return;
  }
  for (Index at = 0; at < range.bytes; at += range.stride)
    out.push_back({{range.begin + at, std::min(range.row, range.bytes - at), range.at + at}, tile});
}

}  // namespace

void clip_box(const TileBox& whole, Index begin, Index end, std::vector<TileBox>& out) {
  const Interval span = extent(whole);
  if (intersect(span, Interval{begin, std::max(begin, end)}).empty()) return;
  if (begin <= span.begin() && span.end() <= end) {
    out.push_back(whole);
    return;
  }
  const int d = outermost(whole);
  const Index step = whole.where.strides[d], n = whole.box[d].size();
  const Index covers = extent(positions(whole, d, 0, 1)).size();
  const Index low = begin - span.begin(), high = end - span.begin() - covers;
  const Index first = std::clamp<Index>(low <= 0 ? 0 : (low + step - 1) / step, 0, n);
  const Index last = std::clamp<Index>(high < 0 ? 0 : high / step + 1, first, n);
  if (first > 0) clip_box(positions(whole, d, first - 1, 1), begin, end, out);
  if (last > first) out.push_back(positions(whole, d, first, last - first));
  if (last < n) clip_box(positions(whole, d, last, 1), begin, end, out);
}

TileFingerprints::TileFingerprints(const CellReplicas& replicas, const TileRanges& tiles)
    : by_tile_(tiles.size()), sums_(replicas.all().size()) {
  std::vector<Place> places;
  for (std::size_t b = 0; b < tiles.size(); ++b)
    for (const TileRange& range : tiles[b]) add_rows(range, b, places);
  const auto begin_of = [](const Place& p) { return p.range.begin; };
  std::ranges::sort(places, std::less<>(), begin_of);
  std::vector<TileBox> parts;
  for (std::size_t c = 0; c < replicas.all().size(); ++c) {
    const CellReplica& replica = replicas.all()[c];
    if (replica.same_as >= 0) continue;
    const int bits = replicas.element_bits(replica);
    const TileBox whole{replicas.cells(replica.tensor)[static_cast<std::size_t>(replica.cell)].box,
                        replica.where};
    const Interval span = extent(whole);
    const std::byte* const last = replica.data + span.end() * bits / 8;
    // Bytes that several tiles contain, such as the factor of a matrix, count once.
    const std::byte* done = replica.data;
    auto place = std::ranges::lower_bound(places, replica.data, std::less<>(), begin_of);
    for (; place != places.end() && place->range.begin < last; ++place) {
      const std::byte* const end = place->range.begin + place->range.bytes;
      if (end <= done) continue;
      const Index first = (place->range.begin - replica.data) * 8 / bits;
      parts.clear();
      clip_box(whole, (std::max(done, place->range.begin) - replica.data) * 8 / bits,
               (end - replica.data) * 8 / bits, parts);
      done = end;
      for (TileBox& part : parts) {
        part.where.offset += place->range.at * 8 / bits - first;
        by_tile_[place->tile].push_back(
            {c, replicas.key(replica.tensor), part.box, part.where, {}});
      }
    }
  }
}

Result<> TileFingerprints::read(std::size_t tile, const std::byte* scratch) {
  for (Part& part : by_tile_[tile])
    part.fingerprint = RESHARD_TRY(fingerprint(part.key, part.box, part.where, scratch));
  return {};
}

std::span<const Fingerprint> TileFingerprints::sums() {
  std::ranges::fill(sums_, Fingerprint{});
  for (const auto& parts : by_tile_)
    for (const Part& part : parts) sums_[part.replica] += part.fingerprint;
  return sums_;
}

}  // namespace reshard::conversion
