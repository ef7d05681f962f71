// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/quant/quantised_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/model/layout_builder.h"
#include "reshard/model/quant/blocks.h"
#include "reshard/model/quant/files.h"
#include "reshard/model/quant/input_first.h"

namespace reshard::quant {
namespace {

/// The suffix of the name of a factor.
constexpr const char* kFactor = "_scale_2";

/// Block sizes (0: the whole dimension), and the dtype of the number stored per block: a scale or
/// the factor.
struct Blocks {
  Index rows = 0, cols = 0;
  DType dtype = DType::f32;
  Index refined = 0;  ///< see Pair::refined.
};

Index up(Index n, Index by) { return (n + by - 1) / by; }

/// True if every row has its own blocks, so that rows may come from several dimensions.
bool keeps_rows_apart(const QuantFormat& f) {
  return f.block_rows == 1 && f.order == ScaleOrder::rows && !f.tensor_factor;
}

/// True if the last dimension of a slot is merged with the one before.
bool merges_columns(const Slot& slot) {
  const int n = slot.sections[0].extent.size();
  return n > 1 && (slot.merged.bits >> (n - 2) & 1) != 0;
}

/// True if the tensors of each section are one group that begins where the section does, so that
/// padding can only follow.
bool is_alone(const GroupedSlot& groups, const Slot& slot) {
  return groups.groups.size() == slot.sections.size() &&
         std::ranges::all_of(groups.groups, [](const BlockGroup& g) {
           return g.windows[0].at.begin() == 0 && g.windows[1].at.begin() == 0;
         });
}

/// Turns a dimension of elements into one of blocks.
void apply(const BlockCut& blocks, Section& section, int dim, LayoutBuilder& b) {
  section.extent[dim] = blocks_of(blocks, Interval{0, blocks.elements}).size();
  CutId& id = section.cuts[static_cast<std::size_t>(dim)];
  if (id == CutId(0)) return;
  DimCut how = b.dim_cut(id);
  how.blocks = blocks;
  id = b.add_cut(how);
}

class Quantiser {
 public:
  Quantiser(std::shared_ptr<const ModelLayout> layout, QuantChoice choice)
      : out_{std::move(choice), std::move(layout), nullptr, {}, {}} {}
  Result<QuantisedLayout> run();

 private:
  Result<> check_format(const QuantFormat& f) const;
  Result<> derive_model();
  Result<> add_scales_of(const CanonicalTensor& t, const QuantFormat& f);
  /// The format of a slot whose tensors are quantised; null for others.
  Result<const QuantFormat*> format_of(const Slot& slot) const;
  Result<> check(const Slot& slot, const QuantFormat& f) const;
  Result<> check_columns(const Slot& slot, const QuantFormat& f);
  void add_plain(SlotId id, LayoutBuilder& b);
  Result<> add_pair(SlotId id, const QuantFormat& f, LayoutBuilder& b);
  bool pads_blocks(const Slot& slot, const GroupedSlot& groups, const QuantFormat& f);
  void classify(const Slot& slot, const std::optional<GroupedSlot>& groups,
                QuantisedLayout::Pair& pair);
  bool is_input_first(const CanonicalTensor& t) const {
    return out_.choice.input_first.contains(t.name) && out_.choice.tensors.contains(t.name);
  }
  /// Turns a part of a tensor into a part of its stored form.
  void refer(PlacedBox& part, const std::vector<TensorId>& ids) const {
    if (is_input_first(v_.model()[part.tensor])) part = with_input_last(part);
    part.tensor = ids[part.tensor.index()];
  }
  Slot data_slot(const Slot& slot, const QuantFormat& f, bool placed) const;
  /// A slot for scales or a factor, named after the data slot.
  /// Its `sections` are stacked along `stack_dim`.
  Slot companion(const Slot& slot, const std::string& suffix, const Blocks& blocks,
                 std::size_t sections, int stack_dim) const;
  /// The scales or factors of a format.
  struct Part {
    const QuantFormat& format;
    std::string suffix;
    Blocks blocks;
  };
  Slot by_groups(const Slot& slot, const GroupedSlot& groups, const Part& part,
                 const std::vector<TensorId>& ids, LayoutBuilder& b);
  Slot by_sections(const Slot& slot, const Part& part, LayoutBuilder& b) const;
  Result<Slot> swizzled(const Slot& slot, const Part& part, LayoutBuilder& b);
  std::string where(const Slot& slot) const {
    return fmt::format("{}: local tensor '{}'", v_.name(), slot.name);
  }

