// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/verify/cell_replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "reshard/exec/device/rank_memory.h"
#include "reshard/exec/progress_meter.h"
#include "reshard/exec/verify/fingerprints.h"
#include "reshard/memory/worker_pool.h"
#include "reshard/plan/locate.h"

namespace reshard {
namespace {

constexpr Index kBoxUnitBytes = Index{8} << 20;

}  // namespace

CellReplicas::CellReplicas(const ModelLayout& layout, std::span<const StoredForm> forms)
    : layout_(layout), replica_map_(layout_, sets_) {
  const auto own = forms_of(layout_);
  for (std::size_t t = 0; t < own.size(); ++t)
    conversions_.push_back({own[t], forms.empty() ? own[t] : forms[t]});
  cells_of_list_.resize(static_cast<std::size_t>(replica_map_.num_lists()));
  list_seen_.resize(cells_of_list_.size());
  for (Index i = 0; i < replica_map_.num_lists(); ++i) {
    Index least = 0;
    for (const Cell& cell : replica_map_.cells(ReplicaMap::ListId(static_cast<int>(i)))) {
      const Index n = holders(cell).size();
      least = least == 0 ? n : std::min(least, n);
    }
    replicas_of_list_.push_back(least);
  }
}

Result<> CellReplicas::find(const RankBuffers* buffers, std::optional<Rank> only,
                            const std::vector<bool>& tensors) {
  buffers_ = buffers;
  const ModelSpec& model = layout_.model();
  for (Index t = 0; t < model.size(); ++t) {
    const TensorId id(static_cast<TensorId::rep>(t));
    if (!tensors.empty() && !tensors[id.index()]) {
      keys_.emplace_back();
      first_replica_.push_back(replicas_.size());
      continue;
    }
    keys_.push_back(RESHARD_TRY(
        FingerprintKey::make(model[id].name, model[id].shape, conversions_[id.index()].to.dtype)));
    first_replica_.push_back(replicas_.size());
    for (const std::int32_t c : cells_of(id, only)) {
      const Cell& cell = cells(id)[static_cast<std::size_t>(c)];
      const std::size_t first = replicas_.size();
      Result<> added;
      const auto add_rank = [&](Rank r) {
        if (added) added = add(id, c, r);
      };
      only ? add_rank(*only) : holders(cell).for_each(add_rank);
      RESHARD_TRY(std::move(added));
      mark_shared(first);
      cut_into_units(first, cell.box, bits(conversions_[id.index()].from.dtype));
    }
  }
  first_replica_.push_back(replicas_.size());
  return prepare_gpu();
}

/// Tensors with the same list of cells share the result.
const std::vector<std::int32_t>& CellReplicas::cells_of(TensorId id, std::optional<Rank> only) {
  const std::size_t list = replica_map_.list(id).index();
  auto& out = cells_of_list_[list];
  if (list_seen_[list]) return out;
  list_seen_[list] = true;
  const auto all = cells(id);
  for (std::size_t c = 0; c < all.size(); ++c)
    if (!only || holders(all[c]).contains(*only)) out.push_back(static_cast<std::int32_t>(c));
  return out;
}

Result<> CellReplicas::add(TensorId id, std::int32_t cell, Rank r) {
  const Box& box = cells(id)[static_cast<std::size_t>(cell)].box;
  std::optional<SlotId> missing;
  for_each_location(layout_, id, r, box, [&](const Located& at) {
    const std::byte* data = buffers_ == nullptr ? nullptr : buffers_->at(r, at.slot);
    if (data == nullptr) missing = at.slot;
    replicas_.push_back({id, cell, r, at.where, data, {}, -1});
  });
  if (!missing) return {};
  return fail(Code::invalid_argument,
              fmt::format("{}: no memory for local tensor '{}' ({}) of rank {}", layout_.name(),
                          layout_.slot(*missing).name, layout_.model()[id].name, r.value()));
}

/// Finds what a GPU reads, if it has the memory.
Result<> CellReplicas::prepare_gpu() {
  if (buffers_ == nullptr || buffers_->device() == nullptr) return {};
  for (const Rank r : buffers_->ranks())
    for (const SlotId slot : layout_.slots_of(r))
      if (const std::byte* const at = buffers_->at(r, slot); at != nullptr)
        RESHARD_TRY(device::expect_on(*buffers_->device(), at, "fingerprinted", layout_, r, slot));
  cuda::FingerprintTable table;
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    const CellReplica& c = replicas_[i];
    if (c.same_as >= 0) continue;
    const Box& box = cells(c.tensor)[static_cast<std::size_t>(c.cell)].box;
    auto added = table.add({&key(c.tensor), box, c.where, c.data, conversions_[c.tensor.index()]},
                           static_cast<Index>(i));
    if (!added) return tl::unexpected(std::move(added).error().in(layout_.model()[c.tensor].name));
  }
  gpu_ = RESHARD_TRY(verify::GpuReader::make(buffers_->device(), std::move(table)));
  return {};
}

