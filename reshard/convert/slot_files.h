// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "reshard/io/make_layout.h"
#include "reshard/model/quant/files.h"

namespace reshard {

/// How files hold the slots of a layout: with the slot's name, dtype and shape or, for data and
/// scales of quantised tensors, as the checkpoint's method or the framework's modules store them.
/// The bytes are those of the slot either way.
class SlotFiles {
 public:
  /// Borrows side.stored(). Errors: a slot that files of the method cannot hold.
  static Result<SlotFiles> of(const LayoutSide& side);
  /// Borrows another object of the same layout instead. @pre equal digests
  void borrow(const ModelLayout& layout) { layout_ = &layout; }
  /// For a layout whose tensors are not quantised.
  explicit SlotFiles(const ModelLayout& layout)
      : layout_(&layout), of_slot_(static_cast<std::size_t>(layout.num_slots())) {}

  /// @pre the rank has the slot
  FileTensor file_tensor(SlotId slot, Rank r) const;
  /// The shape that files hold as a tensor of its own beside packed integers; none of other slots.
  /// @pre the rank has the slot
  struct PackedShape {
    FileTensor tensor;  ///< I64 [2].
    std::array<std::int64_t, 2> sizes{};
  };
  std::optional<PackedShape> packed_shape(SlotId slot, Rank r) const;
  /// True for data, scales and factors of quantised tensors.
  bool is_part(SlotId slot) const { return of_slot_[slot.index()].has_value(); }
  /// The format of the quantised tensor. @pre is_part(slot)
  const QuantFormat& format_of(SlotId slot) const { return of_slot_[slot.index()]->format; }

 private:
  struct Part {
    QuantPart part = QuantPart::data;
    std::string tensor;
    QuantFormat format;
  };
  Result<FileTensor> part_tensor(SlotId slot, Rank r) const;

  const ModelLayout* layout_;
  std::optional<QuantMethod> method_, modules_;
  std::vector<std::optional<Part>> of_slot_;
};

}  // namespace reshard