  QuantisedLayout out_;
  const ModelLayout& v_ = *out_.values;
  PieceTable pieces_{v_};
  std::shared_ptr<ModelSpec> model_ = std::make_shared<ModelSpec>();
  std::vector<const QuantFormat*> formats_;      // by tensor of the model; null: plain
  std::vector<TensorId> data_, scale_, factor_;  // by tensor of the model: in the derived one
};

Result<> Quantiser::derive_model() {
  std::size_t found = 0;
  for (const CanonicalTensor& t : v_.model().tensors()) {
    const bool chosen = out_.choice.tensors.contains(t.name);
    const QuantFormat* const f = chosen ? &out_.choice.format_of(t.name) : nullptr;
    found += chosen ? 1 : 0;
    formats_.push_back(f);
    data_.push_back(RESHARD_TRY(
        is_input_first(t)
            ? model_->add(t.name, with_input_last(t.shape), f->data, with_input_last(t.merged))
            : model_->add(t.name, t.shape, chosen ? f->data : t.dtype, t.merged)));
    scale_.emplace_back(-1);
    factor_.emplace_back(-1);
    if (chosen) RESHARD_TRY(add_scales_of(t, *f));
  }
  if (found == out_.choice.tensors.size()) return {};
  for (const std::string& name : out_.choice.tensors)
    if (!v_.model().find(name))
      return fail(Code::not_found,
                  fmt::format("'{}' is to be quantised but {} lacks it", name, v_.name()));
  return {};
}

Result<> Quantiser::add_scales_of(const CanonicalTensor& t, const QuantFormat& f) {
  constexpr unsigned kInputBits = 0b11;  // what merges dimension 1 with its neighbours
  const bool input_first = is_input_first(t);
  const bool merged = t.merged.bits != 0 &&
                      (!input_first || !keeps_rows_apart(f) || (t.merged.bits & kInputBits) != 0);
  if (t.shape.size() < (input_first ? 3 : 2) || merged)
    return fail(Code::unsupported, fmt::format("'{}' of shape {} cannot be quantised as {}: its "
                                               "stored form is not a matrix or a stack of matrices",
                                               t.name, to_string(t.shape), to_string(f)));
  const MatrixDims dims = matrix_dims(t, out_.choice.input_first);
  const auto shape_of = [&](Index rows, Index cols) {
    Dims shape = t.shape;
    shape[dims.row] = up(shape[dims.row], block_along(rows, shape[dims.row]));
    shape[dims.col] = up(shape[dims.col], block_along(cols, shape[dims.col]));
    return input_first ? with_input_last(shape) : shape;
  };
  scale_.back() =
      RESHARD_TRY(model_->add(t.name + scale_suffix(f), shape_of(f.block_rows, f.block_cols),
                              f.scale, input_first ? with_input_last(t.merged) : t.merged));
  if (f.tensor_factor)
    factor_.back() = RESHARD_TRY(model_->add(t.name + kFactor, shape_of(0, 0), DType::f32));
  return {};
}

Result<const QuantFormat*> Quantiser::format_of(const Slot& slot) const {
  const PlacedBox* first = nullptr;
  for (const Section& section : slot.sections)
    for (const PlacedBox& p : section.parts) {
      if (first == nullptr) first = &p;
      const QuantFormat *const a = formats_[first->tensor.index()], *const b =
                                                                        formats_[p.tensor.index()];
      if (a == b || (a != nullptr && b != nullptr && *a == *b)) continue;
      const auto words = [&](const PlacedBox& part, const QuantFormat* f) {
        return fmt::format("'{}', which {}", v_.model()[part.tensor].name,
                           f == nullptr ? "is not" : "is to be quantised as " + to_string(*f));
      };
      return fail(Code::unsupported,
                  fmt::format("{} holds {}, and {}", where(slot), words(*first, a), words(p, b)));
    }
  return first == nullptr ? nullptr : formats_[first->tensor.index()];
}

Result<> Quantiser::check(const Slot& slot, const QuantFormat& f) const {
  const auto refuse = [&](std::string why) {
    return fail(Code::unsupported, fmt::format("{} cannot be quantised: {}", where(slot), why));
  };
  if (!is_convertible(slot.dtype))
    return refuse(
        fmt::format("its values are {}; only F32, BF16 and F16 are quantised", name(slot.dtype)));
  if (slot.map != ValueMap::identity)
    return refuse(fmt::format("its values are stored as {}", name(slot.map)));
  if (slot.merged.bits != 0 && (merges_columns(slot) || !keeps_rows_apart(f)))
    return refuse("its rows come from several dimensions");
  for (const Section& section : slot.sections) {
    if (section.extent.size() < 2) return refuse("it has fewer than two dimensions");
    for (const PlacedBox& p : section.parts) {
      const auto transposed =
          is_transposed(section, p, matrix_dims(v_.model()[p.tensor], out_.choice.input_first));
      if (!transposed && out_.choice.grid == BlockGrid::tensor)
        return refuse(fmt::format("rows and columns of '{}' are not its last dimensions",
                                  v_.model()[p.tensor].name));
      if (transposed.value_or(false) && f.block_rows != f.block_cols)
        return refuse(
            fmt::format("it is stored transposed, so blocks of {} x {} would lie "
                        "across those of '{}'",
                        f.block_rows, f.block_cols, v_.model()[p.tensor].name));
    }
  }
  return {};
}

/// Every piece must be whole bytes, or words of packed integers, in each row.
Result<> Quantiser::check_columns(const Slot& slot, const QuantFormat& f) {
  const Index together = packed_together(f);
  if (together == 1) return {};
  const auto odd = [&](const Section& section) {
    const auto& pieces = pieces_.pieces(slot, section, section.extent.size() - 1);
    return std::any_of(pieces.begin(), pieces.end(), [&](Interval held) {
      return held.begin() % together != 0 || held.end() % together != 0;
    });
  };
  bool bad = std::any_of(slot.sections.begin(), slot.sections.end(), odd);
  if (const auto groups = group_blocks(v_.model(), slot, out_.choice.input_first))
    for (const BlockGroup& g : groups->groups)
      bad |= pieces_.alignment(slot, g, 1, 1).step % together != 0;
  if (!bad) return {};
  return fail(Code::unsupported,
              fmt::format("{} cannot be quantised: {} {} elements share a {}, and some rank's "
                          "columns begin or end inside one; multiples of {} columns work",
                          where(slot), together, name(f.data),
                          has_packed_integers(f) ? "word" : "byte", together));
}

void Quantiser::add_plain(SlotId id, LayoutBuilder& b) {
  Slot slot = v_.slot(id);
  for (Section& section : slot.sections)
    for (PlacedBox& p : section.parts) p.tensor = data_[p.tensor.index()];
  out_.plain.push_back(b.add(std::move(slot)));
}

/// True if the padding of a slot is whole blocks on every rank.
bool Quantiser::pads_blocks(const Slot& slot, const GroupedSlot& groups, const QuantFormat& f) {
  if (!is_alone(groups, slot)) return false;
  for (const Section& section : slot.sections)
    for (int i = 0; i < 2; ++i) {
      const int dim = section.extent.size() - 2 + i;
      // A rank with nothing but padding would have values without a factor.
      const Index rows_or_cols = i == 0 ? f.block_rows : f.block_cols;
      const Index block = block_along(f.tensor_factor ? 0 : rows_or_cols, section.extent[dim]);
      for (const Interval piece : pieces_.pieces(slot, section, dim))
        if (piece.begin() % block != 0) return false;
    }
  return true;
}

void Quantiser::classify(const Slot& slot, const std::optional<GroupedSlot>& groups,
                         QuantisedLayout::Pair& pair) {
  const QuantFormat& f = pair.format;
  bool own = groups && !groups->ragged && (!slot.padded || pads_blocks(slot, *groups, f)),
       whole = true;
  if (groups) {
    for (const BlockGroup& g : groups->groups) {
      Alignment a = pieces_.alignment(slot, g, f.block_rows, f.block_cols);
      if (f.tensor_factor) {
        const Alignment all = pieces_.alignment(slot, g, 0, 0);
        a.whole &= all.whole;
        a.own &= all.own;
      }
      whole &= a.whole;
      own &= a.own;
    }
  }
  const bool local = out_.choice.grid == BlockGrid::local;
  if (out_.choice.refines) pair.refined = refined_block(pieces_, slot, groups, f);
  pair.exact = !local || (own && f.order == ScaleOrder::rows) || pair.refined > 0;
  pair.whole = (local || whole) && pair.refined == 0;
}

Slot Quantiser::data_slot(const Slot& slot, const QuantFormat& f, bool placed) const {
  Slot data = slot;
  data.dtype = f.data;
  data.casts = false;
  data.padded |= !placed;
  for (Section& section : data.sections) {
    if (!placed) section.parts.clear();
    for (PlacedBox& p : section.parts) refer(p, data_);
  }
  return data;
}

Slot Quantiser::companion(const Slot& slot, const std::string& suffix, const Blocks& blocks,
                          std::size_t sections, int stack_dim) const {
  Slot s{.name = slot.name + suffix, .dtype = blocks.dtype, .mesh = slot.mesh, .ranks = slot.ranks};
  s.stack_dim = stack_dim;
  const int n = slot.sections[0].extent.size();
  s.merged = slot.merged;
  // One number per matrix: [E, sections] or, if a matrix has no stacked sections, [E].
  if (blocks.rows == 0 && blocks.cols == 0) {
    s.merged.bits = static_cast<std::uint8_t>(1U << (n - 2));
    if (n > 2 && sections == 1 && stack_dim < n - 2)
      s.merged.bits = static_cast<std::uint8_t>(s.merged.bits | 1U << (n - 3));
  }
  return s;
}

Slot Quantiser::by_groups(const Slot& slot, const GroupedSlot& groups, const Part& part,
                          const std::vector<TensorId>& ids, LayoutBuilder& b) {
  const Blocks& blocks = part.blocks;
  Slot out = companion(slot, part.suffix, blocks, groups.groups.size(), groups.stack_dim);
  out.padded = slot.padded || groups.ragged;
  const bool padded_by_blocks = slot.padded && pads_blocks(slot, groups, part.format);
  for (const BlockGroup& g : groups.groups) {
    Section section = slot.sections[static_cast<std::size_t>(g.section)];
    const std::vector<PlacedBox> parts = std::exchange(section.parts, {});
    const int n = section.extent.size();
    for (int i = 0; i < 2; ++i) {
      const Window& w = g.windows[static_cast<std::size_t>(i)];
      const Index block = block_along(i == 0 ? blocks.rows : blocks.cols, w.whole);
      const Index elements = section.extent[n - 2 + i];
      const bool in_blocks = padded_by_blocks && (i == 0 ? blocks.rows : blocks.cols) != 0;
      const Interval window = in_blocks ? Interval{0, elements} : w.at;
      const Index stored = blocks.refined > 0 ? blocks.refined : block;
      apply({stored, elements, window, w.first, false, 0, 1}, section, n - 2 + i, b);
    }
    for (const int index : g.parts) {
      PlacedBox p = parts[static_cast<std::size_t>(index)];
      const auto dims = matrix_dims(v_.model()[p.tensor], out_.choice.input_first);
      for (const int c : {dims.row, dims.col}) {
        const int d = p.dims[static_cast<std::size_t>(c)] - (n - 2);
        const Window& w = g.windows[static_cast<std::size_t>(d)];
        const Index block = block_along(d == 0 ? blocks.rows : blocks.cols, w.whole);
        p.box = p.box.with(c, Interval{w.first / block, up(w.first + w.at.size(), block)});
        p.at[n - 2 + d] = 0;
      }
      refer(p, ids);
      if (blocks.refined > 0)
        add_repeated(p, blocks.rows / blocks.refined, section);
      else
        section.parts.push_back(std::move(p));
    }
    out.sections.push_back(std::move(section));
  }
  return out;
}

Slot Quantiser::by_sections(const Slot& slot, const Part& part, LayoutBuilder& b) const {
  const Blocks& blocks = part.blocks;
  Slot out = companion(slot, part.suffix, blocks, slot.sections.size(), slot.stack_dim);
  out.padded = true;
  // With swizzled scales, sections that are one matrix share one factor.
  const bool one = part.format.order == ScaleOrder::swizzled && is_one_matrix(slot);
  for (Section section : std::span(slot.sections).first(one ? 1 : slot.sections.size())) {
    section.parts.clear();
    const int n = section.extent.size();
    for (int i = 0; i < 2; ++i) {
      const Index whole = section.extent[n - 2 + i];
      const BlockCut cut{
          block_along(i == 0 ? blocks.rows : blocks.cols, whole), whole, {}, 0, true, 0, 1};
      apply(cut, section, n - 2 + i, b);
    }
    out.sections.push_back(std::move(section));
  }
  return out;
}

Result<Slot> Quantiser::swizzled(const Slot& slot, const Part& part, LayoutBuilder& b) {
  const int n = slot.sections[0].extent.size();
  const bool one = is_one_matrix(slot);
  if (slot.stack_dim == n - 1 && slot.sections.size() > 1)
    return fail(
        Code::unsupported,
        fmt::format("{} cannot have swizzled scales: its fused tensors are stacked by columns",
                    where(slot)));
  Slot out = companion(slot, part.suffix, part.blocks, slot.sections.size(), slot.stack_dim);
  out.padded = true;
  Index before = 0;
  for (std::size_t k = 0; k < slot.sections.size(); ++k) {
    Section section = slot.sections[k];
    section.parts.clear();
    const bool last = !one || k + 1 == slot.sections.size();
    const auto rows = pieces_.remainder(slot, section, n - 2, kSwizzleRows);
    if (!last && !rows)
      return fail(Code::unsupported,
                  fmt::format("{} cannot have swizzled scales: no common shape pads the pieces "
                              "that ranks hold of its fused tensors to {} rows",
                              where(slot), kSwizzleRows));
    BlockCut cut{1, section.extent[n - 2], {}, 0, true, 0, 1};
    if (last) cut.before = before, cut.multiple = kSwizzleRows;
    apply(cut, section, n - 2, b);
    const Index cols = section.extent[n - 1];
    apply({block_along(part.blocks.cols, cols), cols, {}, 0, true, 0, kSwizzleCols}, section, n - 1,
          b);
    out.sections.push_back(std::move(section));
    before = (before + rows.value_or(0)) % kSwizzleRows;
  }
  return out;
}

Result<> Quantiser::add_pair(SlotId id, const QuantFormat& f, LayoutBuilder& b) {
  const Slot& slot = v_.slot(id);
  RESHARD_TRY(check(slot, f));
  RESHARD_TRY(check_columns(slot, f));
  const auto groups = group_blocks(v_.model(), slot, out_.choice.input_first);
  if (!groups && out_.choice.grid == BlockGrid::tensor)
    return fail(
        Code::unsupported,
        fmt::format("{} cannot be quantised: the blocks of its tensors are not a stack of matrices",
                    where(slot)));
  QuantisedLayout::Pair pair;
  pair.values = id;
  pair.format = f;
  classify(slot, groups, pair);
  pair.data = b.add(data_slot(slot, f, pair.exact));
  const Part factor{f, kFactor, Blocks{}};
  const Part scales{f,
                    out_.choice.scale_suffix.empty() ? scale_suffix(f) : out_.choice.scale_suffix,
                    Blocks{f.block_rows, f.block_cols, f.scale, pair.refined}};
  if (f.order == ScaleOrder::swizzled)
    pair.scales = b.add(RESHARD_TRY(swizzled(slot, scales, b)));
  else
    pair.scales = b.add(pair.exact ? by_groups(slot, *groups, scales, scale_, b)
                                   : by_sections(slot, scales, b));
  if (f.tensor_factor)
    pair.factor = b.add(pair.exact ? by_groups(slot, *groups, factor, factor_, b)
                                   : by_sections(slot, factor, b));
  out_.pairs.push_back(pair);
  out_.plain.emplace_back(-1);
  return {};
}

Result<> Quantiser::check_format(const QuantFormat& f) const {
  if (f.block_rows < 0 || f.block_cols < 0)
    return fail(Code::invalid_argument, fmt::format("blocks of {} x {} elements; neither may be "
                                                    "negative",
                                                    f.block_rows, f.block_cols));
  if (f.order == ScaleOrder::rows) return {};
  if (f.block_rows != 1 || bits(f.scale) != 8)
    return fail(Code::unsupported,
                "swizzled scales need blocks of one row with one byte of scale each");
  if (out_.choice.grid == BlockGrid::tensor)
    return fail(Code::unsupported,
                "swizzled scales belong to the rank that holds them; their grid must be local");
  return {};
}

Result<QuantisedLayout> Quantiser::run() {
  RESHARD_TRY(check_format(out_.choice.format));
  for (const auto& [tensor, format] : out_.choice.others) RESHARD_TRY(check_format(format));
  RESHARD_TRY(derive_model());
  LayoutBuilder b(out_.choice.name.empty() ? v_.name() : out_.choice.name, model_, v_);
  for (Index t = 0; t < v_.model().size(); ++t) {
    const TensorId id(static_cast<TensorId::rep>(t));
    if (!v_.omits(id)) continue;
    for (const TensorId omitted : {data_[id.index()], scale_[id.index()], factor_[id.index()]})
      if (omitted.value() >= 0) b.omit(omitted);
  }
  for (Index i = 0; i < v_.num_slots(); ++i) {
    const SlotId id(static_cast<SlotId::rep>(i));
    if (const QuantFormat* f = RESHARD_TRY(format_of(v_.slot(id))))
      RESHARD_TRY(add_pair(id, *f, b));
    else
      add_plain(id, b);
  }
  auto stored = RESHARD_TRY(std::move(b).finish());
  out_.stored = std::make_shared<const ModelLayout>(std::move(stored));
  return std::move(out_);
}

}  // namespace
}  // namespace reshard::quant

namespace reshard {

const QuantFormat& QuantChoice::format_of(const std::string& tensor) const {
  const auto other = others.find(tensor);
  return other == others.end() ? format : other->second;
}

std::string to_string(const QuantChoice& choice) {
  std::set<std::string> others;
  for (const auto& [tensor, format] : choice.others) others.insert(to_string(format));
  std::string out = to_string(choice.format);
  for (const std::string& other : others) out += " and " + other;
  return out;
}

bool needs_amax(const QuantChoice& choice) {
  return needs_amax(choice.format) ||
         std::ranges::any_of(choice.others, [](const auto& o) { return needs_amax(o.second); });
}

std::string scale_suffix(const QuantFormat& format) {
  return format.scale == DType::f32 && format.block_cols > 0 ? "_scale_inv" : "_scale";
}

Result<QuantisedLayout> quantise_layout(std::shared_ptr<const ModelLayout> layout,
                                        QuantChoice choice) {
  return quant::Quantiser(std::move(layout), std::move(choice)).run();
}

}  // namespace reshard
