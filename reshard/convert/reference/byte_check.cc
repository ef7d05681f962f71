// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/reference/byte_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <optional>

#include "reshard/exec/progress_meter.h"
#include "reshard/memory/worker_pool.h"
#include "reshard/transform/quantise.h"

namespace reshard {
namespace {

/// Memory for the local tensors that are computed at a time.
constexpr Index kMaxBytes = Index{1} << 30;

struct LocalCopy {
  Rank rank;
  SlotId slot;  ///< of values.
};

/// Calls visit(rank, slot of values, threads) for every local tensor, several at a time as memory
/// allows.
template <class Visit>
Result<> for_each_local(ReferenceTensors& side, const RankBuffers& buffers, int threads,
                        const char* phase, const Progress& progress, Visit&& visit) {
  const ModelLayout& values = *side.side().values;
  std::vector<LocalCopy> locals;
  Index total = 0, largest = 1;
  for (const Rank r : buffers.ranks())
    for (const SlotId slot : values.slots_of(r)) {
      locals.push_back({r, slot});
      const Index bytes = bytes_of_local(values, r, slot);
      total += bytes;
      largest = std::max(largest, bytes);
    }
  // Ranks with parts of the same tensors come one after another, so that the cache serves them.
  std::ranges::stable_sort(locals, {}, [](const LocalCopy& l) { return l.slot; });
  const int outer = static_cast<int>(std::clamp<Index>(kMaxBytes / largest, 1, threads));
  const int inner = std::max(1, threads / outer);
  ProgressMeter meter(phase, total, progress);
  std::atomic<std::size_t> next{0};
  WorkerPool pool(outer);
  auto body = [&](int worker) {
    for (std::size_t i = next++; i < locals.size(); i = next++) {
      const auto [r, slot] = locals[i];
      if (auto done = visit(r, slot, inner); !done) meter.fail_with(std::move(done).error());
      if (!meter.add(worker, bytes_of_local(values, r, slot))) break;
    }
  };
  pool.run(body);
  return meter.finish();
}

/// Calls f(stored slot, its bytes) for each stored part of a slot of values.
template <class F>
void for_each_part(const ReferenceTensors& side, SlotId values_slot, const ReferenceTensor& local,
                   F&& f) {
  const auto* const pair = side.pair_of(values_slot);
  if (pair == nullptr) return f(side.plain_slot(values_slot), local.data);
  f(pair->data, local.data);
  f(pair->scales, local.scales);
  if (pair->factor.value() >= 0) f(pair->factor, local.factor);
}

/// The canonical element at an offset, in elements, of a local tensor of plain values.
struct Element {
  TensorId tensor;
  Dims index;
};

std::optional<Element> element_at(const ModelLayout& values, Rank r, SlotId slot, Index offset) {
  for (const Fragment& f : values.local(slot, r).fragments) {
    // Largest stride first: a fragment is a box in a row-major local tensor.
    std::vector<int> dims(static_cast<std::size_t>(f.box.rank()));
    std::iota(dims.begin(), dims.end(), 0);
    std::ranges::stable_sort(dims,
                             [&](int a, int b) { return f.where.strides[a] > f.where.strides[b]; });
    Index rest = offset - f.where.offset;
    if (rest < 0) continue;
    Element element{f.tensor, f.box.shape()};
    for (const int d : dims) {
      const Index stride = f.where.strides[d], size = f.box[d].size();
      const Index at = size == 1 || stride == 0 ? 0 : std::min(rest / stride, size - 1);
      rest -= at * stride;
      element.index[d] = f.box[d].begin() + at;
    }
    if (rest == 0) return element;
  }
  return std::nullopt;
}

std::string at_element(const ModelLayout& values, Rank r, SlotId slot, Index offset) {
  const auto found = element_at(values, r, slot, offset);
  if (!found) return fmt::format("padding, {} elements in", offset);
  return fmt::format("tensor '{}' element {}", values.model()[found->tensor].name,
                     to_string(found->index));
}

/// The first element of the block whose scale is at `offset`, in scales, of the local tensor of
/// scales; none if that is padding of swizzled tiles.
std::optional<Index> first_of_block(const QuantisedLayout& layout,
                                    const QuantisedLayout::Pair& pair, Rank r, Index offset) {
  constexpr Index kTileRows = 128, kTileCols = 4, kTile = kTileRows * kTileCols;
  const QuantFormat& f = pair.format;
  for (const QuantBlockArea& a : block_areas(layout, pair, r)) {
    const Index rows = scale_rows(f, a.rows), cols = scale_cols(f, a.cols);
    const Index at = offset - a.scale_offset;
    if (at < 0) continue;
    Index row = 0, col = 0;
    if (f.order == ScaleOrder::swizzled) {
      const Index tiles = (cols + kTileCols - 1) / kTileCols, in = at % kTile;
      row = at / kTile / tiles * kTileRows + in / 16 + in % 16 / 4 * 32;
      col = at / kTile % tiles * kTileCols + in % 4;
    } else {
      row = at / std::max<Index>(1, a.scale_row);
      col = at % std::max<Index>(1, a.scale_row);
    }
    if (row < rows && col < cols)
      return a.data_offset + row * f.block_rows * a.data_row + col * f.block_cols;
  }
  return std::nullopt;
}

/// Describes what the byte at an offset of a stored local tensor belongs to.
std::string describe_byte(const ReferenceTensors& side, Rank r, SlotId values_slot, SlotId stored,
                          Index byte) {
  const ModelLayout& values = *side.side().values;
  const auto element = [&](SlotId slot) {
    return byte * 8 / bits(side.side().stored()->slot(slot).dtype);
  };
  const auto* const pair = side.pair_of(values_slot);
  if (pair == nullptr || stored == pair->data)
    return at_element(values, r, values_slot, element(stored));
  const QuantisedLayout& layout = *side.side().quantised;
  if (stored == pair->factor) {
    for (const QuantBlockArea& a : block_areas(layout, *pair, r))
      if (a.factor_offset == element(stored))
        return "the factor of " + at_element(values, r, values_slot, a.data_offset);
    return "a factor";
  }
  const auto first = first_of_block(layout, *pair, r, element(stored));
  if (!first) return fmt::format("padding of scales, {} scales in", element(stored));
  return "the scale of the block that begins at " + at_element(values, r, values_slot, *first);
}

Result<> compare(const ReferenceTensors& side, Rank r, SlotId values_slot, SlotId stored,
                 const std::vector<std::byte>& want, const std::byte* got) {
  if (want.empty() || std::memcmp(got, want.data(), want.size()) == 0) return {};
  const auto first = std::mismatch(want.begin(), want.end(), got).first - want.begin();
  return fail(Code::corrupt,
              fmt::format("rank {}, local tensor '{}', {}: want byte {:#04x}, got {:#04x}",
                          r.value(), side.side().stored()->slot(stored).name,
                          describe_byte(side, r, values_slot, stored, first),
                          std::to_integer<int>(want[static_cast<std::size_t>(first)]),
                          std::to_integer<int>(got[first])));
}

}  // namespace

Result<> fill_from_reference(ReferenceTensors& side, const RankBuffers& buffers, int threads,
                             const Progress& progress) {
  const auto fill = [&](Rank r, SlotId slot, int inner) -> Result<> {
    const auto local = RESHARD_TRY(side.make(r, slot, inner));
    for_each_part(side, slot, *local, [&](SlotId stored, const std::vector<std::byte>& bytes) {
      if (!bytes.empty()) std::memcpy(buffers.at(r, stored), bytes.data(), bytes.size());
    });
    return {};
  };
  return for_each_local(side, buffers, threads, "fill", progress, fill);
}

Result<> check_against_reference(ReferenceTensors& side, const RankBuffers& buffers,
                                 const std::vector<bool>& moved, int threads,
                                 const Progress& progress) {
  const ModelLayout& values = *side.side().values;
  const auto check = [&](Rank r, SlotId slot, int inner) -> Result<> {
    for (const Section& section : values.slot(slot).sections)
      for (const PlacedBox& part : section.parts)
        if (!moved[part.tensor.index()]) return {};
    const auto local = RESHARD_TRY(side.make(r, slot, inner));
    Result<> same;
    for_each_part(side, slot, *local, [&](SlotId stored, const std::vector<std::byte>& bytes) {
      if (same) same = compare(side, r, slot, stored, bytes, buffers.at(r, stored));
    });
    return same;
  };
  return for_each_local(side, buffers, threads, "check", progress, check);
}

}  // namespace reshard
