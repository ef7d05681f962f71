// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "python/src/values.h"

namespace reshard::python {
namespace {

const char* mixer_name(Mixer mixer) {
  switch (mixer) {
    case Mixer::attention: return "attention";
    case Mixer::mla: return "mla";
    case Mixer::mamba2: return "mamba2";
    case Mixer::gated_delta: return "gated_delta";
    case Mixer::none: break;
  }
  return "none";
}

const char* ffn_name(Ffn ffn) {
  switch (ffn) {
    case Ffn::dense: return "dense";
    case Ffn::experts: return "experts";
    case Ffn::none: break;
  }
  return "none";
}

void bind_layer_kind(nb::module_& m) {
  nb::class_<LayerKind>(m, "LayerKind", "What a layer consists of.")
      .def_prop_ro(
          "mixer", [](const LayerKind& x) { return mixer_name(x.mixer); },
          "\"attention\", \"mla\", \"mamba2\", \"gated_delta\" or \"none\".")
      .def_prop_ro(
          "ffn", [](const LayerKind& x) { return ffn_name(x.ffn); },
          "\"dense\", \"experts\" or \"none\".")
      .def("__repr__", [](const LayerKind& x) {
        return fmt::format("<LayerKind {}, {}>", mixer_name(x.mixer), ffn_name(x.ffn));
      });
}

void bind_sizes(nb::class_<ModelConfig>& config) {
  config.def_ro("architecture", &ModelConfig::architecture, "Such as \"Qwen3MoeForCausalLM\".")
      .def_ro("model_type", &ModelConfig::model_type, "Such as \"qwen3_moe\".")
      .def_ro("dtype", &ModelConfig::dtype, "Of the weights.")
      .def_ro("quantization", &ModelConfig::quantization,
              "quant_method of its quantization_config; empty for plain weights.")
      .def_ro("hidden_size", &ModelConfig::hidden_size, "Width of the residual stream.")
      .def_ro("intermediate_size", &ModelConfig::intermediate_size,
              "Of the dense MLP; 0 where no layer has one.")
      .def_ro("num_hidden_layers", &ModelConfig::num_hidden_layers,
              "Without layers for multi-token prediction.")
      .def_ro("num_attention_heads", &ModelConfig::num_attention_heads, "Query heads of a layer.")
      .def_ro("num_key_value_heads", &ModelConfig::num_key_value_heads,
              "Key and value heads of a layer.")
      .def_ro("head_dim", &ModelConfig::head_dim, "Width of one head.")
      .def_ro("vocab_size", &ModelConfig::vocab_size,
              "Rows of the embedding, without any framework's padding.")
      .def_ro("num_experts", &ModelConfig::num_experts, "0 for a dense model.")
      .def_ro("moe_intermediate_size", &ModelConfig::moe_intermediate_size, "Of one expert.")
      .def_ro("shared_expert_size", &ModelConfig::shared_expert_size,
              "Total width of the shared experts; 0: none.")
      .def_ro("num_mtp", &ModelConfig::num_mtp, "Modules for multi-token prediction.")
      .def_ro("layers", &ModelConfig::layers, "The kind of each layer.");
}

}  // namespace

void bind_config(nb::module_& m) {
  bind_layer_kind(m);
  nb::class_<ModelConfig> config(m, "ModelConfig",
                                 R"(A decoder, as a Hugging Face config.json describes it.

Sizes are in elements, and those of the plain weights. Keys that the file lacks have the default of
the model class.)");
  bind_sizes(config);
  config
      .def_ro("tie_word_embeddings", &ModelConfig::tie_word_embeddings,
              "True if the output layer is the embedding.")
      .def_ro("attention_bias", &ModelConfig::attention_bias, "q, k and v projections have biases.")
      .def_ro("mlp_bias", &ModelConfig::mlp_bias, "The dense MLP's projections have biases.")
      .def_ro("qk_norm", &ModelConfig::qk_norm, "There is a norm per head on q and k.")
      .def_ro("zero_centered_norms", &ModelConfig::zero_centered_norms,
              "Norms store their weight minus 1.")
      .def_ro("stacked_experts", &ModelConfig::stacked_experts,
              "Each projection of all experts is one tensor.")
      .def_prop_ro("is_moe", &ModelConfig::is_moe, "True if it has experts.")
      .def("__repr__", [](const ModelConfig& x) {
        return fmt::format("<ModelConfig {}: {} layers, hidden size {}{}>", x.architecture,
                           x.num_hidden_layers, x.hidden_size,
                           x.is_moe() ? fmt::format(", {} experts", x.num_experts) : "");
      });
}

}  // namespace reshard::python
