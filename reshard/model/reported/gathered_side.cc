// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/reported/gathered_side.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace reshard::reported {
namespace {

/// True for [num_experts / group, ...]: all experts of the rank in one tensor.
bool stacks_experts(const GatheredMetadata::Parameter& p, Index group_size) {
  return p.num_experts && p.shape.size() > 0 && *p.num_experts % group_size == 0 &&
         p.shape[0] == *p.num_experts / group_size && !(p.is_tp && p.partition_dim == 0);
}

/// More rows than any tensor has. Sums saturate here, far from overflow.
constexpr Index kTooMany = Index{1} << 60;

/// The saturated sum. @pre no value exceeds kTooMany
Index sum_of(const std::vector<Index>& values) {
  Index sum = 0;
  for (Index v : values) sum = std::min(sum + v, kTooMany);
  return sum;
}

}  // namespace

tl::unexpected<Error> GatheredSide::bad(const Tensor& tensor, const std::string& what) const {
  return fail(Code::invalid_argument,
              fmt::format("parameter '{}' of the {}: {}", tensor.name, label_, what));
}

int GatheredSide::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? -1 : it->second;
}

GatheredSide::Position GatheredSide::position(const GatheredMetadata::Entry& entry,
                                              std::int8_t slot) const {
  if (slot < 0) return {};
  const std::uint32_t id = entry.groups[static_cast<std::size_t>(slot)];
  const auto& group = all_.groups[id];
  const auto at = std::find(group.begin(), group.end(), entry.rank) - group.begin();
  return {at, static_cast<Index>(group.size()), id};
}

GatheredSide::Position GatheredSide::cut_over(const RankClass& peers, const Parameter& p) const {
  return p.is_tp ? position(all_.ranks[peers.entry], p.tensor_group) : Position{};
}

void GatheredSide::find_classes(bool by_group) {
  by_group_ = by_group;
  classes_.clear();
  std::vector<std::set<std::int8_t>> slots;  // per template: groups whose positions matter
  for (const auto& t : all_.templates) {
    slots.emplace_back();
    for (const Parameter& p : t.parameters) {
      if (p.is_tp) slots.back().insert(p.tensor_group);
      if (p.is_ep && p.expert_group >= 0) slots.back().insert(p.expert_group);
    }
  }
  std::map<std::vector<Index>, std::size_t> known;
  for (std::size_t i = 0; i < all_.ranks.size(); ++i) {
    const auto& entry = all_.ranks[i];
    std::vector<Index> key{static_cast<Index>(entry.layout)};
    for (std::int8_t slot : slots[entry.layout]) {
      const Position p = position(entry, slot);
      key.insert(key.end(), {p.at, p.size, by_group ? static_cast<Index>(p.group) : 0});
    }
    const auto [it, fresh] = known.try_emplace(std::move(key), classes_.size());
    if (fresh) classes_.push_back({entry.layout, i, {}, {}});
    classes_[it->second].ranks.insert(entry.rank);
  }
}

std::uint64_t GatheredSide::share_key(const Position& p) const {
  return by_group_ ? p.group + (std::uint64_t{1} << 32) : static_cast<std::uint64_t>(p.size);
}

GatheredSide::Blocks GatheredSide::blocks_of(const Parameter& p) {
  if (!p.is_tp) return {};
  if (p.partition_sizes) return *p.partition_sizes;
  const Index local = p.shape[p.partition_dim];
  return Blocks(static_cast<std::size_t>(p.partition_stride), local / p.partition_stride);
}

Result<> GatheredSide::read() {
  find_classes(false);
  if (RESHARD_TRY(read_once())) return sum_up();
  // Groups of one size share some tensor in different ways: key by group instead.
  find_classes(true);
  RESHARD_TRY(read_once());
  return sum_up();
}

/// False if positions alone do not determine how a group shares a tensor.
Result<bool> GatheredSide::read_once() {
  tensors_.clear();
  by_name_.clear();
  shared_.clear();
  std::vector<std::vector<std::string>> bases;  // names with global layer numbers
  for (const auto& t : all_.templates) {
    bases.emplace_back();
    for (const Parameter& p : t.parameters)
      bases.back().push_back(
          resolve_global_layer_number_in_name(p.name, t.layer_module_prefix_map));
  }
  for (RankClass& peers : classes_) {
    const auto& parameters = all_.templates[peers.layout].parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const int tensor = RESHARD_TRY(tensor_of(peers, parameters[i], bases[peers.layout][i]));
      peers.tensors.push_back(tensor);
      const bool fits = RESHARD_TRY(note(peers, parameters[i], tensor));
      if (!fits) return false;
    }
  }
  return true;
}

