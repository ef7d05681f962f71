// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/quant/codes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reshard/model/layout_builder.h"
#include "reshard/model/quant/blocks.h"

namespace reshard {
namespace {

using Role = CodePart::Role;

constexpr std::array<std::string_view, 3> kForms = {"awq", "gptq", "compressed-tensors"};
constexpr std::string_view kWeight = "weight";

Index up(Index n, Index by) { return (n + by - 1) / by; }

/// "qweight" of "model.layers.0.mlp.up_proj.qweight".
std::string leaf_of(const CodePart& part) { return part.name.substr(part.name.rfind('.') + 1); }

/// True if parts of two weights can be stacked.
bool are_alike(const CodePart& a, const CodePart& b) {
  return leaf_of(a) == leaf_of(b) && a.dims == b.dims;
}

/// Turns a layout of values into one of parts.
class PartLayout {
 public:
  PartLayout(const ModelLayout& values, const ModelCodes& codes, std::string name, bool engine)
      : v_(values), codes_(codes), engine_(engine), b_(std::move(name), codes.tensors, values) {}

  Result<ModelLayout> run() {
    for (Index i = 0; i < v_.num_slots(); ++i)
      RESHARD_TRY(add(v_.slot(SlotId(static_cast<SlotId::rep>(i)))));
    for (Index i = 0; i < v_.model().size(); ++i)
      if (const TensorId id(static_cast<TensorId::rep>(i)); v_.omits(id)) omit(id);
    return std::move(b_).finish();
  }

 private:
  /// The weight of a tensor of values; null if it is plain.
  const CodedWeight* weight_of(TensorId id) const {
    const auto found = codes_.weights.find(v_.model()[id].name);
    return found == codes_.weights.end() ? nullptr : &found->second;
  }
  TensorId stored(const std::string& name) const { return *codes_.tensors->find(name); }
  tl::unexpected<Error> refuse(const Slot& slot, const std::string& why) const {
    return fail(Code::unsupported,
                fmt::format("local tensor '{}' cannot hold {}: {}", slot.name, codes_.text, why));
  }

  void omit(TensorId id) {
    const CodedWeight* const weight = weight_of(id);
    if (weight == nullptr) return b_.omit(stored(v_.model()[id].name));
    for (const CodePart& part : weight->parts) b_.omit(stored(part.name));
  }

  Result<> add(Slot slot) {
    const CodedWeight* first = nullptr;
    const CanonicalTensor* plain = nullptr;
    for (Section& section : slot.sections)
      for (PlacedBox& box : section.parts) {
        const CodedWeight* const weight = weight_of(box.tensor);
        if (weight == nullptr) plain = &v_.model()[box.tensor];
        if (first == nullptr) first = weight;
        if (weight != nullptr && !std::ranges::equal(weight->parts, first->parts, are_alike))
          return refuse(slot, fmt::format("the parts of '{}' are not those of its other tensors",
                                          v_.model()[box.tensor].name));
      }
    if (first != nullptr && plain != nullptr)
      return refuse(slot, fmt::format("'{}' is stored as plain values", plain->name));
    if (first != nullptr) {
      RESHARD_TRY(check(slot));
      for (std::size_t i = 0; i < first->parts.size(); ++i) RESHARD_TRY(add_part(slot, i));
      return {};
    }
    for (Section& section : slot.sections)
      for (PlacedBox& box : section.parts) box.tensor = stored(v_.model()[box.tensor].name);
    b_.add(std::move(slot));
    return {};
  }

  /// Errors: a slot that no parts can express.
  Result<> check(const Slot& slot) const {
    if (slot.map != ValueMap::identity) return refuse(slot, "it stores other values");
    if (slot.merged.bits != 0) return refuse(slot, "its rows come from several dimensions");
    if (slot.padded) return refuse(slot, "it is padded");
    if (!slot.name.ends_with(kWeight)) return refuse(slot, "it is not named as a weight");
    for (const Section& section : slot.sections) {
      if (section.parts.empty()) return refuse(slot, "it is padded");
      if (engine_) RESHARD_TRY(check_for_engine(slot, section));
      for (const PlacedBox& box : section.parts) {
        if (weight_of(box.tensor)->files_only)
          return refuse(slot, "no engine that is known loads '" + v_.model()[box.tensor].name +
                                  "' so; without quant it gets the decoded values");
        if (quant::is_transposed(section, box, {0, 1}) != false || box.box.rank() != 2)
          return refuse(slot, "rows and columns of '" + v_.model()[box.tensor].name +
                                  "' are not its last dimensions");
      }
    }
    return {};
  }

