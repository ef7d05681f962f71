// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/dcp/piece_layout.h"

#include <fmt/format.h>

#include "reshard/io/files/json.h"
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

}  // namespace

Result<ModelLayout> piece_layout(const Checkpoint& weights,
                                 std::shared_ptr<const ModelSpec> model) {
  const TensorPieces& content = weights.pieces();
  LayoutBuilder builder("dcp", model);
  ExplicitSlots slots(builder);
  const RankSet rank = RankSet::range(0, 1);
  slots.add_ranks(rank);
  for (const TensorPiece& piece : content.pieces) {
    const TensorSpec& stored = content.tensors[piece.tensor];
    const auto id = model->find(stored.name);
    if (!id) continue;  // was left out
    const CanonicalTensor& t = (*model)[*id];
    if (!(t.stored_shape() == stored.shape))
      return fail(Code::corrupt, fmt::format("{}: tensor {} is {}, must be {}", weights.folder(),
                                             in_quotes(t.name), to_string(stored.shape),
                                             to_string(t.stored_shape())));
    auto local = local_tensor(piece, *id, t, stored.dtype);
    if (!local) return tl::unexpected(std::move(local).error().in(weights.folder()));
    slots.add(rank, *std::move(local));
  }
  slots.finish();
  return std::move(builder).finish();
}

}  // namespace reshard::dcp
