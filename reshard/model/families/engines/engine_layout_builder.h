// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "reshard/model/families/engines/design.h"
#include "reshard/model/families/family_builder.h"
#include "reshard/model/families/violations.h"

namespace reshard::families {

/// Makes the slots of an inference engine's modules, as its weight loaders fill them, by its
/// design. Engines agree on more than they differ in: q, k and v heads stacked, gate and up pieces
/// stacked, experts stacked along a first dimension, packed Mamba parameters cut part by part.
class EngineLayoutBuilder : private FamilyBuilder {
 public:
  /// @pre design is valid for the config. All arguments are borrowed.
  EngineLayoutBuilder(const LayoutSpec& spec, const EngineDesign& design, const FamilyInput& input);
  Result<ModelLayout> build(const LayoutSpec& spec);

  /// Notes where `n` ranks cannot share a model's heads (attention, Mamba, gated delta nets), its
  /// dense and shared widths, or one expert; `kinds` are the layers that the layout has, `key` is
  /// what the user wrote, as "tp".
  static void check_heads(const std::string& family, const char* key, Index n,
                          const ModelConfig& config, const std::vector<LayerKind>& kinds,
                          Violations& wrong);
  static void check_widths(const std::string& family, const char* key, Index n, bool whole_shared,
                           const ModelConfig& config, const std::vector<LayerKind>& kinds,
                           Violations& wrong);
  static void check_experts(const std::string& family, const char* key, Index n,
                            const ModelConfig& config, const std::vector<LayerKind>& kinds,
                            const char* hint, Violations& wrong);
  /// Notes a tp above the number of experts, for models whose modules refuse it.
  static void check_tp_of_experts(Index tp, const ModelConfig& config,
                                  const std::vector<LayerKind>& kinds, Violations& wrong);
  using FamilyBuilder::check_ep;
  using FamilyBuilder::divides;

 private:
  /// A layer, and the engine's name of it: "model.layers.3.".
  struct Layer {
    LayerAt at;
    std::string name;
  };
  enum class Projection : std::uint8_t { gate, up, down };
  /// A module under its Hugging Face name without ".weight", and how its rows are cut.
  using Part = std::pair<std::string, CutId>;

  // engine.cc: what is outside layers, layers, and what all parts use.
  void enter_stage(Index stage);
  Result<> ends(bool first, bool last);
  Result<> vocabulary(const std::string& name, const std::string& hf, CutId how, Index rows);
  Result<> layer(const Layer& l);
  Result<> dense(const std::string& name, const std::string& hf, CutId how, bool bias);
  Layer decoder_layer(Index i) const;
  std::string mixer(const Layer& l, const std::string& rest) const;
  std::string ffn(const Layer& l, const std::string& rest) const;
  /// The engine's name of a tensor of this layer that it calls as Hugging Face does.
  std::string own(const Layer& l, const std::string& hf) const;
  Result<> same(const Layer& l, const std::string& hf) { return replicated(own(l, hf), hf); }
  /// Weight, and where there is one bias, of a linear layer cut by rows; by columns, bias whole.
  Result<> column(const std::string& name, const std::string& hf, CutId how, bool bias = false);
  Result<> row(const std::string& name, const std::string& hf, CutId how, bool bias = false);
  /// Says that the engine's modules lack these biases, as both engines' loaders do in silence.
  void omit_biases(const Layer& l, std::initializer_list<const char*> projections);
  /// The pieces of several projections under one name.
  Result<> stacked(const std::string& name, std::initializer_list<Part> parts, bool bias);
  /// A tensor cut by rows, and what is not plain about how it is stored.
  Result<> vector(const std::string& name, const std::string& hf, CutId how, Stored stored = {});
  /// What a parameter is stored as that the engine creates in this dtype; none: in the model's.
  static Stored in(std::optional<DType> dtype) { return {.dtype = dtype}; }
  static Stored in_f32(bool f32) { return f32 ? in(DType::f32) : Stored{}; }
  /// The dtype that the config names; none where it names none that values are converted to.
  std::optional<DType> config_dtype() const;
  /// What the engine creates parameters in whose modules name no dtype: the config's, or where it
  /// names none the embedding's.
  std::optional<DType> model_dtype() const;
  CutId in_units(const DimCut& how, Index granule);

  // engine_mixers.cc
  Result<> attention(const Layer& l);
  Result<> mla(const Layer& l);
  Result<> mamba2(const Layer& l);
  Result<> gated_delta(const Layer& l);
  /// Consecutive runs of rows of one tensor, each cut by itself: (rows, cut).
  Result<> packed(const std::string& name, const std::string& hf,
                  std::initializer_list<std::pair<Index, CutId>> runs);

  // engine_experts.cc
  Result<> experts(const Layer& l);
  Result<> beside_experts(const Layer& l);
  Result<> single_experts(const Layer& l);
  /// Of a routed expert, or from num_experts on of a shared one.
  Result<TensorId> expert_tensor(const Layer& l, Projection which, Index e) const;
  Result<Section> expert_section(const Layer& l, Projection which) const;
  Result<> stacked_experts(const Layer& l);
  Result<> stacked_biases(const Layer& l);
  /// The experts' inner width with what ranks hold behind it so that all hold as many blocks.
  Index held_inner() const;
  void add_experts(std::string name, int stack_dim, std::vector<Section> parts, Stored how);

  // engine_mtp.cc
  Result<> mtp_module(Index module);
  void omit_mtp();

  const EngineDesign& d_;
  MeshId expert_mesh_;
  RankSetId expert_ranks_;
  CutId heads_, dense_, shared_, embedding_, head_, outer_, inner_;
  const std::vector<Index>* order_ = nullptr;  ///< of the experts of the layer at hand.
  std::size_t expert_layer_ = 0;               ///< layers with experts so far.
};

}  // namespace reshard::families
