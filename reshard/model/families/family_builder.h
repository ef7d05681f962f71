// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/model/families.h"
#include "reshard/model/layout_builder.h"
#include "reshard/model/names.h"

namespace reshard::families {

/// True if one of the layers has this mixer (this feed-forward part).
bool has(const std::vector<LayerKind>& kinds, Mixer mixer);
bool has(const std::vector<LayerKind>& kinds, Ffn ffn);

/// Base of the framework families: finds tensors by name and adds the slots that all frameworks
/// have.
class FamilyBuilder {
 protected:
  /// @pre input.config is not null. All arguments are borrowed.
  FamilyBuilder(const LayoutSpec& spec, const FamilyInput& input);

  /// The id of a tensor. Errors: the model lacks it (family and tensor named).
  Result<TensorId> find(const std::string& name) const;
  /// Reads the key dtype, in which all floating-point tensors are stored. Defaults to `otherwise`,
  /// or without that to the dtype of each tensor. To be called first.
  Result<> read_dtype(const LayoutSpec& spec, std::optional<DType> otherwise = std::nullopt);

  /// How a local tensor deviates from a plain copy of its canonical tensors.
  struct Stored {
    bool padded = false;
    MergedDims merged = {};
    ValueMap map = ValueMap::identity;
    /// Default: the dtype of read_dtype for floating-point tensors, otherwise the dtype of the
    /// first part.
    std::optional<DType> dtype = std::nullopt;
  };
  /// Adds a local tensor on ranks_ of mesh_.
  void add(std::string name, int stack_dim, std::vector<Section> sections, Stored how);
  void add(std::string name, int stack_dim, std::vector<Section> sections) {
    add(std::move(name), stack_dim, std::move(sections), Stored{});
  }
  /// The same on given ranks of a given mesh.
  void add_on(MeshId mesh, RankSetId ranks, std::string name, int stack_dim,
              std::vector<Section> sections, Stored how);
  void add_on(MeshId mesh, RankSetId ranks, std::string name, int stack_dim,
              std::vector<Section> sections) {
    add_on(mesh, ranks, std::move(name), stack_dim, std::move(sections), Stored{});
  }
  /// Adds the whole tensor `hf` on every rank.
  Result<> replicated(std::string name, const std::string& hf);
  /// Omits all tensors of the modules for multi-token prediction.
  void omit_mtp();
  /// The KV cache scales of a layer that the model has, as (name, last component):
  /// ("model.layers.0.self_attn.k_scale", "k_scale").
  std::vector<std::pair<std::string, std::string>> cache_scales(LayerAt at) const;
  /// Omits the scales of module inputs, which belong to the calibration of a checkpoint.
  void omit_input_scales();
  /// Adds the rows of `hf`, padded to a multiple of `multiple` and cut by tp_.
  Result<> vocabulary(std::string name, const std::string& hf, Index multiple);

  /// Fails unless n divides size: "megatron: tp=3 does not divide num_attention_heads=32".
  static Result<> divides(const std::string& family, const char* part, Index n, const char* whole,
                          Index size, const char* hint = "");
  /// Fails if ep > 1 and the model has no experts.
  static Result<> check_ep(const std::string& family, Index ep, const ModelConfig& config);

  const std::string& family_;
  const ModelConfig& c_;
  const HfNames hf_;
  const ModelSpec& m_;
  LayoutBuilder b_;
  MeshId mesh_;
  RankSetId ranks_;
  CutId tp_;

 private:
  std::optional<DType> dtype_;
};

/// Lists of sections, moved rather than copied.
std::vector<Section> sections(Section first);
std::vector<Section> sections(Section first, Section second);

}  // namespace reshard::families
