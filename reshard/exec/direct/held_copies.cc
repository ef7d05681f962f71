// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/direct/held_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "reshard/exec/progress_meter.h"
#include "reshard/exec/verify/fingerprints.h"
#include "reshard/exec/worker_pool.h"
#include "reshard/plan/locate.h"

namespace reshard {
namespace {

constexpr Index kBoxUnitBytes = Index{8} << 20;

}  // namespace

HeldCopies::HeldCopies(const ModelLayout& layout, std::span<const StoredForm> forms)
    : layout_(layout), holdings_(layout_, sets_) {
  const auto own = forms_of(layout_);
  for (std::size_t t = 0; t < own.size(); ++t)
    conversions_.push_back({own[t], forms.empty() ? own[t] : forms[t]});
  cells_of_list_.resize(static_cast<std::size_t>(holdings_.num_lists()));
  list_seen_.resize(cells_of_list_.size());
  for (Index i = 0; i < holdings_.num_lists(); ++i) {
    Index least = 0;
    for (const Cell& cell : holdings_.cells(ReplicaMap::ListId(static_cast<int>(i)))) {
      const Index n = holders(cell).size();
      least = least == 0 ? n : std::min(least, n);
    }
    replicas_of_list_.push_back(least);
  }
}

Result<> HeldCopies::find(const RankBuffers* buffers, std::optional<Rank> only,
                          const std::vector<bool>& tensors) {
  const ModelSpec& model = layout_.model();
  for (Index t = 0; t < model.size(); ++t) {
    const TensorId id(static_cast<TensorId::rep>(t));
    if (!tensors.empty() && !tensors[id.index()]) {
      keys_.emplace_back();
      first_copy_.push_back(copies_.size());
      continue;
    }
    keys_.push_back(RESHARD_TRY(
        FingerprintKey::make(model[id].name, model[id].shape, conversions_[id.index()].to.dtype)));
    first_copy_.push_back(copies_.size());
    for (const std::int32_t c : cells_of(id, only)) {
      const Cell& cell = cells(id)[static_cast<std::size_t>(c)];
      const std::size_t first = copies_.size();
      Result<> added;
      const auto add_rank = [&](Rank r) {
        if (added) added = add(buffers, id, c, r);
      };
      only ? add_rank(*only) : holders(cell).for_each(add_rank);
      RESHARD_TRY(std::move(added));
      mark_shared(first);
      cut_into_units(first, cell.box, bits(conversions_[id.index()].from.dtype));
    }
  }
  first_copy_.push_back(copies_.size());
  return {};
}

/// Tensors that are held alike share the answer.
const std::vector<std::int32_t>& HeldCopies::cells_of(TensorId id, std::optional<Rank> only) {
  const std::size_t list = holdings_.list(id).index();
  auto& out = cells_of_list_[list];
  if (list_seen_[list]) return out;
  list_seen_[list] = true;
  const auto all = cells(id);
  for (std::size_t c = 0; c < all.size(); ++c)
    if (!only || holders(all[c]).contains(*only)) out.push_back(static_cast<std::int32_t>(c));
  return out;
}

Result<> HeldCopies::add(const RankBuffers* buffers, TensorId id, std::int32_t cell, Rank r) {
  const Box& box = cells(id)[static_cast<std::size_t>(cell)].box;
  std::optional<SlotId> missing;
  for_each_location(layout_, id, r, box, [&](const Located& at) {
    const std::byte* data = buffers == nullptr ? nullptr : buffers->at(r, at.slot);
    if (data == nullptr) missing = at.slot;
    copies_.push_back({id, cell, r, at.where, data, {}, -1});
  });
  if (!missing) return {};
  return fail(Code::invalid_argument,
              fmt::format("{}: no memory for local tensor '{}' ({}) of rank {}", layout_.name(),
                          layout_.slot(*missing).name, layout_.model()[id].name, r.value()));
}

Index HeldCopies::bytes() const {
  Index n = 0;
  for (const Unit& u : units_) n += unit_bytes(u);
  return n;
}

Result<> HeldCopies::read(int threads, const Progress& progress, Deadline deadline) {
  WorkerPool pool(threads);
  ProgressMeter meter("fingerprint", bytes(), progress, deadline);
  std::atomic<std::size_t> next{0};
  auto body = [&](int worker) {
    std::vector<std::byte> converted;
    for (std::size_t i = next++; i < units_.size(); i = next++) {
      Unit& u = units_[i];
      auto print = print_of(u, converted);
      if (!print) {
        meter.fail_with(std::move(print).error().in(layout_.model()[copies_[u.copy].tensor].name));
      } else {
        u.print = *print;
      }
      if (!meter.add(worker, unit_bytes(u))) break;
    }
  };
  pool.run(body);
  RESHARD_TRY(meter.finish());
  for (HeldCopy& c : copies_) c.print = {};
  for (const Unit& u : units_) copies_[u.copy].print += u.print;
  share_prints();
  return {};
}

void HeldCopies::set(std::span<const Fingerprint> prints) {
  for (std::size_t i = 0; i < copies_.size(); ++i) copies_[i].print = prints[i];
  share_prints();
}

void HeldCopies::share_prints() {
  for (HeldCopy& c : copies_)
    if (c.same_as >= 0) c.print = copies_[static_cast<std::size_t>(c.same_as)].print;
}

Index HeldCopies::unit_bytes(const Unit& unit) const {
  const Conversion& conversion = conversions_[copies_[unit.copy].tensor.index()];
  return unit.box.volume() * bits(conversion.from.dtype) / 8;
}

Result<Fingerprint> HeldCopies::print_of(const Unit& unit,
                                         std::vector<std::byte>& converted) const {
  const HeldCopy& copy = copies_[unit.copy];
  const FingerprintKey& key = keys_[copy.tensor.index()];
  const Conversion& conversion = conversions_[copy.tensor.index()];
  const Box& whole = cells(copy.tensor)[static_cast<std::size_t>(copy.cell)].box;
  Dims inside;
  for (int d = 0; d < unit.box.rank(); ++d)
    inside.push_back(unit.box[d].begin() - whole[d].begin());
  const Strided where = at(copy.where, inside);
  if (!conversion.converts()) return fingerprint(key, unit.box, where, copy.data);
  const int from = bits(conversion.from.dtype) / 8, to = bits(conversion.to.dtype) / 8;
  const Strided packed{0, row_major(unit.box.shape())};
  converted.resize(static_cast<std::size_t>(unit.box.volume() * to));
  run_conversion(make_widening_copy(unit.box.shape(), where, packed, from, to), conversion,
                 copy.data, converted.data());
  return fingerprint(key, unit.box, packed, converted.data());
}

void HeldCopies::mark_shared(std::size_t first) {
  for (std::size_t i = first; i < copies_.size(); ++i)
    for (std::size_t j = first; j < i && copies_[i].same_as < 0; ++j)
      if (copies_[j].data == copies_[i].data && copies_[j].where == copies_[i].where)
        copies_[i].same_as = static_cast<std::int64_t>(j);
}

void HeldCopies::cut_into_units(std::size_t first, const Box& box, int element_bits) {
  for (std::size_t i = first; i < copies_.size(); ++i) {
    if (copies_[i].same_as >= 0) continue;
    const Index n = box.rank() == 0 ? 1 : box[0].size();
    const Index parts = std::clamp<Index>(box.volume() * element_bits / 8 / kBoxUnitBytes, 1, n);
    for (Index p = 0; p < parts; ++p) {
      const auto row = [&](Index k) { return box[0].begin() + n * k / parts; };
      units_.push_back({i, parts == 1 ? box : box.with(0, Interval{row(p), row(p + 1)}), {}});
    }
  }
}

std::string disagreement(Rank rank, Rank first, const Box& box) {
  return fmt::format("rank {} differs from rank {} in {}", rank.value(), first.value(),
                     to_string(box));
}

}  // namespace reshard
