// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/torch_dist/megatron_names.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

namespace reshard::torch_dist {
namespace {

constexpr std::string_view kLayers = "decoder.layers.", kExperts = ".experts.";

/// A part of a parameter's name, and what stands there for other modules.
struct Renamed {
  std::string_view from, to;
};
constexpr std::array kRenamed = {
    Renamed{".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_"},
    Renamed{".mlp.linear_fc1.layer_norm_", ".pre_mlp_layernorm."},
    Renamed{".input_layernorm.", ".self_attention.linear_qkv.layer_norm_"},
    Renamed{".self_attention.linear_qkv.layer_norm_", ".input_layernorm."},
    Renamed{".self_attention.linear_q_up_proj.layer_norm_", ".self_attention.q_layernorm."},
    Renamed{".self_attention.linear_kv_up_proj.layer_norm_", ".self_attention.kv_layernorm."},
    Renamed{".self_attention.in_proj.layer_norm_", ".self_attention.linear_qkv.layer_norm_"},
    Renamed{".self_attention.in_proj.layer_norm_", ".input_layernorm."},
    Renamed{".mixer.in_proj.layer_norm_", ".norm."},
    Renamed{".mixer.conv1d_", ".mixer.conv1d."},
};

constexpr std::array<std::string_view, 6> kDeltaInputs = {".query", ".key",  ".value",
                                                          ".z",     ".beta", ".alpha"};
constexpr std::array<std::string_view, 5> kMambaInputs = {".z", ".x", ".B", ".C", ".dt"};
constexpr std::array<std::string_view, 3> kDeltaConvolution = {".query", ".key", ".value"};
constexpr std::array<std::string_view, 3> kMambaConvolution = {".x", ".B", ".C"};
constexpr std::array<std::string_view, 2> kGates = {"_w", "_v"};

/// The number that fills text[begin, end), or none.
std::optional<Index> number_in(std::string_view text, std::size_t begin, std::size_t end) {
  Index number = 0;
  const auto read = std::from_chars(text.data() + begin, text.data() + end, number);
  if (read.ec != std::errc() || read.ptr != text.data() + end) return std::nullopt;
  return number;
}

}  // namespace

std::vector<std::string> names_of(const std::string& parameter) {
  std::vector<std::string> out = {parameter};
  for (const auto& [from, to] : kRenamed)
    if (const std::size_t at = parameter.find(from); at != std::string::npos)
      out.push_back(std::string(parameter).replace(at, from.size(), to));
  return out;
}

std::optional<StackedPlace> without_layer(const std::string& name) {
  if (!name.starts_with(kLayers)) return std::nullopt;
  const std::size_t end = name.find('.', kLayers.size());
  if (end == std::string::npos) return std::nullopt;
  const auto layer = number_in(name, kLayers.size(), end);
  if (!layer) return std::nullopt;
  return StackedPlace{std::string(kLayers) + name.substr(end + 1), {*layer}};
}

std::optional<StackedPlace> without_expert(const std::string& name) {
  const std::size_t at = name.find(kExperts);
  const std::size_t digits = name.find_last_not_of("0123456789") + 1;
  if (at == std::string::npos || digits == name.size()) return std::nullopt;
  const auto expert = number_in(name, digits, name.size());
  if (!expert) return std::nullopt;
  const std::size_t end = at + kExperts.size();
  return StackedPlace{name.substr(0, end) + "experts." + name.substr(end, digits - end), {*expert}};
}

std::vector<StackedPlace> places_of(const std::string& parameter) {
  std::vector<StackedPlace> out;
  for (const std::string& name : names_of(parameter)) {
    const auto expert = without_expert(name);
    out.push_back(expert ? *expert : StackedPlace{name, {}});
    if (auto stacked = without_layer(out.back().tensor)) {
      for (const Index i : out.back().leading) stacked->leading.push_back(i);
      out.push_back(*std::move(stacked));
    }
    if (!expert) continue;
    // Each expert under a name of its own: "X.mlp.experts.experts.7.linear_fc1.weight".
    const std::size_t end = expert->tensor.find(kExperts) + 2 * kExperts.size() - 1;
    out.push_back({fmt::format("{}{}.{}", expert->tensor.substr(0, end), expert->leading[0],
                               expert->tensor.substr(end)),
                   {}});
  }
  return out;
}

std::span<const std::span<const std::string_view>> row_splits() {
  static constexpr std::array<std::span<const std::string_view>, 5> kSplits = {
      kDeltaInputs, kMambaInputs, kDeltaConvolution, kMambaConvolution, kGates};
  return kSplits;
}

std::span<const std::string_view> row_split_of(std::string_view parameter) {
  if (parameter.ends_with(".self_attention.in_proj.weight")) return kDeltaInputs;
  if (parameter.ends_with(".mixer.in_proj.weight")) return kMambaInputs;
  if (parameter.find(".self_attention.conv1d.") != std::string_view::npos) return kDeltaConvolution;
  if (parameter.find(".mixer.conv1d.") != std::string_view::npos) return kMambaConvolution;
  return {};
}

}  // namespace reshard::torch_dist
