// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/checkpoint/tensor_list.h"

#include <fmt/format.h>

#include <string>

namespace reshard::checkpoint {
namespace {

constexpr Index kMaxDim = Index{1} << 50;
constexpr std::string_view kTensors = "reshard_tensors";

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

Result<std::optional<ModelSpec>> listed(std::string_view text) {
  const Json json = RESHARD_TRY(parse_json(text, {.non_finite = true}));
  const Json* list = json.find(kTensors);
  if (list == nullptr) return std::optional<ModelSpec>();
  return std::optional(RESHARD_TRY(parse_tensor_list(*list)));
}

}  // namespace

Result<ModelSpec> parse_tensor_list(const Json& list) {
  if (list.array() == nullptr || list.array()->empty())
    return fail(Code::corrupt, "tensors must be a list of tensors that is not empty");
  ModelSpec tensors;
  for (const Json& entry : *list.array()) RESHARD_TRY(add_tensor(entry, tensors));
  return tensors;
}

Result<std::optional<ModelSpec>> listed_tensors(std::string_view text, std::string_view source) {
  // Most configs have none, and are parsed once only.
  if (text.find(kTensors) == std::string_view::npos) return std::optional<ModelSpec>();
  auto tensors = listed(text);
  if (!tensors) return tl::unexpected(std::move(tensors).error().in(source));
  return tensors;
}

}  // namespace reshard::checkpoint
