// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/io/checkpoint/checkpoint.h"
#include "reshard/model/config.h"
#include "reshard/model/quant/files.h"
#include "reshard/model/quant/quantised_layout.h"
#include "reshard/model/tensor.h"

namespace reshard {

/// What a user means by a model: its canonical tensors, its config where it has one that reshard
/// understands, and its weights where it is a checkpoint.
struct Model {
  std::string name;  ///< as the user wrote it.
  std::shared_ptr<const ModelSpec> tensors;
  std::optional<ModelConfig> config;
  std::string no_config;    ///< why config is empty.
  std::string misshapen;    ///< a tensor whose shape is not the config's, in words; else empty.
  std::string config_path;  ///< of the config.json, known or not; empty where there is none.
  std::optional<Checkpoint> weights;
  /// How the weights are stored where they are quantised; `tensors` are then those of plain
  /// weights.
  std::optional<QuantChoice> stored;
  std::optional<QuantMethod> stored_method;  ///< and how files say so; none of one in ranks.
  std::set<std::string> ignore;              ///< ModelOptions::ignore.
  /// Tensors of the checkpoint that are none of the model's, by name.
  std::vector<std::string> left_out;

  /// For `make_layout`, which needs it only for some families.
  const ModelConfig* config_or_null() const { return config ? &*config : nullptr; }
};

struct ModelOptions {
  /// Replaces num_hidden_layers of a config; an error for checkpoints.
  std::optional<Index> layers = {};
  /// A checkpoint whose tensors are not exactly those of its config is an error. Otherwise it is
  /// opened as it is, without its config.
  bool exact = true;
  /// Patterns of tensors ('*' any characters, '#' digits) that a checkpoint may have beside those
  /// of its config, and that are left out then; without a config all that match are. Those of the
  /// config stay: that a side of a plan may lack them is for the plan.
  std::set<std::string> ignore = {};
};

/// The names among the tensors that one of the patterns matches.
std::set<std::string> matching_names(const ModelSpec& tensors,
                                     const std::set<std::string>& patterns);

/// Error for the first of Model::ignore that matches no tensor of the model or of its files, nor of
/// the other's: it is misspelt.
Result<> check_ignored(const Model& model, const Model* other = nullptr);

/// Opens a config file, a checkpoint's folder or one of its files, any safetensors file, or a named
/// example.
///
/// A checkpoint of tied embeddings that holds lm_head.weight all the same is taken without it when
/// its bytes are those of the embedding; so are the copies of embedding and head that modules for
/// multi-token prediction carry, which the layout hf has slots for. Where all of those modules are
/// missing, the config is taken to have none. Buffers that old versions of frameworks stored and
/// all loaders skip (rotary_emb.inv_freq) are left out. Scales of KV caches are tensors like
/// others, behind those of the config. A config with a quantization_config is used where it stands
/// alone; the weights of such a checkpoint are read through it where stored_weights() reads it, and
/// are else opened without it. Errors: nothing of that name (with the known examples); those of
/// reading it.
Result<Model> open_model(const std::string& text, const ModelOptions& options = {});

/// The same for checkpoints only. @post the model has weights
Result<Model> open_checkpoint(const std::string& path, const ModelOptions& options = {});

}  // namespace reshard
