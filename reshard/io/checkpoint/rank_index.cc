// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/checkpoint/rank_index.h"

#include <fmt/format.h>

#include "reshard/io/checkpoint/tensor_list.h"
#include "reshard/io/files/json.h"

namespace reshard {
namespace {

constexpr JsonLimits kLimits{
    .bytes = std::size_t{100'000'000}, .values = std::size_t{8} << 20, .depth = 16};
Result<ModelSpec> parse_tensors(std::string_view text) {
  const Json json = RESHARD_TRY(parse_json(text, kLimits));
  const Json* list = json.find("tensors");
  if (list == nullptr || list->array() == nullptr || list->array()->empty())
    return fail(Code::corrupt,
                "tensors must be the list of canonical tensors, as convert writes it");
  return checkpoint::parse_tensor_list(*list);
}

}  // namespace

std::string rank_index_text(const RankIndex& index, const ModelSpec& tensors) {
  std::string text = reshard::rank_index_text(index);
  // Inserted before the closing brace, with one line per tensor; a generic writer would need ten.
  text.erase(text.find_last_of('}'));
  text.erase(text.find_last_not_of(" \n") + 1);
  text += ",\n  \"tensors\": [";
  std::string_view separator = "\n";
  for (const CanonicalTensor& t : tensors.tensors()) {
    text += fmt::format("{}    {{\"name\": {}, \"dtype\": \"{}\", \"shape\": {}}}", separator,
                        json_quote(t.name), name(t.dtype), to_string(t.stored_shape()));
    separator = ",\n";
  }
  return text + "\n  ]\n}\n";
}

Result<ModelSpec> read_rank_index_tensors(const std::string& path) {
  const auto text = RESHARD_TRY(read_text_file(path, kLimits.bytes));
  auto tensors = parse_tensors(text);
  if (!tensors) return tl::unexpected(std::move(tensors).error().in(path));
  return tensors;
}

}  // namespace reshard
