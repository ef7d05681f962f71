// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/checkpoint/checkpoint.h"
#include "reshard/model/config.h"
#include "reshard/model/model_layout.h"
#include "reshard/model/quant/quantised_layout.h"
#include "reshard/model/tensor.h"

namespace reshard {

/// The files of a LoRA adapter in its folder, as PEFT writes them.
inline constexpr std::string_view kAdapterConfigFile = "adapter_config.json";
inline constexpr std::string_view kAdapterFile = "adapter_model.safetensors";

enum class QuantMethod : std::uint8_t;
struct ModelStorage;

/// A model: its canonical tensors, its config if reshard understands one, and its weights if it is
/// a checkpoint.
struct Model {
  std::string name;  ///< as given to open_model().
  std::shared_ptr<const ModelSpec> tensors;
  std::optional<ModelConfig> config;
  std::string no_config;    ///< why `config` is empty.
  std::string model_type;   ///< of the config.json, also where `config` is empty; may be empty.
  std::string misshapen;    ///< names a tensor whose shape contradicts the config; else empty.
  std::string config_path;  ///< of the config.json, understood or not; empty if there is none.
  std::optional<Checkpoint> weights;
  /// Set if the weights are quantised: which tensors are, and in which format. `tensors` are then
  /// those of the dequantised weights.
  std::optional<QuantChoice> stored;
  std::optional<QuantMethod> stored_method;  ///< the files' quant_method; none for rank files.
  /// How the files hold values that are not `tensors` as they are. Never null.
  std::shared_ptr<ModelStorage> storage = make_storage();
  /// Names a tensor that is moved but not read, and why: codes of an unknown form, or a dtype that
  /// is not converted. Layouts that would change values refuse the model. Else empty.
  std::string opaque;
  /// Says that the config describes quantised weights although all tensors are plain; else empty.
  std::string left_over;
  std::set<std::string> ignore;  ///< ModelOptions::ignore.
  /// The layout of the model's tensors in the pieces of a checkpoint of Megatron's
  /// dist_checkpointing, whose tensors have other names than the model's; null for others.
  std::shared_ptr<const ModelLayout> pieces_layout;
  /// Names of the checkpoint's tensors that may be weights, but are none of the model's and were
  /// left out: ignored, or outside of its prefix. Not the optimizer's state, nor equal copies.
  std::vector<std::string> left_out;

  /// True if `tensors` are the plain values of weights that the files hold in another form.
  bool is_dequantised() const;
  /// Forgets how weights are stored.
  void forget_stored();
  /// Checkpoint::unchanged() of the weights, and the same of the adapters.
  Result<> unchanged() const;
  /// The config, or null. Owned by this object.
  const ModelConfig* config_or_null() const { return config ? &*config : nullptr; }

 private:
  static std::shared_ptr<ModelStorage> make_storage();
};

struct ModelOptions {
  /// Replaces num_hidden_layers of a config. An error for checkpoints.
  std::optional<Index> layers = {};
  /// If true, a checkpoint whose tensors are not exactly those of its config is an error. If false,
  /// such a checkpoint is opened without its config.
  bool exact = true;
  /// Name patterns ('*' matches any characters, '#' digits) of tensors that a checkpoint may have
  /// in addition to those of its config. They are left out of the model. Without a config, all
  /// matching tensors are left out. Matching tensors of the config stay in the model; whether a
  /// side of a plan may lack them is up to the plan.
  std::set<std::string> ignore = {};
  /// Takes only the tensors of a torch.distributed.checkpoint whose names have this prefix, and
  /// removes it. None: the prefix of the config's names there ("model."), if there is a config; an
  /// error if there are two such prefixes. Empty: the names as they are, also those of wrappers.
  std::optional<std::string> prefix = {};
  /// Folders of LoRA adapters, as PEFT writes them, that are merged into the weights of a
  /// checkpoint: W + scale * B A, in this order. An error for configs without weights.
  std::vector<std::string> merge = {};
};

/// The names of all tensors that match one of the patterns.
std::set<std::string> matching_names(const ModelSpec& tensors,
                                     const std::set<std::string>& patterns);

/// The names of the tensors that match the patterns. Errors: a pattern that matches none, with the
/// closest name; `what` says what it is for: "ignore" or "move".
Result<std::set<std::string>> names_of(const std::set<std::string>& patterns, std::string_view what,
                                       const ModelSpec& tensors);

/// Checks that every pattern of Model::ignore matches a tensor of the model or of its files, or of
/// `other`'s, or names one that is missing (`lacked`, of LayoutSide). Error: the first pattern that
/// does not, which must be misspelt.
Result<> check_ignored(const Model& model, const Model* other = nullptr,
                       const std::set<std::string>& lacked = {});

/// Opens a model by the path of a config.json, a checkpoint folder, one of its files or any
/// safetensors file, by the name of an example (example_names()), or as a repository of the Hugging
/// Face hub ("Qwen/Qwen3-8B") whose snapshot is in the hub's local cache. A config.json that
/// lists tensors (checkpoint::listed_tensors()) is a model of these, of any class, without weights.
///
/// The tensors of a checkpoint must be those of its config, with these exceptions:
/// - A stored lm_head.weight of a model with tied embeddings is left out; it must equal the
///   embedding bit for bit. The same holds for the copies of embedding and head in modules for
///   multi-token prediction, for which the layout `hf` has slots.
/// - If all modules for multi-token prediction are missing, the config is taken to have none.
/// - Buffers that old framework versions stored and all loaders skip (rotary_emb.inv_freq) are left
///   out.
/// - Experts that are stacked as modules of transformers 5 hold them ("experts.gate_up_proj") are
///   the config's tensors of single experts.
/// - An untied model may lack its lm_head.weight (embedding and reward models).
/// - Scales of KV caches are ordinary tensors, after those of the config.
/// - Of a torch.distributed.checkpoint, what is known to be of an optimizer or of the trainer is no
///   tensor of the model, and the names of torch's wrappers do not count. Tensors outside of the
///   model's prefix are left out, unless they look like a second model.
/// - Megatron's names may have second names, which must be equal bit for bit.
///
/// A checkpoint whose architecture or quantization_config is not supported is opened without its
/// config. A config without weights is used as one of plain weights.
///
/// Errors: nothing of that name exists (the message names what is close, and lists the examples);
/// those of reading the files; one file of several of a checkpoint, if ModelOptions::exact; those
/// of identify::merge_adapters().
Result<Model> open_model(const std::string& text, const ModelOptions& options = {});

/// open_model() for checkpoints only. @post the model has weights
Result<Model> open_checkpoint(const std::string& path, const ModelOptions& options = {});

}  // namespace reshard
