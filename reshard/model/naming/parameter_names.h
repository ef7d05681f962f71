// SPDX-License-Identifier: Apache-2.0
// Names of parameters of live modules and in files, without what wrappers and adapters add.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace reshard {

/// `name` without the parts that modules around modules add anywhere in it: "_orig_mod"
/// (torch.compile), "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "module" (DDP, Megatron's
/// Float16Module), and PEFT's "base_model.model". The last part stays, as do names of adapters,
/// which follow "lora_*" and "modules_to_save".
std::string without_wrappers(std::string_view name);

/// The role of a parameter beside adapters: those of PEFT 0.21's modules and files, and of
/// Megatron-Bridge's modules.
enum class ParameterRole : std::uint8_t {
  whole,        ///< a tensor of the model, or what replaces it: a copy that PEFT trains.
  original,     ///< the tensor that such a copy replaces.
  a,            ///< [rank, in].
  b,            ///< [out, rank].
  embedding_a,  ///< [rank, words].
  embedding_b,  ///< [width, rank].
  other,  ///< another form: magnitudes of DoRA, biases of B, single tokens, Megatron-Bridge's.
};
/// "whole", "original", "A", "B", "embedding_A", "embedding_B" or "other".
std::string_view name(ParameterRole role);

/// A parameter's name, taken apart.
struct ParameterName {
  ParameterRole role = ParameterRole::whole;
  /// The tensor of the model, by its own name: that which factors change. For `other`: the whole
  /// name without wrappers.
  std::string tensor;
  /// The adapter of factors and copies. Empty if the name gives none, as in files.
  std::string adapter = {};
  /// The tensor lies in a module that adapters wrap ("base_layer", "to_wrap"), so factors that
  /// change it may be elsewhere.
  bool wrapped = false;
};

/// Reads the name of a parameter of a module or in a file. Never fails: a name without parts of
/// adapters is that of a tensor.
ParameterName parameter_name(std::string_view name);

}  // namespace reshard
