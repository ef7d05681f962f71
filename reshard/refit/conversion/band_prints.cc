// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/band_prints.h"

#include <algorithm>
#include <functional>

namespace reshard {
namespace {

/// First element of a box, and one past its last.
Interval extent(const BandBox& p) {
  Index end = p.where.offset + 1;
  for (int d = 0; d < p.box.rank(); ++d) end += (p.box[d].size() - 1) * p.where.strides[d];
  return p.box.volume() == 0 ? Interval{} : Interval{p.where.offset, end};
}

/// The dimension whose steps are longest; -1 where the box is one element.
int outermost(const BandBox& p) {
  int outer = -1;
  for (int d = 0; d < p.box.rank(); ++d)
    if (p.box[d].size() > 1 && (outer < 0 || p.where.strides[d] > p.where.strides[outer]))
      outer = d;
  return outer;
}

/// Positions [first, first + count) of a dimension.
BandBox positions(const BandBox& p, int d, Index first, Index count) {
  const Index begin = p.box[d].begin() + first;
  BandBox part{p.box.with(d, Interval{begin, begin + count}), p.where};
  part.where.offset += first * p.where.strides[d];
  return part;
}

struct Place {
  BandRange range;
  std::size_t band;
};

/// The parts of a range that are the band's own.
void add_rows(const BandRange& range, std::size_t band, std::vector<Place>& out) {
  if (range.row == range.stride) {
    out.push_back({range, band});
    return;
  }
  for (Index at = 0; at < range.bytes; at += range.stride)
    out.push_back({{range.begin + at, std::min(range.row, range.bytes - at), range.at + at}, band});
}

}  // namespace

void clip_box(const BandBox& whole, Index begin, Index end, std::vector<BandBox>& out) {
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

BandPrints::BandPrints(const HeldCopies& held, const TileConsumer& taker)
    : by_band_(taker.size()), sums_(held.copies().size()) {
  std::vector<Place> places;
  for (std::size_t b = 0; b < taker.size(); ++b)
    for (const BandRange& range : taker.ranges(b)) add_rows(range, b, places);
  const auto begin_of = [](const Place& p) { return p.range.begin; };
  std::ranges::sort(places, std::less<>(), begin_of);
  std::vector<BandBox> parts;
  for (std::size_t c = 0; c < held.copies().size(); ++c) {
    const HeldCopy& copy = held.copies()[c];
    if (copy.same_as >= 0) continue;
    const int bits = held.element_bits(copy);
    const BandBox whole{held.cells(copy.tensor)[static_cast<std::size_t>(copy.cell)].box,
                        copy.where};
    const Interval span = extent(whole);
    const std::byte* const last = copy.data + span.end() * bits / 8;
    // What several bands bring, such as the factor of a matrix, counts once.
    const std::byte* done = copy.data;
    auto place = std::ranges::lower_bound(places, copy.data, std::less<>(), begin_of);
    for (; place != places.end() && place->range.begin < last; ++place) {
      const std::byte* const end = place->range.begin + place->range.bytes;
      if (end <= done) continue;
      const Index first = (place->range.begin - copy.data) * 8 / bits;
      parts.clear();
      clip_box(whole, (std::max(done, place->range.begin) - copy.data) * 8 / bits,
               (end - copy.data) * 8 / bits, parts);
      done = end;
      for (BandBox& part : parts) {
        part.where.offset += place->range.at * 8 / bits - first;
        by_band_[place->band].push_back({c, held.key(copy.tensor), part.box, part.where, {}});
      }
    }
  }
}

Result<> BandPrints::read(std::size_t band, const std::byte* scratch) {
  for (Part& part : by_band_[band])
    part.print = RESHARD_TRY(fingerprint(part.key, part.box, part.where, scratch));
  return {};
}

std::span<const Fingerprint> BandPrints::sums() {
  std::ranges::fill(sums_, Fingerprint{});
  for (const auto& parts : by_band_)
    for (const Part& part : parts) sums_[part.copy] += part.print;
  return sums_;
}

}  // namespace reshard