/// The index of the tensor that a parameter is a part of; adds the tensor if new.
Result<int> GatheredSide::tensor_of(const RankClass& peers, const Parameter& p,
                                    const std::string& base) {
  const Rank rank = all_.ranks[peers.entry].rank;
  std::string name = base;
  Index position_of = -1, size = 0;
  if (p.is_ep) {
    const Position ep = position(all_.ranks[peers.entry], p.expert_group);
    if (const auto local = detect_expert_index_from_param_name(base)) {
      if (p.expert_group < 0)
        return fail(Code::invalid_argument,
                    fmt::format("parameter '{}' of rank {}: an expert parameter needs "
                                "expert_parallel_group_ranks",
                                p.name, rank.value()));
      const Index expert = RESHARD_TRY(global_expert(base, p.num_experts, ep.size, ep.at, *local));
      name = with_expert_index(base, expert);
    } else if (ep.size > 1 && !stacks_experts(p, ep.size)) {
      position_of = ep.at;
      size = ep.size;
      name += fmt::format("@expert_rank{}of{}", ep.at, ep.size);
    }
  }
  const auto [it, fresh] = by_name_.try_emplace(name, static_cast<int>(tensors_.size()));
  if (fresh) {
    tensors_.push_back({name,
                        p.dtype,
                        p.shape,
                        p.is_tp ? p.partition_dim : -1,
                        {},
                        rank,
                        position_of,
                        size,
                        false});
    Tensor& t = tensors_.back();
    t.stacked = p.is_ep && !detect_expert_index_from_param_name(base) && position_of < 0 &&
                stacks_experts(p, position(all_.ranks[peers.entry], p.expert_group).size);
    if (t.stacked) t.shape[0] = *p.num_experts;
  }
  return it->second;
}

/// Records the blocks of this position; false if other blocks are recorded there.
Result<bool> GatheredSide::note(const RankClass& peers, const Parameter& p, int tensor) {
  Tensor& t = tensors_[static_cast<std::size_t>(tensor)];
  const Rank rank = all_.ranks[peers.entry].rank;
  if (p.dtype != t.dtype || p.shape.size() != t.shape.size())
    return bad(t,
               fmt::format("rank {} has {} {}, rank {} has {} {}", t.first.value(), name(t.dtype),
                           to_string(t.shape), rank.value(), name(p.dtype), to_string(p.shape)));
  if (p.is_tp && t.dim < 0) t.dim = p.partition_dim;
  if (p.is_tp && t.dim != p.partition_dim)
    return bad(t, fmt::format("it is cut along dimensions {} and {}", t.dim, p.partition_dim));
  const Position at = cut_over(peers, p);
  Shared& shared = shared_[{tensor, share_key(at)}];
  shared.members.resize(static_cast<std::size_t>(at.size));
  shared.reported.resize(shared.members.size());
  const auto i = static_cast<std::size_t>(at.at);
  Blocks mine = blocks_of(p);
  if (mine.empty()) mine = {t.dim < 0 ? 0 : p.shape[t.dim]};
  if (shared.reported[i] && shared.members[i] != mine) {
    if (!by_group_ && at.size > 1) return false;
    return bad(t, fmt::format("the sizes that rank {} reports differ from those of other ranks",
                              rank.value()));
  }
  shared.reported[i] = true;
  shared.members[i] = std::move(mine);
  return true;
}

Result<> GatheredSide::sum_up() {
  std::vector<bool> seen(tensors_.size(), false);
  for (const auto& [key, shared] : shared_) {
    const auto i = static_cast<std::size_t>(key.first);
    bool is_first = !seen[i];
    RESHARD_TRY(sum_group(tensors_[i], shared, is_first));
    seen[i] = true;
  }
  for (const RankClass& peers : classes_) {
    const auto& parameters = all_.templates[peers.layout].parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Tensor& t = tensors_[static_cast<std::size_t>(peers.tensors[i])];
      for (int d = 0; d < t.shape.size(); ++d) {
        if (d == t.dim || parameters[i].shape[d] == t.shape[d]) continue;
        const Position ep = position(all_.ranks[peers.entry], parameters[i].expert_group);
        if (d == 0 && t.stacked && stacks_experts(parameters[i], ep.size)) continue;
        return bad(t, fmt::format("shape {} of rank {} does not fit into {}",
                                  to_string(parameters[i].shape),
                                  all_.ranks[peers.entry].rank.value(), to_string(t.shape)));
      }
    }
  }
  return {};
}

