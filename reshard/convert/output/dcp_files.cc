// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <set>

#include "reshard/convert/output/output_files.h"
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

/// Where a box begins in the tensor as it is stored.
Dims stored_offsets(const Box& box, const CanonicalTensor& t) {
  Dims out;
  for (int i = 0; i < t.shape.size(); ++i) {
    Index at = box[i].begin();
    for (; (t.merged.bits >> i & 1U) != 0; ++i) at = at * t.shape[i + 1] + box[i + 1].begin();
    out.push_back(at);
  }
  return out;
}

/// A piece that a rank writes: the first of those that hold it.
std::string key_of(const Fragment& f) {
  return fmt::format("{} {}", f.tensor.value(), to_string(f.box));
}

}  // namespace

Result<OutputFiles> dcp_output_files(const LayoutSide& side) {
  OutputFiles output;
  output.dcp = true;
  const ModelLayout& layout = *side.stored();
  std::set<std::string> written;
  for (const Rank r : layout.ranks().members()) {
    OutputFile file{dcp_file_name(r), r, {}, {}, 0, 0};
    for (const SlotId slot : layout.slots_of(r)) {
      const LocalTensor local = layout.local(slot, r);
      if (local.fragments.empty()) continue;
      if (!fills(local))
        return fail(Code::unsupported,
                    fmt::format("dcp: local tensor '{}' of rank {} is not one box of a tensor",
                                layout.slot(slot).name, r.value()));
      if (!written.insert(key_of(local.fragments[0])).second) continue;
      file.slots.push_back(slot);
      file.tensors.push_back(
          {layout.slot(slot).name, layout.slot(slot).dtype, layout.stored_shape(slot, r)});
      file.tensor_bytes += volume(local.shape) * bits(layout.slot(slot).dtype) / 8;
    }
    auto plan = plan_dcp_file(file.tensors);
    if (!plan) return tl::unexpected(std::move(plan).error().in(file.name));
    file.file_bytes = plan->file_bytes;
    output.of_rank.push_back(file.name);
    if (!file.slots.empty()) output.files.push_back(std::move(file));
  }
  return output;
}

Result<std::string> dcp_metadata_of(const ModelLayout& layout, const OutputFiles& files) {
  std::vector<DcpPiece> pieces;
  ModelSpec tensors;
  std::vector<DType> dtypes;
  for (const CanonicalTensor& t : layout.model().tensors()) dtypes.push_back(t.dtype);
  for (const OutputFile& file : files.files) {
    const DcpFilePlan plan = RESHARD_TRY(plan_dcp_file(file.tensors));
    for (std::size_t i = 0; i < file.slots.size(); ++i) {
      const Fragment f = layout.local(file.slots[i], file.rank).fragments[0];
      const CanonicalTensor& t = layout.model()[f.tensor];
      dtypes[f.tensor.index()] = file.tensors[i].dtype;
      pieces.push_back(
          {t.name, stored_offsets(f.box, t), file.tensors[i].shape, file.name, plan.items[i]});
    }
  }
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    const CanonicalTensor& t = layout.model().tensors()[i];
    RESHARD_TRY(tensors.add(t.name, t.shape, dtypes[i], t.merged));
  }
  return dcp_metadata(tensors, pieces);
}

}  // namespace reshard::output
