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
  const CheckpointTensor* const t = stored(want.name);
  if (t == nullptr)
    return fail(Code::unsupported, fmt::format("'{}' is stored as {} without '{}'", codes.name,
                                               form_.text, want.name));
  if (std::ranges::find(want.dtypes, t->dtype) == want.dtypes.end() || t->shape != want.shape) {
    std::string dtypes;
    for (const DType d : want.dtypes)
      dtypes += fmt::format("{}{}", dtypes.empty() ? "" : " or ", name(d));
    return fail(Code::unsupported,
                fmt::format("'{}' is {} {}; of '{}', stored as {}, it must be {} {}", t->name,
                            name(t->dtype), to_string(t->shape), codes.name, form_.text, dtypes,
                            to_string(want.shape)));
  }
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
