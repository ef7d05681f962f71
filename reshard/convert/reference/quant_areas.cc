// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/reference/quant_areas.h"

namespace reshard::reference {

Result<std::vector<QuantArea>> areas_of(const QuantisedLayout& layout,
                                        const QuantisedLayout::Pair& pair, Rank r,
                                        const SlotMemory& memory) {
  const QuantFormat& f = pair.format;
  const DType dtype = layout.values->slot(pair.values).dtype;
  std::vector<QuantArea> out;
  for (const QuantBlockArea& a : block_areas(layout, pair, r)) {
    RESHARD_TRY(check_quant_format(f, a.rows, a.cols));
    QuantArea area;
    area.values = {memory.values + size_of(dtype, a.data_offset), dtype, a.rows, a.cols,
                   size_of(dtype, a.data_row)};
    area.quantised = {
        f,
        memory.data + size_of(f.data, a.data_offset),
        a.rows,
        a.cols,
        size_of(f.data, a.data_row),
        memory.scales + size_of(f.scale, a.scale_offset),
        size_of(f.scale, a.scale_row),
        memory.factor == nullptr ? nullptr : memory.factor + size_of(DType::f32, a.factor_offset)};
    out.push_back(area);
  }
  return out;
}

}  // namespace reshard::reference