  /// Engines have loaders of their own for other sections, which may treat codes otherwise.
  Result<> check_for_engine(const Slot& slot, const Section& section) const {
    if (section.extent.size() > 2)
      return refuse(slot, "how experts of this form are held depends on the engine's kernels");
    const CanonicalTensor& tensor = v_.model()[section.parts[0].tensor];
    if (section.parts.size() > 1 || section.parts[0].box != Box::whole(tensor.shape))
      return refuse(slot, "it has parts of '" + tensor.name + "', in an order of its own");
    return {};
  }

  static std::string part_name(const Slot& slot, const CodePart& part) {
    return slot.name.substr(0, slot.name.size() - kWeight.size()) + leaf_of(part);
  }

  Result<> add_part(const Slot& slot, std::size_t index) {
    const CodePart& like = weight_of(slot.sections[0].parts[0].tensor)->parts[index];
    if (engine_ && like.role == Role::order) return drop_order(slot, index);
    if (like.role == Role::shape) return add_shape(slot, index);
    const int leading = slot.sections[0].extent.size() - 2;
    Slot out{.name = part_name(slot, like),
             .dtype = like.role == Role::scales ? slot.dtype : like.dtype,
             .mesh = slot.mesh,
             .ranks = slot.ranks,
             .stack_dim = slot.stack_dim};
    out.casts = like.role == Role::scales && slot.casts;
    out.rule = slot.rule;
    if (slot.stack_dim >= leading) {
      const bool rows = slot.stack_dim == leading;
      const auto at = std::ranges::find(like.dims, rows, &CodeDim::rows);
      if (at == like.dims.end() && slot.sections.size() > 1)
        return refuse(slot, fmt::format("its tensors have one '{}' each", leaf_of(like)));
      out.stack_dim =
          at == like.dims.end() ? 0 : leading + static_cast<int>(at - like.dims.begin());
    }
    for (const Section& section : slot.sections)
      out.sections.push_back(RESHARD_TRY(section_of(slot, section, index)));
    b_.add(std::move(out));
    return {};
  }

  /// An engine computes with columns in order.
  Result<> drop_order(const Slot& slot, std::size_t index) {
    for (const Section& section : slot.sections)
      for (const PlacedBox& box : section.parts) {
        const CodedWeight& weight = *weight_of(box.tensor);
        const std::string& name = weight.parts[index].name;
        if (weight.in_order != true)
          return refuse(slot,
                        weight.in_order
                            ? fmt::format("'{}' says that groups are not in the order of columns "
                                          "(desc_act), which the engine refuses",
                                          name)
                            : fmt::format("what '{}' says is known of whole files only; convert "
                                          "to hf:quant={} first",
                                          name, codes_.form));
        b_.omit(stored(name));
      }
    return {};
  }

  /// The loaders of an engine write the shape of each fused tensor to the same place.
  Result<> add_shape(const Slot& slot, std::size_t index) {
    const CodePart* last = nullptr;
    for (const Section& section : slot.sections)
      for (const PlacedBox& box : section.parts) {
        if (last != nullptr) b_.omit(stored(last->name));
        last = &weight_of(box.tensor)->parts[index];
      }
    b_.add(Slot{.name = part_name(slot, *last),
                .dtype = last->dtype,
                .mesh = slot.mesh,
                .ranks = slot.ranks,
                .sections = {whole_tensor(*codes_.tensors, stored(last->name))},
                .rule = slot.rule});
    return {};
  }

  Result<Section> section_of(const Slot& slot, const Section& section, std::size_t index) {
    const int leading = section.extent.size() - 2;
    Section out;
    const CodePart& like = weight_of(section.parts[0].tensor)->parts[index];
    for (int i = 0; i < leading; ++i) {
      out.extent.push_back(section.extent[i]);
      out.cuts[static_cast<std::size_t>(i)] = section.cuts[static_cast<std::size_t>(i)];
    }
    for (std::size_t k = 0; k < like.dims.size(); ++k) {
      const CodeDim& dim = like.dims[k];
      const int from = leading + (dim.rows ? 0 : 1);
      const Index whole = section.extent[from];
      out.extent.push_back(up(whole, dim.unit));
      CutId id = section.cuts[static_cast<std::size_t>(from)];
      if (dim.unit > 1 && id != CutId(0)) {
        DimCut how = b_.dim_cut(id);
        how.blocks = {.block = dim.unit, .elements = whole, .window = {0, whole}};
        id = b_.add_cut(how);
      }
      out.cuts[static_cast<std::size_t>(leading) + k] = id;
    }
    for (const PlacedBox& box : section.parts) {
      RESHARD_TRY(check_cuts(slot, section, box, index));
      out.parts.push_back(part_of(box, leading, index));
    }
    return out;
  }

