// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/slot_files.h"

namespace reshard {

Result<SlotFiles> SlotFiles::of(const LayoutSide& side) {
  SlotFiles files(*side.stored());
  if (!side.quantised) return files;
  files.method_ = side.method;
  files.modules_ = side.modules;
  for (const QuantisedLayout::Pair& pair : side.quantised->pairs) {
    const std::string& tensor = side.values->slot(pair.values).name;
    files.of_slot_[pair.data.index()] = {QuantPart::data, tensor, pair.format};
    files.of_slot_[pair.scales.index()] = {QuantPart::scales, tensor, pair.format};
    if (pair.factor.value() >= 0)
      files.of_slot_[pair.factor.index()] = {QuantPart::factor, tensor, pair.format};
  }
  if (!side.method) return files;
  for (Rank r : files.layout_->ranks().members())
    for (SlotId slot : files.layout_->slots_of(r))
      if (files.is_part(slot)) RESHARD_TRY(files.part_tensor(slot, r));
  return files;
}

Result<FileTensor> SlotFiles::part_tensor(SlotId slot, Rank r) const {
  const Part& part = *of_slot_[slot.index()];
  const Slot& s = layout_->slot(slot);
  const Dims shape = layout_->stored_shape(slot, r);
  if (!method_) return in_modules(modules_, part.format, part.part, s.name, s.dtype, shape);
  return in_files(*method_, part.format, part.part, part.tensor, s.dtype, shape);
}

std::optional<SlotFiles::PackedShape> SlotFiles::packed_shape(SlotId slot, Rank r) const {
  const auto& part = of_slot_[slot.index()];
  if (!part || part->part != QuantPart::data || !method_ || !has_packed_integers(part->format))
    return std::nullopt;
  const Dims shape = layout_->stored_shape(slot, r);
  return PackedShape{{name_of_packed_shape(part->tensor), DType::i64, Dims::filled(1, 2)},
                     {shape[0], shape[1]}};
}

FileTensor SlotFiles::file_tensor(SlotId slot, Rank r) const {
  if (is_part(slot))
    if (auto tensor = part_tensor(slot, r)) return *std::move(tensor);
  const Slot& s = layout_->slot(slot);
  return {s.name, s.dtype, layout_->stored_shape(slot, r)};
}

}  // namespace reshard