/// Sums up the members of one group and compares with other groups.
Result<> GatheredSide::sum_group(Tensor& t, const Shared& shared, bool& is_first) {
  Blocks total;
  for (std::size_t i = 0; i < shared.members.size(); ++i) {
    if (!shared.reported[i])
      return bad(t, fmt::format("member {} of a tensor parallel group of {} does not report it", i,
                                shared.members.size()));
    if (i == 0) total.resize(shared.members[0].size(), 0);
    if (shared.members[i].size() != total.size())
      return bad(t, "members of a tensor parallel group have different numbers of blocks");
    for (std::size_t b = 0; b < total.size(); ++b)
      total[b] = std::min(total[b] + shared.members[i][b], kTooMany);
  }
  if (t.dim < 0) return {};
  const Index rows = sum_of(total);
  if (rows == kTooMany) return bad(t, "its parts have too many rows");
  if (!is_first && rows != t.shape[t.dim])
    return bad(t, fmt::format("dimension {} has {} rows on some ranks and {} on others", t.dim,
                              t.shape[t.dim], rows));
  t.shape[t.dim] = rows;
  if (total.size() > t.blocks.size()) t.blocks = std::move(total);
  return {};
}

ExplicitTensor GatheredSide::local_tensor(const RankClass& peers, const Parameter& p, int tensor,
                                          TensorId id, const ModelSpec& model) const {
  const Dims& whole = model[id].shape;
  ExplicitTensor out{.name = p.name, .dtype = p.dtype, .shape = p.shape, .casts = true};
  Box box = Box::whole(whole);
  if (tensors_[static_cast<std::size_t>(tensor)].stacked) {
    const Index first = position(all_.ranks[peers.entry], p.expert_group).at * p.shape[0];
    box = box.with(0, Interval{first, first + p.shape[0]});
  }
  const auto put = [&](const Box& part, int dim, Index local) {
    if (part.empty()) return;
    PlacedBox placed{id, part, Dims::filled(whole.size(), 0), {}};
    std::iota(placed.dims.begin(), placed.dims.begin() + whole.size(), std::int8_t{0});
    if (dim >= 0) placed.at[dim] = local;
    out.parts.push_back(placed);
  };
  if (!p.is_tp) {
    put(box, -1, 0);
    return out;
  }
  const Position at = cut_over(peers, p);
  const Shared& shared = shared_.at({tensor, share_key(at)});
  const auto& mine = shared.members[static_cast<std::size_t>(at.at)];
  Index begin = 0, local = 0;
  Interval run;
  Index run_local = 0;
  for (std::size_t b = 0; b < mine.size(); ++b) {
    Index offset = begin;
    for (std::size_t m = 0; m < shared.members.size(); ++m) {
      if (m < static_cast<std::size_t>(at.at)) offset += shared.members[m][b];
      begin += shared.members[m][b];
    }
    const Interval held{offset, offset + mine[b]};
    if (!run.empty() && !held.empty() && run.end() == held.begin()) {
      run = Interval{run.begin(), held.end()};
    } else if (!held.empty()) {
      if (!run.empty()) put(box.with(p.partition_dim, run), p.partition_dim, run_local);
      run = held;
      run_local = local;
    }
    local += mine[b];
  }
  if (!run.empty()) put(box.with(p.partition_dim, run), p.partition_dim, run_local);
  return out;
}

void GatheredSide::add_slots(const std::vector<TensorId>& ids, const ModelSpec& model,
                             ExplicitSlots& slots) const {
  for (const RankClass& peers : classes_) {
    slots.add_ranks(peers.ranks);
    const auto& parameters = all_.templates[peers.layout].parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const int tensor = peers.tensors[i];
      slots.add(peers.ranks, local_tensor(peers, parameters[i], tensor,
                                          ids[static_cast<std::size_t>(tensor)], model));
    }
  }
}

}  // namespace reshard::reported
