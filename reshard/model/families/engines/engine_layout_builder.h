// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "reshard/model/families/engines/engine_sharding.h"
#include "reshard/model/families/error_list.h"
#include "reshard/model/families/family_builder.h"

namespace reshard::families {

/// Makes the slots of an inference engine's modules, as its weight loaders fill them, by its
/// design. Common to the engines: q, k and v heads are stacked; gate and up pieces are stacked;
/// experts are stacked along a first dimension; packed Mamba parameters are cut part by part.
class EngineLayoutBuilder : private FamilyBuilder {
 public:
  /// @pre design is valid for the config. All arguments are borrowed.
  EngineLayoutBuilder(const LayoutSpec& spec, const EngineSharding& design,
                      const FamilyInput& input);
  Result<ModelLayout> build(const LayoutSpec& spec);

  /// Add an error for each size of the model that `n` ranks cannot divide: heads (attention, Mamba,
  /// gated delta nets), dense and shared widths, the width of an expert. `kinds` are the layers of
  /// the layout, `key` is the user's spelling of `n`, such as "tp".
  static void check_heads(const std::string& family, const char* key, Index n,
                          const ModelConfig& config, const std::vector<LayerKind>& kinds,
                          ErrorList& wrong);
  static void check_widths(const std::string& family, const char* key, Index n, bool whole_shared,
                           const ModelConfig& config, const std::vector<LayerKind>& kinds,
                           ErrorList& wrong);
  static void check_experts(const std::string& family, const char* key, Index n,
                            const ModelConfig& config, const std::vector<LayerKind>& kinds,
                            const char* hint, ErrorList& wrong);
  /// Adds an error if tp exceeds the number of experts, for models whose modules reject that.
  static void check_tp_of_experts(Index tp, const ModelConfig& config,
                                  const std::vector<LayerKind>& kinds, ErrorList& wrong);
  using FamilyBuilder::check_ep;
  using FamilyBuilder::divides;

 private:
  /// A layer, and the prefix of its names in the engine: "model.layers.3.".
  struct Layer {
    LayerAt at;
    std::string name;
  };
  enum class Projection : std::uint8_t { gate, up, down };
  /// A module by its Hugging Face name without ".weight", and the cut of its rows.
  using Part = std::pair<std::string, CutId>;

  // The ends of the model, layers, and what all parts use.
  void enter_stage(Index stage);
  Result<> ends(bool first, bool last);
  Result<> vocabulary(const std::string& name, const std::string& hf, CutId how, Index rows);
  Result<> layer(const Layer& l);
  Result<> dense(const std::string& name, const std::string& hf, CutId how, bool bias);
  Layer decoder_layer(Index i) const;
  std::string mixer(const Layer& l, const std::string& rest) const;
  std::string ffn(const Layer& l, const std::string& rest) const;
  /// The engine's name of a tensor of this layer whose last components are those of Hugging Face.
  std::string own(const Layer& l, const std::string& hf) const;
  Result<> same(const Layer& l, const std::string& hf) { return replicated(own(l, hf), hf); }
  /// A linear layer cut by rows (column parallel), or by columns with the bias whole (row
  /// parallel).
  Result<> column(const std::string& name, const std::string& hf, CutId how, bool bias = false);
  Result<> row(const std::string& name, const std::string& hf, CutId how, bool bias = false);
  /// Omits biases that the engine's modules lack; the loaders of both engines skip these silently.
  void omit_biases(const Layer& l, std::initializer_list<const char*> projections);
  /// Several projections stacked under one name.
  Result<> stacked(const std::string& name, std::initializer_list<Part> parts, bool bias);
  /// A tensor cut by rows.
  Result<> vector(const std::string& name, const std::string& hf, CutId how, Stored stored = {});
  /// How a parameter is stored that the engine creates in this dtype; none: in the dtype of the
  /// model.
  static Stored in(std::optional<DType> dtype) { return {.dtype = dtype}; }
  static Stored in_f32(bool f32) { return f32 ? in(DType::f32) : Stored{}; }
  /// The dtype of the config; none if it gives none that values are converted to.
  std::optional<DType> config_dtype() const;
  /// The dtype of parameters whose modules give none: that of the config or, without one, of the
  /// embedding.
  std::optional<DType> model_dtype() const;
  CutId in_units(const DimCut& how, Index granule);

  // Mixers.
  Result<> attention(const Layer& l);
  Result<> mla(const Layer& l);
  Result<> mamba2(const Layer& l);
  Result<> gated_delta(const Layer& l);
  /// Consecutive runs of rows of one tensor, each with its own cut: (rows, cut).
  Result<> packed(const std::string& name, const std::string& hf,
                  std::initializer_list<std::pair<Index, CutId>> runs);

  // experts.cc
  Result<> experts(const Layer& l);
  Result<> beside_experts(const Layer& l);
  Result<> single_experts(const Layer& l);
  /// The tensor of a routed expert or, from num_experts on, of a shared one.
  Result<TensorId> expert_tensor(const Layer& l, Projection which, Index e) const;
  Result<Section> expert_section(const Layer& l, Projection which) const;
  Result<> stacked_experts(const Layer& l);
  Result<> stacked_biases(const Layer& l);
  /// The inner width of experts, including the padding that gives all ranks equally many blocks.
  Index held_inner() const;
  void add_experts(std::string name, int stack_dim, std::vector<Section> parts, Stored how);

  // Multi-token prediction.
  Result<> mtp_module(Index module);
  void omit_mtp();

  const EngineSharding& d_;
  MeshId expert_mesh_;
  RankSetId expert_ranks_;
  CutId heads_, dense_, shared_, embedding_, head_, outer_, inner_;
  const std::vector<Index>* order_ = nullptr;  ///< of the experts of the current layer.
  std::size_t expert_layer_ = 0;               ///< layers with experts so far.
};

}  // namespace reshard::families
