// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/model/families.h"
#include "reshard/model/layout_builder.h"
#include "reshard/model/names.h"

namespace reshard::families {

/// True if one of the layers has this mixer, this feed-forward part.
bool has(const std::vector<LayerKind>& kinds, Mixer mixer);
bool has(const std::vector<LayerKind>& kinds, Ffn ffn);

/// What the framework families share: the model's tensors by name, and the slots that all of them
/// have.
class FamilyBuilder {
 protected:
  /// @pre input.config is not null. All arguments are borrowed.
  FamilyBuilder(const LayoutSpec& spec, const FamilyInput& input);

  /// Error naming family and tensor when the model lacks it.
  Result<TensorId> find(const std::string& name) const;
  /// Reads the key dtype: what all floating-point tensors are stored as. Without the key it is
  /// `otherwise`, and without that each tensor's own. To be called first.
  Result<> read_dtype(const LayoutSpec& spec, std::optional<DType> otherwise = std::nullopt);

  /// What is not plain about how a local tensor is stored.
  struct Stored {
    bool padded = false;
    MergedDims merged = {};
    ValueMap map = ValueMap::identity;
    /// Where not given: what read_dtype found for floating-point tensors, else that of the first
    /// part.
    std::optional<DType> dtype = std::nullopt;
  };
  /// Adds a local tensor on ranks_ of mesh_.
  void add(std::string name, int stack_dim, std::vector<Section> sections, Stored how);
  void add(std::string name, int stack_dim, std::vector<Section> sections) {
    add(std::move(name), stack_dim, std::move(sections), Stored{});
  }
  /// The same on other ranks of another mesh.
  void add_on(MeshId mesh, RankSetId ranks, std::string name, int stack_dim,
              std::vector<Section> sections, Stored how);
  void add_on(MeshId mesh, RankSetId ranks, std::string name, int stack_dim,
              std::vector<Section> sections) {
    add_on(mesh, ranks, std::move(name), stack_dim, std::move(sections), Stored{});
  }
  /// The whole tensor `hf` on every rank.
  Result<> replicated(std::string name, const std::string& hf);
  /// Says that the layout leaves out everything of the modules for multi-token prediction.
  void omit_mtp();
  /// The names of the scales of a layer's KV cache that the model has, with the last word of each:
  /// "model.layers.0.self_attn.k_scale", "k_scale".
  std::vector<std::pair<std::string, std::string>> cache_scales(LayerAt at) const;
  /// Leaves scales of modules' inputs out: they belong to what a checkpoint was calibrated with.
  void omit_input_scales();
  /// The rows of `hf` cut by tp_, padded to a multiple of `multiple`.
  Result<> vocabulary(std::string name, const std::string& hf, Index multiple);

  /// Error unless n divides size: "megatron: tp=3 does not divide num_attention_heads=32".
  static Result<> divides(const std::string& family, const char* part, Index n, const char* whole,
                          Index size, const char* hint = "");
  /// Error unless n is a multiple or a divisor of the number of KV heads.
  static Result<> check_groups(const std::string& family, const char* part, Index n,
                               const ModelConfig& config);
  /// Error when ep > 1 and the model counts no experts.
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

/// One section as a slot's list, without copying it.
std::vector<Section> sections(Section first);
std::vector<Section> sections(Section first, Section second);

}  // namespace reshard::families
