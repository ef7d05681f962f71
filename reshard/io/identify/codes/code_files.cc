// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/codes/code_files.h"

#include <fmt/format.h>

#include <algorithm>

namespace reshard::identify {

std::optional<DType> value_dtype(std::string_view torch_name) {
  const auto dtype = dtype_from_torch_name(torch_name);
  const bool fits = dtype && std::ranges::find(kFloats, *dtype) != kFloats.end();
  return fits ? dtype : std::nullopt;
}

Result<const CheckpointTensor*> CodeFiles::part(FoundCodes& found, const CheckpointTensor& codes,
                                                const WantedPart& want) const {
  const auto* const said = RESHARD_TRY(find_part(form_, spec_, codes.name, want));
  const CheckpointTensor* const t = stored(said->name);
  found.parts.push_back(t->name);
  return t;
}

CodedMatrix CodeFiles::signed_bytes(const CheckpointTensor& t) const {
  CodedMatrix m{.rows = t.shape[0], .cols = t.shape[1], .codes = {}};
  m.codes = {.words = data(t),
             .bits = 8,
             .word_bytes = 1,
             .is_signed = true,
             .row_stride = t.shape[1],
             .col_stride = 1};
  return m;
}

}  // namespace reshard::identify
