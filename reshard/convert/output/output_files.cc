// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/output/output_files.h"

#include <map>
#include <optional>

#include "reshard/base/hash.h"
#include "reshard/convert/slot_files.h"
#include "reshard/io/checkpoint/index.h"
#include "reshard/io/checkpoint/safetensors_writer.h"

namespace reshard::output {
namespace {

/// True if the two ranks have the same local tensors with the same content.
bool have_same_content(const ModelLayout& layout, const std::vector<SlotId>& slots, Rank a,
                       Rank b) {
  if (layout.slots_of(a) != layout.slots_of(b)) return false;
  const auto same_fragment = [](const Fragment& x, const Fragment& y) {
    return x.tensor == y.tensor && x.box == y.box && x.where == y.where;
  };
  for (SlotId slot : slots) {
    const LocalTensor x = layout.local(slot, a), y = layout.local(slot, b);
    if (x.shape != y.shape || !std::equal(x.fragments.begin(), x.fragments.end(),
                                          y.fragments.begin(), y.fragments.end(), same_fragment))
      return false;
  }
  return true;
}

/// Equal for ranks with the same content.
std::uint64_t content_digest(const ModelLayout& layout, const std::vector<SlotId>& slots, Rank r) {
  Digest d;
  for (SlotId slot : slots) {
    d.add(slot.value());
    for (const Fragment& f : layout.local(slot, r).fragments) {
      d.add(f.tensor.value()).add(f.where.offset);
      for (int i = 0; i < f.box.rank(); ++i) d.add(f.box[i].begin()).add(f.box[i].end());
    }
  }
  return d.value();
}

void add_slot(const SlotFiles& slot_files, SlotId slot, OutputFile& file) {
  const FileTensor t = slot_files.file_tensor(slot, file.rank);
  file.slots.push_back(slot);
  file.tensors.push_back({t.name, t.dtype, t.shape});
  file.tensor_bytes += volume(t.shape) * bits(t.dtype) / 8;
}

/// Adds the shapes of packed integers behind the tensors of slots. Call it once, when the file has
/// all of its slots.
void add_packed_shapes(const SlotFiles& slot_files, OutputFile& file) {
  for (const SlotId slot : file.slots)
    if (auto shape = slot_files.packed_shape(slot, file.rank)) {
      file.tensors.push_back({shape->tensor.name, shape->tensor.dtype, shape->tensor.shape});
      file.packed_shapes.push_back(shape->sizes);
      file.tensor_bytes += static_cast<Index>(sizeof shape->sizes);
    }
}

Result<> find_file_bytes(OutputFiles& output) {
  for (OutputFile& file : output.files) {
    auto plan = plan_safetensors(file.tensors, file.metadata);
    if (!plan) return tl::unexpected(std::move(plan).error().in(file.name));
    file.file_bytes = plan->file_bytes;
  }
  return {};
}

}  // namespace

Index OutputFiles::file_bytes() const {
  Index total = 0;
  for (const OutputFile& file : files) total += file.file_bytes;
  return total;
}

Index OutputFiles::tensor_bytes() const {
  Index total = 0;
  for (const OutputFile& file : files) total += file.tensor_bytes;
  return total;
}

Result<OutputFiles> hf_output_files(const LayoutSide& side, Index max_shard_bytes) {
  OutputFiles output;
  const ModelLayout& layout = *side.stored();
  const SlotFiles slot_files = RESHARD_TRY(SlotFiles::of(side));
  for (Rank r : layout.ranks().members()) {
    bool fresh = true;
    for (SlotId slot : layout.slots_of(r)) {
      const Index bytes = volume(layout.local_shape(slot, r)) * bits(layout.slot(slot).dtype) / 8;
      const bool full = !fresh && max_shard_bytes > 0 &&
                        output.files.back().tensor_bytes + bytes > max_shard_bytes;
      if (fresh || full) output.files.push_back({"", r});
      fresh = false;
      add_slot(slot_files, slot, output.files.back());
    }
  }
  for (OutputFile& file : output.files) add_packed_shapes(slot_files, file);
  const int count = static_cast<int>(output.files.size());
  for (int i = 0; i < count; ++i)
    output.files[static_cast<std::size_t>(i)].name = hf_file_name(i, count);
  RESHARD_TRY(find_file_bytes(output));
  return output;
}

Result<OutputFiles> rank_output_files(const LayoutSide& side) {
  OutputFiles output;
  const ModelLayout &layout = *side.stored(), &values = *side.values;
  const SlotFiles files = RESHARD_TRY(SlotFiles::of(side));
  std::map<std::uint64_t, std::vector<std::size_t>> by_content;
  for (Rank r : layout.ranks().members()) {
    const auto slots = layout.slots_of(r);
    std::optional<std::size_t> shared;
    const auto value_slots = values.slots_of(r);
    auto& same_digest = by_content[content_digest(values, value_slots, r)];
    for (std::size_t i : same_digest)
      if (have_same_content(values, value_slots, output.files[i].rank, r)) shared = i;
    if (!shared) {
      shared = output.files.size();
      same_digest.push_back(*shared);
      output.files.push_back({rank_file_name(r), r});
      for (SlotId slot : slots) add_slot(files, slot, output.files.back());
    }
    output.of_rank.push_back(output.files[*shared].name);
  }
  RESHARD_TRY(find_file_bytes(output));
  return output;
}

std::string hf_index_of(const OutputFiles& files) {
  WeightMap map;
  for (const OutputFile& file : files.files)
    for (const TensorSpec& tensor : file.tensors) map.emplace(tensor.name, file.name);
  return hf_index_text(map, files.tensor_bytes());
}

}  // namespace reshard::output
