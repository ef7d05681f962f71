// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "reshard/io/checkpoint/safetensors_writer.h"
#include "reshard/io/files/json.h"
#include "reshard/io/files/utf8.h"

namespace reshard {
namespace {

constexpr std::size_t kAlignment = 8;

template <class... Args>
tl::unexpected<Error> invalid(fmt::format_string<Args...> format, Args&&... args) {
  return fail(Code::invalid_argument, fmt::format(format, std::forward<Args>(args)...));
}

Result<> check_text(std::string_view what, std::string_view text) {
  if (const auto at = find_invalid_utf8(text))
    return invalid("{} {} is not UTF-8 at byte {}", what, in_quotes(text), *at);
  return {};
}

Result<> check_names(std::span<const TensorSpec> tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    RESHARD_TRY(check_text("tensor name", tensor.name));
    if (tensor.name == "__metadata__") return invalid("tensor name \"__metadata__\" is reserved");
    names.push_back(tensor.name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) return invalid("tensor {} is listed twice", in_quotes(*twice));
  return {};
}

/// The order of the file: wider elements first, so that each tensor begins at a multiple of its
/// element.
std::vector<std::size_t> file_order(std::span<const TensorSpec> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto element_bytes = [&](std::size_t i) { return std::max(1, bits(tensors[i].dtype) / 8); };
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return element_bytes(a) > element_bytes(b); });
  return order;
}

Result<std::string> metadata_text(const StringMap& metadata) {
  std::string text = "\"__metadata__\":{";
  for (const auto& [key, value] : metadata) {
    RESHARD_TRY(check_text("metadata key", key));
    RESHARD_TRY(check_text("metadata value", value));
    if (text.back() != '{') text += ',';
    text += fmt::format("{}:{}", json_quote(key), json_quote(value));
  }
  return text + "}";
}

void append_tensor(const StoredTensor& tensor, std::string& json) {
  json += fmt::format("{}\"dtype\":\"{}\",\"shape\":[", json_quote(tensor.name) + ":{",
                      name(tensor.dtype));
  for (int i = 0; i < tensor.shape.size(); ++i)
    json += fmt::format("{}{}", i == 0 ? "" : ",", tensor.shape[i]);
  json += fmt::format("],\"data_offsets\":[{},{}]}}", tensor.offset, tensor.offset + tensor.bytes);
}

}  // namespace

Result<SafetensorsPlan> plan_safetensors(std::span<const TensorSpec> tensors,
                                         const StringMap& metadata) {
  RESHARD_TRY(check_names(tensors));
  SafetensorsPlan plan;
  plan.tensors.resize(tensors.size());
  std::string json = "{";
  if (!metadata.empty()) json += RESHARD_TRY(metadata_text(metadata));
  std::int64_t end = 0;
  for (const std::size_t i : file_order(tensors)) {
    auto bytes = stored_bytes(tensors[i].dtype, tensors[i].shape);
    if (!bytes) return invalid("tensor {}: {}", in_quotes(tensors[i].name), bytes.error().message);
    plan.tensors[i] = StoredTensor{tensors[i], end, *bytes};
    if (__builtin_add_overflow(end, *bytes, &end))
      return invalid("tensor {}: the file has more bytes than 64 bits can count",
                     in_quotes(tensors[i].name));
    if (json.size() > 1) json += ',';
    append_tensor(plan.tensors[i], json);
  }
  json += '}';
  json.append((kAlignment - json.size() % kAlignment) % kAlignment, ' ');
  if (json.size() > std::size_t{kMaxSafetensorsHeader})
    return invalid("the header would have {} bytes, at most {} are allowed; use more files",
                   json.size(), kMaxSafetensorsHeader);
  for (std::size_t i = 0; i < 8; ++i) plan.head += static_cast<char>(json.size() >> (8 * i) & 0xff);
  plan.head += json;
  const auto data_offset = static_cast<std::int64_t>(plan.head.size());
  if (__builtin_add_overflow(end, data_offset, &plan.file_bytes))
    return invalid("the file has more bytes than 64 bits can count");
  for (auto& tensor : plan.tensors) tensor.offset += data_offset;
  return plan;
}

}  // namespace reshard
