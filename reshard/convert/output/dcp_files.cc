// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "reshard/convert/output/output_files.h"
#include "reshard/io/checkpoint/index.h"
#include "reshard/io/checkpoint/pieces.h"
#include "reshard/io/checkpoint/safetensors_writer.h"
#include "reshard/io/dcp/dcp_writer.h"

namespace reshard::output {
namespace {

/// Whether the fragment is all of its local tensor, row-major.
bool fills(const LocalTensor& local) {
  if (local.fragments.size() != 1 || local.fragments[0].where.offset != 0) return false;
  const Fragment& f = local.fragments[0];
  if (f.box.rank() != local.shape.size()) return false;
  Index step = 1;
  for (int i = f.box.rank() - 1; i >= 0; --i) {
    if (f.box[i].size() != local.shape[i]) return false;
    if (local.shape[i] > 1 && f.where.strides[i] != step) return false;
    step *= local.shape[i];
  }
  return true;
}

/// The offsets of a box in the tensor as it is stored.
Dims stored_offsets(const Box& box, const CanonicalTensor& t) {
  Dims out;
  for (int i = 0; i < t.shape.size(); ++i) {
    Index at = box[i].begin();
    for (; (t.merged.bits >> i & 1U) != 0; ++i) at = at * t.shape[i + 1] + box[i + 1].begin();
    out.push_back(at);
  }
  return out;
}

Result<Index> file_bytes_of(const OutputFile& file, bool safetensors) {
  if (safetensors) return RESHARD_TRY(plan_safetensors(file.tensors, file.metadata)).file_bytes;
  return RESHARD_TRY(plan_dcp_file(file.tensors)).file_bytes;
}

constexpr const char* kObjectsFile = "__extra_states.distcp";

/// Which piece of which tensor each slot is.
class PieceNames {
 public:
  explicit PieceNames(const LayoutSide& side)
      : layout_(*side.stored()), stored_(side.pieces.get()) {
    if (stored_ == nullptr) {
      for (const CanonicalTensor& t : layout_.model().tensors())
        tensors_.push_back({t.name, t.dtype, t.stored_shape()});
      add_copies();
    } else {
      tensors_ = stored_->tensors;
      for (const TensorPiece& piece : stored_->pieces) by_slot_.emplace(piece.local, &piece);
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i) ids_.emplace(tensors_[i].name, i);
  }

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  /// The spec of a piece's tensor in `tensors`, which is a copy of tensors().
  TensorSpec& spec_of(const DcpPiece& piece, std::vector<TensorSpec>& tensors) const {
    return tensors[ids_.at(piece.tensor)];
  }

  /// The tensor of a slot, if it has no elements: it is a piece too, though of no bytes.
  const CanonicalTensor* without_elements(SlotId slot) const {
    const auto& sections = layout_.slot(slot).sections;
    if (sections.empty() || sections[0].parts.empty()) return nullptr;
    const CanonicalTensor& t = layout_.model()[sections[0].parts[0].tensor];
    return volume(t.shape) == 0 ? &t : nullptr;
  }

  /// Without its place in a file. @pre without LayoutSide::pieces, the local tensor is one box of
  /// the tensor that the slot names, or of a tensor without elements
  DcpPiece of(SlotId slot, Rank r) const {
    if (stored_ == nullptr) {
      if (const CanonicalTensor* t = without_elements(slot)) {
        const Dims shape = t->stored_shape();
        return {layout_.slot(slot).name, Dims::filled(shape.size(), 0), shape, {}, {}};
      }
      const Fragment f = layout_.local(slot, r).fragments[0];
      const CanonicalTensor& t = layout_.model()[f.tensor];
      return {
          layout_.slot(slot).name, stored_offsets(f.box, t), layout_.stored_shape(slot, r), {}, {}};
    }
    const TensorPiece& piece = *by_slot_.at(layout_.slot(slot).name);
    DcpPiece out{stored_->tensors[piece.tensor].name, {}, piece.box.shape(), {}, {}};
    for (int i = 0; i < piece.box.rank(); ++i) out.offsets.push_back(piece.box[i].begin());
    return out;
  }