  /// @pre check_cuts()
  PlacedBox part_of(const PlacedBox& box, int leading, std::size_t index) const {
    const CodePart& part = weight_of(box.tensor)->parts[index];
    PlacedBox out{stored(part.name), {}, {}};
    std::vector<Interval> sides;
    for (int i = 0; i < leading; ++i) out.at.push_back(box.at[i]);
    for (std::size_t k = 0; k < part.dims.size(); ++k) {
      const CodeDim& dim = part.dims[k];
      const Interval of = box.box[dim.rows ? 0 : 1];
      sides.push_back({of.begin() / dim.unit, up(of.end(), dim.unit)});
      out.at.push_back(box.at[leading + (dim.rows ? 0 : 1)] / dim.unit);
      out.dims[k] = static_cast<std::int8_t>(leading + static_cast<int>(k));
    }
    out.box = Box(sides);
    return out;
  }

  /// Errors: a box, or a rank's piece of it, that begins or ends inside a word or a group.
  Result<> check_cuts(const Slot& slot, const Section& section, const PlacedBox& box,
                      std::size_t index) {
    const CodedWeight& weight = *weight_of(box.tensor);
    const CodePart& part = weight.parts[index];
    for (const CodeDim& dim : part.dims) {
      const Index whole = dim.rows ? weight.rows : weight.cols;
      const bool shared = !dim.rows && dim.unit >= whole && weight.shares_group;
      if (dim.unit == 1 || shared) continue;
      const Interval of = box.box[dim.rows ? 0 : 1];
      const int full = section.extent.size() - (dim.rows ? 2 : 1);
      const Index shift = of.begin() - box.at[full];
      std::vector<Index> ends = {of.begin(), of.end()};
      if (box.at[full] % dim.unit != 0) ends.push_back(box.at[full]);
      for (const Interval held : pieces_.pieces(slot, section, full))
        for (const Index end : {held.begin() + shift, held.end() + shift})
          if (end > of.begin() && end < of.end()) ends.push_back(end);
      for (const Index end : ends)
        if (end % dim.unit != 0 && end != whole) return cuts_inside(slot, box, part, dim, end);
    }
    return {};
  }

  tl::unexpected<Error> cuts_inside(const Slot& slot, const PlacedBox& box, const CodePart& part,
                                    const CodeDim& dim, Index end) const {
    const CanonicalTensor& tensor = v_.model()[box.tensor];
    const Index whole = tensor.shape[dim.rows ? 0 : 1], at = end / dim.unit;
    const bool group = !dim.rows && part.role != Role::codes;
    return refuse(
        slot, fmt::format("a cut of '{}' at {} {} is inside {} {} of '{}', {} {} to {}",
                          tensor.name, dim.rows ? "row" : "column", end, group ? "group" : "word",
                          at, part.name, dim.rows ? "rows" : "columns", at * dim.unit,
                          std::min(whole, (at + 1) * dim.unit)));
  }

  const ModelLayout& v_;
  const ModelCodes& codes_;
  bool engine_;
  LayoutBuilder b_;
  quant::PieceTable pieces_{v_};
};

}  // namespace

const CodePart* CodedWeight::part(CodePart::Role role) const {
  const auto found = std::ranges::find(parts, role, &CodePart::role);
  return found == parts.end() ? nullptr : &*found;
}

bool CodedWeight::is_known(const CodePart& part) const {
  return part.role == Role::shape || (part.role == Role::order && in_order == true);
}

Dims CodedWeight::shape_of(const CodePart& part) const {
  if (part.role == Role::shape) return {2};
  Dims shape;
  for (const CodeDim& dim : part.dims) {
    const Index elements = up(dim.rows ? rows : cols, dim.unit) * dim.elements;
    shape.push_back(up(elements, dim.multiple) * dim.multiple);
  }
  return shape;
}

bool is_code_form(std::string_view name) { return std::ranges::find(kForms, name) != kForms.end(); }

std::string known_code_forms() { return fmt::format("{}", fmt::join(kForms, ", ")); }

Result<ModelSpec> stored_tensors(const ModelSpec& values, const ModelCodes& codes) {
  ModelSpec out;
  for (const CanonicalTensor& t : values.tensors()) {
    const auto found = codes.weights.find(t.name);
    if (found == codes.weights.end()) {
      RESHARD_TRY(out.add(t.name, t.shape, t.dtype, t.merged));
      continue;
    }
    for (const CodePart& part : found->second.parts)
      RESHARD_TRY(out.add(part.name, found->second.shape_of(part), part.dtype));
  }
  return out;
}

Result<ModelLayout> codes_layout(const ModelLayout& values, const ModelCodes& codes,
                                 const std::string& name, bool engine) {
  return PartLayout(values, codes, name, engine).run();
}

}  // namespace reshard
