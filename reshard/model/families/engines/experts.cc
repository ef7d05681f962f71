// SPDX-License-Identifier: Apache-2.0
// The experts of an engine: w13 [E, 2I, H] stacks gate and up (or has only up), w2 is [E, H, I]. E
// counts the physical experts of the rank.
#include <algorithm>

#include "reshard/model/families/engines/engine_layout_builder.h"

namespace reshard::families {
namespace {

/// Like place(), with any order of dimensions: canonical dimension i becomes full dimension
/// dims[i].
void place_as(Section& section, TensorId id, const Box& box, const Dims& at,
              std::initializer_list<std::int8_t> dims) {
  PlacedBox p{id, box, at, {}};
  std::copy(dims.begin(), dims.end(), p.dims.begin());
  section.parts.push_back(std::move(p));
}

/// A run of the order with consecutive experts.
struct Run {
  Index at, expert, size;
};

/// Splits the order into runs. No run crosses a multiple of `each`.
std::vector<Run> runs_of(const std::vector<Index>& order, Index each) {
  std::vector<Run> runs;
  for (Index at = 0; at < static_cast<Index>(order.size()); ++at) {
    const Index expert = order[static_cast<std::size_t>(at)];
    const bool follows = !runs.empty() && runs.back().expert + runs.back().size == expert;
    if (follows && at % each != 0)
      ++runs.back().size;
    else
      runs.push_back({at, expert, 1});
  }
  return runs;
}

/// The cut of a tensor with equal parts for all ranks of the experts: by experts first, then among
/// ranks that share experts. @pre the ranks hold equally many experts
DimCut over_both(const EngineSharding& d) {
  DimCut both = d.expert_outer;
  for (int i = 0; i < d.expert_inner.num_axes; ++i)
    both.axes[static_cast<std::size_t>(both.num_axes++)] =
        d.expert_inner.axes[static_cast<std::size_t>(i)];
  return both;
}

}  // namespace

Result<> EngineLayoutBuilder::experts(const Layer& l) {
  const std::size_t list = d_.experts.size() == 1 ? 0 : expert_layer_;
  order_ = &d_.experts[list];
  ++expert_layer_;
  RESHARD_TRY(beside_experts(l));
  return c_.stacked_experts ? stacked_experts(l) : single_experts(l);
}

Result<> EngineLayoutBuilder::beside_experts(const Layer& l) {
  const CutId whole(0);
  RESHARD_TRY(vector(own(l, hf_.router(l.at)), hf_.router(l.at), whole, in_f32(d_.f32_router)));
  if (c_.router_bias) RESHARD_TRY(same(l, hf_.router_bias(l.at)));
  if (c_.router_expert_bias) {
    const std::string bias = hf_.router_expert_bias(l.at);
    RESHARD_TRY(vector(own(l, bias), bias, whole, in(DType::f32)));
  }
  if (c_.moe_latent_size > 0) {
    RESHARD_TRY(same(l, hf_.ffn(l.at, "fc1_latent_proj.weight")));
    RESHARD_TRY(same(l, hf_.ffn(l.at, "fc2_latent_proj.weight")));
  }
  if (c_.shared_expert_size == 0) return {};
  if (c_.shared_expert_gate) RESHARD_TRY(same(l, hf_.ffn(l.at, "shared_expert_gate.weight")));
  if (d_.fused_shared > 0) return {};
  const std::string shared = hf_.shared_expert(l.at, "");
  return dense(own(l, shared), shared, shared_, false);
}

void EngineLayoutBuilder::add_experts(std::string name, int stack_dim, std::vector<Section> parts,
                                      Stored how) {
  add_on(expert_mesh_, expert_ranks_, std::move(name), stack_dim, std::move(parts), how);
}

Result<TensorId> EngineLayoutBuilder::expert_tensor(const Layer& l, Projection which,
                                                    Index e) const {
  const bool routed = e < c_.num_experts;
  switch (which) {
    case Projection::gate:
      return find(routed ? hf_.expert_gate(l.at, e) : hf_.shared_expert(l.at, "gate_proj.weight"));
    case Projection::up:
      return find(routed ? hf_.expert_up(l.at, e) : hf_.shared_expert(l.at, "up_proj.weight"));
    case Projection::down: break;
  }
  return find(routed ? hf_.expert_down(l.at, e) : hf_.shared_expert(l.at, "down_proj.weight"));
}

Result<Section> EngineLayoutBuilder::expert_section(const Layer& l, Projection which) const {
  const bool down = which == Projection::down;
  const Index n = static_cast<Index>(order_->size()), inner = c_.moe_intermediate_size,
              width = c_.expert_width();
  const Dims one = down ? Dims{width, inner} : Dims{inner, width};
  const std::int8_t rows = d_.transposed ? 2 : 1, columns = d_.transposed ? 1 : 2;
  Section section{{n, one[rows - 1], one[columns - 1]}, {outer_}, {}};
  section.cuts[static_cast<std::size_t>(down ? columns : rows)] = inner_;
  for (Index f = 0; f < n; ++f) {
    const Index e = (*order_)[static_cast<std::size_t>(f)];
    // Shared experts are slices of one tensor.
    const Index shared = std::max<Index>(0, e - c_.num_experts) * inner;
    const Box box = Box::whole(one).with(down ? 1 : 0, Interval{shared, shared + inner});
    place_as(section, RESHARD_TRY(expert_tensor(l, which, e)), box, {f, 0, 0}, {rows, columns});
  }
  return section;
}

Result<> EngineLayoutBuilder::single_experts(const Layer& l) {
  const std::string at = ffn(l, d_.expert_module);
  std::vector<Section> w13 = sections(RESHARD_TRY(expert_section(l, Projection::up)));
  if (c_.gated_mlp) {
    Section gate = RESHARD_TRY(expert_section(l, Projection::gate));
    w13.insert(d_.up_first ? w13.end() : w13.begin(), std::move(gate));
  }
  add_experts(at + "w13_weight", d_.transposed ? 2 : 1, std::move(w13), {});
  add_experts(at + "w2_weight", 0, sections(RESHARD_TRY(expert_section(l, Projection::down))), {});
  return {};
}

Result<> EngineLayoutBuilder::stacked_experts(const Layer& l) {
  const Index n = static_cast<Index>(order_->size()), h = c_.hidden_size,
              inner = c_.moe_intermediate_size, held = held_inner();
  const TensorId both = RESHARD_TRY(find(hf_.ffn(l.at, "experts.gate_up_proj")));
  const TensorId down = RESHARD_TRY(find(hf_.ffn(l.at, "experts.down_proj")));
  // [E, I, 2, H]: gate and up rows alternate, and stay together when I is cut.
  Section w13{{n, held, 2, h}, {outer_, inner_}, {}};
  Section w2{{n, h, held}, {outer_, CutId(0), inner_}, {}};
  if (d_.transposed) {
    w13 = Section{{n, h, held, 2}, {outer_, CutId(0), inner_}, {}};
    w2 = Section{{n, held, h}, {outer_, inner_}, {}};
  }
  for (const Run& run : runs_of(*order_, n)) {
    const Interval e{run.expert, run.expert + run.size};
    const Box box13{e, {0, h}, {0, inner}, {0, 2}}, box2{e, {0, inner}, {0, h}};
    if (d_.transposed) {
      place(w13, both, box13, {run.at, 0, 0, 0});
      place(w2, down, box2, {run.at, 0, 0});
    } else {
      place_as(w13, both, box13, {run.at, 0, 0, 0}, {0, 3, 1, 2});
      place_as(w2, down, box2, {run.at, 0, 0}, {0, 2, 1});
    }
  }
  const std::string at = ffn(l, d_.expert_module);
  const MergedDims merged{static_cast<std::uint8_t>(d_.transposed ? 1U << 2 : 1U << 1)};
  const bool padded = held != inner;
  add_experts(at + "w13_weight", 0, sections(std::move(w13)), {.padded = padded, .merged = merged});
  add_experts(at + "w2_weight", 0, sections(std::move(w2)), {.padded = padded});
  return stacked_biases(l);
}

Index EngineLayoutBuilder::held_inner() const {
  const Index unit = d_.expert_inner.granule * num_parts(d_.expert_inner, d_.expert_mesh);
  const Index inner = c_.moe_intermediate_size;
  return d_.expert_inner.granule == 1 ? inner : (inner + unit - 1) / unit * unit;
}

Result<> EngineLayoutBuilder::stacked_biases(const Layer& l) {
  const Index n = static_cast<Index>(order_->size()), h = c_.hidden_size,
              inner = c_.moe_intermediate_size, held = held_inner();
  const TensorId both = RESHARD_TRY(find(hf_.ffn(l.at, "experts.gate_up_proj_bias")));
  const TensorId down = RESHARD_TRY(find(hf_.ffn(l.at, "experts.down_proj_bias")));
  Section w13{{n, held, 2}, {outer_, inner_}, {}};
  // Ranks that share an expert sum their results: the first has the bias, the others zeros.
  const Index sharers = num_parts(d_.expert_inner, d_.expert_mesh);
  const Index each = sharers > 1 ? n / num_parts(d_.expert_outer, d_.expert_mesh) : n;
  Section w2{{n * sharers, h}, {sharers > 1 ? b_.add_cut(over_both(d_)) : outer_}, {}};
  for (const Run& run : runs_of(*order_, each)) {
    const Interval e{run.expert, run.expert + run.size};
    place(w13, both, Box{e, {0, inner}, {0, 2}}, {run.at, 0, 0});
    place(w2, down, Box{e, {0, h}}, {run.at / each * each * sharers + run.at % each, 0});
  }
  const std::string at = ffn(l, d_.expert_module);
  Stored stored = in_f32(d_.f32_expert_bias);
  stored.merged = {1U << 1};
  stored.padded = held != inner;
  add_experts(at + d_.w13_bias, 0, sections(std::move(w13)), stored);
  stored.merged = {};
  stored.padded = sharers > 1;
  add_experts(at + d_.w2_bias, 0, sections(std::move(w2)), stored);
  return {};
}

}  // namespace reshard::families
