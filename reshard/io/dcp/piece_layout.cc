// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/dcp/piece_layout.h"

#include <fmt/format.h>

#include <map>
#include <string_view>

#include "reshard/io/checkpoint/pieces.h"
#include "reshard/io/files/json.h"
#include "reshard/io/torch_dist/parameter.h"
#include "reshard/model/explicit_slots.h"

namespace reshard::dcp {
namespace {

bool is_row_major(const Dims& order) {
  for (int i = 0; i < order.size(); ++i)
    if (order[i] != i) return false;
  return true;
}

/// A box of the tensor as it is stored, in the model's dimensions; none if it has no such form.
std::optional<Box> in_model(const Box& stored, const CanonicalTensor& t) {
  std::array<Interval, kMaxDims> dims;
  int from = 0;
  for (int i = 0; i < t.shape.size(); ++i, ++from) {
    Index inner = 1;
    int last = i;
    while ((t.merged.bits >> last & 1U) != 0) inner *= t.shape[++last];
    const Interval cut = stored[from];
    if (cut.begin() % inner != 0 || cut.end() % inner != 0) return std::nullopt;
    dims[static_cast<std::size_t>(i)] = Interval{cut.begin() / inner, cut.end() / inner};
    for (; i < last; ++i) dims[static_cast<std::size_t>(i) + 1] = Interval{0, t.shape[i + 1]};
  }
  return Box(std::span<const Interval>(dims.data(), static_cast<std::size_t>(t.shape.size())));
}

/// The local tensor that holds a piece.
Result<ExplicitTensor> local_tensor(const TensorPiece& piece, TensorId id, const CanonicalTensor& t,
                                    DType dtype) {
  const auto box = in_model(piece.box, t);
  if (!box || (t.merged.bits != 0 && !is_row_major(piece.order)))
    return fail(Code::unsupported,
                fmt::format("piece {} of tensor {} cuts between elements that the model keeps "
                            "together",
                            to_string(piece.box), in_quotes(t.name)));
  ExplicitTensor local{.name = piece.local, .dtype = dtype};
  PlacedBox part{.tensor = id, .box = *box, .at = Dims::filled(t.shape.size(), 0)};
  if (t.merged.bits != 0) {
    local.shape = box->shape();
    local.merged = t.merged;
    for (int i = 0; i < t.shape.size(); ++i)
      part.dims[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(i);
  } else {
    local.shape = Dims::filled(t.shape.size(), 0);
    for (int i = 0; i < t.shape.size(); ++i) {
      const auto dim = static_cast<int>(piece.order[i]);
      local.shape[i] = (*box)[dim].size();
      part.dims[static_cast<std::size_t>(dim)] = static_cast<std::int8_t>(i);
    }
  }
  local.parts.push_back(part);
  return local;
}

/// The local tensor that holds a piece of a stack.
ExplicitTensor local_stack(const TensorPiece& piece, const Section& stack, DType dtype) {
  ExplicitTensor local{.name = piece.local, .dtype = dtype, .shape = piece.order};
  std::array<std::int8_t, kMaxDims> place{};  // in memory, of each dimension
  for (int i = 0; i < piece.order.size(); ++i) {
    place[static_cast<std::size_t>(piece.order[i])] = static_cast<std::int8_t>(i);
    local.shape[i] = piece.box[static_cast<int>(piece.order[i])].size();
  }
  for (const PlacedBox& whole : stack.parts) {
    const auto kept = torch_dist::clipped(whole, piece.box);
    if (!kept) continue;
    PlacedBox part = *kept;
    for (int i = 0; i < piece.order.size(); ++i)
      part.at[i] = kept->at[static_cast<int>(piece.order[i])];
    for (int i = 0; i < part.box.rank(); ++i) {
      const auto dim = static_cast<std::size_t>(i);
      part.dims[dim] = place[static_cast<std::size_t>(kept->dims[dim])];
    }
    local.parts.push_back(part);
  }
  return local;
}

/// The tensors of a checkpoint by their names in it.
class FileForm {
 public:
  FileForm(const ModelSpec& model, const std::vector<ModuleTensor>& form) : model_(model) {
    for (const ModuleTensor& t : form) by_name_.emplace(t.name, &t);
  }
  /// None for what was left out.
  std::optional<ModuleTensor> find(const std::string& name) const {
    if (by_name_.empty()) {
      const auto id = model_.find(name);
      return id ? std::optional(ModuleTensor{name, *id}) : std::nullopt;
    }
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? std::nullopt : std::optional(*found->second);
  }

 private:
  const ModelSpec& model_;
  std::map<std::string_view, const ModuleTensor*> by_name_;
};

}  // namespace

Result<ModelLayout> piece_layout(const Checkpoint& weights, std::shared_ptr<const ModelSpec> model,
                                 const std::vector<ModuleTensor>& form) {
  const TensorPieces& content = weights.pieces();
  LayoutBuilder builder("dcp", model);
  ExplicitSlots slots(builder);
  const RankSet rank = RankSet::range(0, 1);
  slots.add_ranks(rank);
  const FileForm files(*model, form);
  for (const TensorPiece& piece : content.pieces) {
    const TensorSpec& stored = content.tensors[piece.tensor];
    const auto t = files.find(stored.name);
    if (!t) continue;  // was left out
    const Dims want = t->stored_shape(*model);
    if (!(want == stored.shape))
      return fail(Code::corrupt,
                  fmt::format("{}: tensor {} is {}, must be {}", weights.folder(),
                              in_quotes(t->name), to_string(stored.shape), to_string(want)));
    auto local = t->stack ? local_stack(piece, *t->stack, stored.dtype)
                          : local_tensor(piece, t->tensor, (*model)[t->tensor], stored.dtype);
    if (!local) return tl::unexpected(std::move(local).error().in(weights.folder()));
    slots.add(rank, *std::move(local));
  }
  slots.finish();
  return std::move(builder).finish();
}

}  // namespace reshard::dcp
