// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/checkpoint/rank_index.h"

#include <fmt/format.h>

#include "reshard/io/files/json.h"

namespace reshard {
namespace {

constexpr JsonLimits kLimits{
    .bytes = std::size_t{100'000'000}, .values = std::size_t{8} << 20, .depth = 16};
constexpr Index kMaxDim = Index{1} << 50;

Result<> add_tensor(const Json& entry, ModelSpec& tensors) {
  const auto wrong = [&](std::string_view what) {
    return fail(Code::corrupt, fmt::format("entry {} of tensors: {}", tensors.size() + 1, what));
  };
  const Json *name = entry.find("name"), *dtype = entry.find("dtype"), *shape = entry.find("shape");
  if (name == nullptr || name->string() == nullptr || name->string()->empty())
    return wrong("name must be a string");
  const auto type = dtype && dtype->string() ? dtype_from_name(*dtype->string()) : std::nullopt;
  if (!type) return wrong("dtype must be one of safetensors, such as \"BF16\"");
  if (shape == nullptr || shape->array() == nullptr ||
      shape->array()->size() > std::size_t{kMaxDims})
    return wrong(fmt::format("shape must be a list of at most {} sizes", kMaxDims));
  Dims dims;
  for (const Json& size : *shape->array()) {
    if (!size.integer() || *size.integer() < 0 || *size.integer() > kMaxDim)
      return wrong(
          fmt::format("a size in shape must be an integer from 0, is {}", size.describe()));
    dims.push_back(*size.integer());
  }
  RESHARD_TRY(tensors.add(*name->string(), dims, *type));
  return {};
}

Result<ModelSpec> parse_tensors(std::string_view text) {
  const Json json = RESHARD_TRY(parse_json(text, kLimits));
  const Json* list = json.find("tensors");
  if (list == nullptr || list->array() == nullptr || list->array()->empty())
    return fail(Code::corrupt,
                "tensors must be the list of canonical tensors, as convert writes it");
  ModelSpec tensors;
  for (const Json& entry : *list->array()) RESHARD_TRY(add_tensor(entry, tensors));
  return tensors;
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
