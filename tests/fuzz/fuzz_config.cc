// SPDX-License-Identifier: Apache-2.0
// Protects: a config is refused, or its sizes are possible; changing its layers changes nothing
// else; and a list of tensors is refused, or has at least one.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "reshard/base/check.h"
#include "reshard/io/checkpoint/tensor_list.h"
#include "reshard/io/hf/config.h"
#include "reshard/model/canonical.h"

namespace {

using namespace reshard;

void check_sizes(const ModelConfig& config) {
  RESHARD_CHECK(config.hidden_size > 0 && config.intermediate_size > 0 && config.vocab_size > 0);
  RESHARD_CHECK(config.num_hidden_layers > 0 && config.head_dim > 0 &&
                config.num_key_value_heads > 0);
  RESHARD_CHECK(config.num_attention_heads % config.num_key_value_heads == 0);
  RESHARD_CHECK(!config.is_moe() || config.moe_intermediate_size > 0);
  RESHARD_CHECK(static_cast<Index>(config.layers.size()) == config.num_hidden_layers);
  RESHARD_CHECK((config.num_mtp == 0) == config.mtp_block.empty());
  for (const LayerKind& kind : config.layers) {
    RESHARD_CHECK(kind.mixer != Mixer::mla || config.mla.kv_rank > 0);
    RESHARD_CHECK(kind.mixer != Mixer::mamba2 || config.mamba2.kernel > 0);
    RESHARD_CHECK(kind.mixer != Mixer::gated_delta || config.gated_delta.kernel > 0);
    RESHARD_CHECK(kind.ffn != Ffn::experts || config.num_experts > 0);
  }
  // One layer of each kind tells whether some tensor is too large.
  ModelConfig few = config;
  few.num_hidden_layers = std::min<Index>(few.num_hidden_layers, 4);
  few.layers.resize(static_cast<std::size_t>(few.num_hidden_layers));
  few.num_experts = std::min<Index>(few.num_experts, few.stacked_experts ? few.num_experts : 4);
  few.num_mtp = std::min<Index>(few.num_mtp, 1);
  const auto tensors = canonical_tensors(few);
  RESHARD_CHECK(tensors || tensors.error().code == Code::invalid_argument);
  Index elements = config.num_attention_heads;
  RESHARD_CHECK(!__builtin_mul_overflow(elements, config.head_dim, &elements));
  RESHARD_CHECK(!__builtin_mul_overflow(elements, config.hidden_size, &elements));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto listed = checkpoint::listed_tensors(text, "config.json");
  if (!listed) RESHARD_CHECK(listed.error().message.find('\n') == std::string::npos);
  if (listed && *listed) RESHARD_CHECK((*listed)->size() > 0);
  auto config = parse_config(text);
  if (config) check_sizes(*config);
  if (!config) RESHARD_CHECK(config.error().message.find('\n') == std::string::npos);
  const auto changed = config_with_layers(text, 3);
  if (!config || !changed) return 0;
  auto again = parse_config(*changed);
  if (!again) {
    // More layers than before may be too many together with the experts.
    RESHARD_CHECK(again.error().message.find("num_hidden_layers") != std::string::npos);
    return 0;
  }
  RESHARD_CHECK(again->num_hidden_layers == 3);
  RESHARD_CHECK(again->hidden_size == config->hidden_size && again->head_dim == config->head_dim);
  // A hybrid model may lose its layers with experts.
  RESHARD_CHECK(again->num_experts == config->num_experts || !again->is_moe());
  RESHARD_CHECK(again->dtype == config->dtype);
  return 0;
}