 private:
  /// Tensors that are stored again under a second name: the slot's.
  void add_copies() {
    std::set<std::string> known;
    for (const TensorSpec& tensor : tensors_) known.insert(tensor.name);
    for (const Rank r : layout_.ranks().members())
      for (const SlotId slot : layout_.slots_of(r)) {
        const LocalTensor local = layout_.local(slot, r);
        const std::string& name = layout_.slot(slot).name;
        if (local.fragments.empty() || !known.insert(name).second) continue;
        const CanonicalTensor& t = layout_.model()[local.fragments[0].tensor];
        tensors_.push_back({name, t.dtype, t.stored_shape()});
      }
  }

  const ModelLayout& layout_;
  const TensorPieces* stored_;
  std::vector<TensorSpec> tensors_;
  std::map<std::string, std::size_t> ids_;
  std::map<std::string, const TensorPiece*> by_slot_;
};

/// Writes the files that Megatron's dist_checkpointing reads beside `.metadata`.
Result<> write_megatron_files(const TensorPieces& pieces, OutputDir& folder) {
  const bool stacked = std::ranges::any_of(pieces.tensors, [](const TensorSpec& t) {
    return t.name == "decoder.layers.self_attention.linear_proj.weight";
  });
  RESHARD_TRY(folder.write_text("common.pt", megatron_common(stacked)));
  return folder.write_text("metadata.json",
                           "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, "
                           "\"common_backend\": \"torch\", \"common_backend_version\": 1}");
}

}  // namespace

Result<OutputFiles> dcp_output_files(const LayoutSide& side, bool safetensors) {
  OutputFiles output;
  output.dcp = !safetensors;
  const ModelLayout& layout = *side.stored();
  const PieceNames names(side);
  std::set<std::string> written;
  for (const Rank r : layout.ranks().members()) {
    OutputFile file{safetensors ? sharded_file_name(r) : dcp_file_name(r), r};
    std::vector<DcpPiece> pieces;
    for (const SlotId slot : layout.slots_of(r)) {
      const LocalTensor local = layout.local(slot, r);
      const bool none = names.without_elements(slot) != nullptr;
      if (local.fragments.empty() && !none && !side.pieces) continue;
      if (!side.pieces && !none && !fills(local))
        return fail(Code::unsupported,
                    fmt::format("dcp: local tensor '{}' of rank {} is not one box of a tensor",
                                layout.slot(slot).name, r.value()));
      DcpPiece piece = names.of(slot, r);
      if (!written.insert(fmt::format("{} {}", piece.tensor, to_string(piece.offsets))).second)
        continue;
      file.slots.push_back(slot);
      file.tensors.push_back({layout.slot(slot).name, layout.slot(slot).dtype, piece.sizes});
      file.tensor_bytes += volume(piece.sizes) * bits(layout.slot(slot).dtype) / 8;
      pieces.push_back(std::move(piece));
    }
    if (safetensors) file.metadata = sharded_file_metadata(pieces);
    auto bytes = file_bytes_of(file, safetensors);
    if (!bytes) return tl::unexpected(std::move(bytes).error().in(file.name));
    file.file_bytes = *bytes;
    output.of_rank.push_back(file.name);
    if (!file.slots.empty()) output.files.push_back(std::move(file));
  }
  return output;
}

Result<> write_dcp_metadata(const LayoutSide& side, const OutputFiles& files, OutputDir& folder) {
  const PieceNames names(side);
  std::vector<TensorSpec> tensors = names.tensors();
  std::vector<DcpPiece> pieces;
  for (const OutputFile& file : files.files) {
    const DcpFilePlan plan = RESHARD_TRY(plan_dcp_file(file.tensors));
    for (std::size_t i = 0; i < file.slots.size(); ++i) {
      DcpPiece piece = names.of(file.slots[i], file.rank);
      piece.file = file.name;
      piece.item = plan.items[i];
      names.spec_of(piece, tensors).dtype = file.tensors[i].dtype;
      pieces.push_back(std::move(piece));
    }
  }
  std::vector<DcpObject> objects;
  if (side.pieces) {
    const std::string none = saved_none();
    const DcpFilePlan::Item item{0, static_cast<std::int64_t>(none.size())};
    for (const CheckpointEntry& entry : side.pieces->others)
      objects.push_back({entry.name, kObjectsFile, item});
    RESHARD_TRY(folder.write_text(kObjectsFile, none));
    RESHARD_TRY(write_megatron_files(*side.pieces, folder));
  }
  return folder.write_text(kDcpFile, dcp_metadata(tensors, pieces, objects));
}

}  // namespace reshard::output
