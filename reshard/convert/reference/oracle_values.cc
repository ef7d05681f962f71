// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/reference/oracle_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "reshard/exec/progress_meter.h"
#include "reshard/memory/worker_pool.h"
#include "reshard/transform/convert.h"
#include "reshard/transform/copy.h"
#include "reshard/transform/oracle.h"

namespace reshard {
namespace {

struct LocalRows {
  Rank rank;
  SlotId slot;
};

/// Calls visit(rank, fragment, its tensor, first byte of the local tensor) for every fragment, on
/// all threads.
template <class Visit>
Result<> for_each_fragment(const RankBuffers& buffers, int threads, const char* phase,
                           const Progress& progress, Visit&& visit) {
  const ModelLayout& layout = buffers.layout();
  std::vector<LocalRows> locals;
  Index total = 0;
  for (Rank r : buffers.ranks()) {
    for (SlotId slot : layout.slots_of(r)) {
      locals.push_back({r, slot});
      total += buffers.bytes(r, slot);
    }
  }
  ProgressMeter meter(phase, total, progress);
  std::atomic<std::size_t> next{0};
  WorkerPool pool(threads);
  auto body = [&](int worker) {
    for (std::size_t i = next++; i < locals.size(); i = next++) {
      const auto [r, slot] = locals[i];
      for (const Fragment& f : layout.local(slot, r).fragments)
        if (auto seen = visit(r, f, layout.model()[f.tensor], buffers.at(r, slot)); !seen)
          meter.fail_with(std::move(seen).error());
      if (!meter.add(worker, buffers.bytes(r, slot))) break;
    }
  };
  pool.run(body);
  return meter.finish();
}

/// Elements converted at a time.
constexpr Index kSlabElements = Index{1} << 20;

/// Calls f for parts of a fragment of about kSlabElements each, cut along the first dimension.
template <class F>
Result<> for_each_slab(const Fragment& fragment, F&& f) {
  const Box& box = fragment.box;
  if (box.rank() == 0 || box.volume() <= kSlabElements) return f(fragment);
  const Index rows = std::max<Index>(1, kSlabElements / (box.volume() / box[0].size()));
  for (Index at = box[0].begin(); at < box[0].end(); at += rows) {
    Fragment slab = fragment;
    slab.box = box.with(0, Interval{at, std::min(at + rows, box[0].end())});
    slab.where.offset += (at - box[0].begin()) * fragment.where.strides[0];
    RESHARD_TRY(f(slab));
  }
  return {};
}

/// The oracle's elements of a box, packed, after these conversions; the first converts from the
/// canonical form.
Result<std::vector<std::byte>> values_of(const Oracle& oracle, const CanonicalTensor& t,
                                         const Box& box, std::initializer_list<Conversion> steps) {
  const auto bytes = [&](DType dtype) {
    return static_cast<std::size_t>(box.volume() * bits(dtype) / 8);
  };
  std::vector<std::byte> values(bytes(t.dtype));
  RESHARD_TRY(oracle_fill(oracle, t.name, t.shape, t.dtype, box, {0, row_major(box.shape())},
                          values.data()));
  for (const Conversion& step : steps) {
    if (!step.converts()) continue;
    std::vector<std::byte> next(bytes(step.to.dtype));
    convert_values(step, values.data(), next.data(), box.volume());
    values = std::move(next);
  }
  return values;
}

/// Writes the oracle's elements of a fragment after these conversions.
Result<> fill_fragment(const Oracle& oracle, const Fragment& f, const CanonicalTensor& t,
                       std::initializer_list<Conversion> steps, std::byte* data) {
  if (std::none_of(steps.begin(), steps.end(), [](const Conversion& c) { return c.converts(); }))
    return oracle_fill(oracle, t.name, t.shape, t.dtype, f.box, f.where, data);
  const DType stored = (steps.end() - 1)->to.dtype;
  return for_each_slab(f, [&](const Fragment& slab) -> Result<> {
    const auto values = RESHARD_TRY(values_of(oracle, t, slab.box, steps));
    const Strided packed{0, row_major(slab.box.shape())};
    run_copy(RESHARD_TRY(make_copy(slab.box.shape(), packed, slab.where, bits(stored))),
             values.data(), data, CopyHint::cached);
    return {};
  });
}

/// Fails if an element of the slab differs from the packed values `want`.
Result<> compare(const Fragment& slab, const CanonicalTensor& t, DType stored,
                 const std::vector<std::byte>& want, const std::byte* data) {
  const StridedCopy copy = RESHARD_TRY(
      make_copy(slab.box.shape(), slab.where, {0, row_major(slab.box.shape())}, bits(stored)));
  Result<> status;
  for_each_run(copy, [&](Index from, Index at, Index n) {
    if (status && std::memcmp(data + from, want.data() + at, static_cast<std::size_t>(n)) != 0)
      status = fail(Code::corrupt, fmt::format("a converted value of '{}' in {} is wrong", t.name,
                                               to_string(slab.box)));
  });
  return status;
}

}  // namespace

Result<> fill_from_oracle(const RankBuffers& buffers, std::uint64_t seed, int threads,
                          const Progress& progress) {
  const Oracle oracle{OracleKind::bits, seed};
  const auto fill = [&](Rank, const Fragment& f, const CanonicalTensor& t, std::byte* data) {
    return fill_fragment(oracle, f, t, {{{t.dtype}, buffers.layout().form(f.tensor)}}, data);
  };
  return for_each_fragment(buffers, threads, "fill", progress, fill);
}

Result<> fill_local_from_oracle(const Oracle& oracle, const ModelLayout& layout, Rank r,
                                SlotId slot, const std::vector<StoredForm>& via, std::byte* data) {
  for (const Fragment& f : layout.local(slot, r).fragments) {
    const CanonicalTensor& t = layout.model()[f.tensor];
    const StoredForm first = via.empty() ? layout.form(f.tensor) : via[f.tensor.index()];
    RESHARD_TRY(
        fill_fragment(oracle, f, t, {{{t.dtype}, first}, {first, layout.form(f.tensor)}}, data));
  }
  return {};
}

Result<> check_against_oracle(const RankBuffers& buffers, const std::vector<StoredForm>& from,
                              const std::vector<bool>& which, std::uint64_t seed, int threads,
                              const Progress& progress) {
  const Oracle oracle{OracleKind::bits, seed};
  const ModelLayout& layout = buffers.layout();
  const auto check = [&](Rank r, const Fragment& f, const CanonicalTensor& t,
                         const std::byte* data) -> Result<> {
    if (!which[f.tensor.index()]) return {};
    const Conversion first{{t.dtype}, from[f.tensor.index()]},
        second{from[f.tensor.index()], layout.form(f.tensor)};
    if (first.converts() || second.converts()) {
      return for_each_slab(f, [&](const Fragment& slab) -> Result<> {
        const auto want = RESHARD_TRY(values_of(oracle, t, slab.box, {first, second}));
        auto same = compare(slab, t, second.to.dtype, want, data);
        if (same) return {};
        return tl::unexpected(std::move(same).error().in(
            fmt::format("rank {}, local tensor '{}'", r.value(), layout.slot(f.slot).name)));
      });
    }
    const auto wrong =
        RESHARD_TRY(oracle_check(oracle, t.name, t.shape, t.dtype, f.box, f.where, data));
    if (!wrong) return {};
    return fail(Code::corrupt,
                fmt::format("rank {}, local tensor '{}', tensor '{}': {}", r.value(),
                            buffers.layout().slot(f.slot).name, t.name, to_string(*wrong)));
  };
  return for_each_fragment(buffers, threads, "check", progress, check);
}

}  // namespace reshard