Index CellReplicas::bytes() const {
  Index n = 0;
  for (const Unit& u : units_) n += unit_bytes(u);
  return n;
}

Result<> CellReplicas::read(int threads, const Progress& progress, Deadline deadline) {
  ProgressMeter meter("fingerprint", bytes(), progress, deadline);
  if (!gpu_) return read_units(threads, meter);
  set(RESHARD_TRY(gpu_->read(buffers_->stream(), meter)));
  return {};
}

Result<> CellReplicas::read_units(int threads, ProgressMeter& meter) {
  WorkerPool pool(threads);
  std::atomic<std::size_t> next{0};
  auto body = [&](int worker) {
    std::vector<std::byte> converted;
    for (std::size_t i = next++; i < units_.size(); i = next++) {
      Unit& u = units_[i];
      auto fingerprint = fingerprint_of(u, converted);
      if (!fingerprint) {
        meter.fail_with(
            std::move(fingerprint).error().in(layout_.model()[replicas_[u.replica].tensor].name));
      } else {
        u.fingerprint = *fingerprint;
      }
      if (!meter.add(worker, unit_bytes(u))) break;
    }
  };
  pool.run(body);
  RESHARD_TRY(meter.finish());
  for (CellReplica& c : replicas_) c.fingerprint = {};
  for (const Unit& u : units_) replicas_[u.replica].fingerprint += u.fingerprint;
  share_fingerprints();
  return {};
}

void CellReplicas::set(std::span<const Fingerprint> fingerprints) {
  for (std::size_t i = 0; i < replicas_.size(); ++i)
    if (replicas_[i].same_as < 0) replicas_[i].fingerprint = fingerprints[i];
  share_fingerprints();
}

void CellReplicas::share_fingerprints() {
  for (CellReplica& c : replicas_)
    if (c.same_as >= 0) c.fingerprint = replicas_[static_cast<std::size_t>(c.same_as)].fingerprint;
}

Index CellReplicas::unit_bytes(const Unit& unit) const {
  const Conversion& conversion = conversions_[replicas_[unit.replica].tensor.index()];
  return unit.box.volume() * bits(conversion.from.dtype) / 8;
}

Result<Fingerprint> CellReplicas::fingerprint_of(const Unit& unit,
                                                 std::vector<std::byte>& converted) const {
  const CellReplica& replica = replicas_[unit.replica];
  const FingerprintKey& key = keys_[replica.tensor.index()];
  const Conversion& conversion = conversions_[replica.tensor.index()];
  const Box& whole = cells(replica.tensor)[static_cast<std::size_t>(replica.cell)].box;
  Dims inside;
  for (int d = 0; d < unit.box.rank(); ++d)
    inside.push_back(unit.box[d].begin() - whole[d].begin());
  const Strided where = at(replica.where, inside);
  if (!conversion.converts()) return fingerprint(key, unit.box, where, replica.data);
  const int from = bits(conversion.from.dtype) / 8, to = bits(conversion.to.dtype) / 8;
  const Strided packed{0, row_major(unit.box.shape())};
  converted.resize(static_cast<std::size_t>(unit.box.volume() * to));
  run_conversion(make_widening_copy(unit.box.shape(), where, packed, from, to), conversion,
                 replica.data, converted.data());
  return fingerprint(key, unit.box, packed, converted.data());
}

void CellReplicas::mark_shared(std::size_t first) {
  for (std::size_t i = first; i < replicas_.size(); ++i)
    for (std::size_t j = first; j < i && replicas_[i].same_as < 0; ++j)
      if (replicas_[j].data == replicas_[i].data && replicas_[j].where == replicas_[i].where)
        replicas_[i].same_as = static_cast<std::int64_t>(j);
}

void CellReplicas::cut_into_units(std::size_t first, const Box& box, int element_bits) {
  for (std::size_t i = first; i < replicas_.size(); ++i) {
    if (replicas_[i].same_as >= 0) continue;
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
