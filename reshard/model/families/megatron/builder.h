// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/model/families/error_list.h"
#include "reshard/model/families/family_builder.h"
#include "reshard/model/families/megatron/sizes.h"
#include "reshard/model/families/megatron/stages.h"

namespace reshard::families {

/// Megatron-Core's GPTModel and MambaModel as slots. Column-parallel projections are cut on
/// dimension 0, row-parallel ones on dimension 1, over tp (routed experts: etp); packed parameters
/// are cut part by part. Names are those of the Transformer Engine spec or, with norms=separate, of
/// the local spec. Layer numbers in names count within a chunk of a pipeline stage.
///
/// Rules, sources and worked examples: docs/layouts.md.
class MegatronBuilder : private FamilyBuilder {
 public:
  /// All arguments are borrowed.
  MegatronBuilder(const LayoutSpec& spec, const MegatronSizes& sizes, const FamilyInput& input);

  /// Errors, all at once: sizes that do not divide; parameters that Megatron's modules cannot hold.
  Result<ModelLayout> build(const LayoutSpec& spec);

 private:
  static void check(const MegatronSizes& s, const ModelConfig& c, ErrorList& wrong);

  /// A layer and the prefix of its names: "decoder.layers.3.".
  struct Layer {
    LayerAt at;
    std::string name;
  };
  /// Rows of a canonical tensor.
  struct Rows {
    TensorId tensor;
    Interval rows;
  };

  // megatron.cc: stages, embedding, output, MTP.
  Result<> make_meshes();
  Result<> chunk(const PipelineChunk& chunk);
  Result<> mtp(const std::string& front);
  Result<> layer(const Layer& l);
  Result<> word_embeddings(std::string name, const std::string& hf);
  /// A norm's weight on every rank. `centred`: the checkpoint stores it minus 1.
  Result<> norm(std::string name, const std::string& hf, bool centred);
  Result<> norm(std::string name, const std::string& hf) {
    return norm(std::move(name), hf, c_.zero_centered_norms);
  }
  /// hf + ".weight" cut on `dim` over tp; with `bias` also its bias, cut (dim 0) or whole (dim 1).
  Result<> parallel(const std::string& name, const std::string& hf, int dim, bool bias = false);
  /// The rows in the list, concatenated and cut into equal runs over tp.
  Section stacked(const std::vector<Rows>& list) const { return stacked(list, tp_); }
  /// The same with another cut.
  Section stacked(const std::vector<Rows>& list, CutId how) const;
  /// Gate and up rows of an MLP as linear_fc1 stacks them on each rank: all gates, then all ups, or
  /// alternating in blocks of `interleave` rows.
  std::vector<Section> gate_up(TensorId gate, TensorId up, Index interleave, CutId how) const;

  // mixers.cc
  Result<> attention(const Layer& l);
  Result<Section> interleaved_qkv(LayerAt at, const std::string& kind);
  Result<> mla(const Layer& l);
  Result<> mla_down(const Layer& l, const std::string& front);

  Result<> mamba2(const Layer& l);
  Result<> gated_delta(const Layer& l);
  Result<std::vector<Section>> gated_delta_rows(LayerAt at);

  // ffn.cc
  Result<> mlp(const Layer& l);
  Result<> experts(const Layer& l);
  Result<> routed_experts(const Layer& l);
  Result<> shared_expert(const Layer& l);
  /// The local tensors of global expert e, on ranks of the expert mesh.
  Result<> single_expert(const Layer& l, Index e, RankSetId ranks);
  Result<> stacked_expert(const Layer& l, Index e, RankSetId ranks);
  /// "…mlp.experts.linear_fc1.weight3" or "…mlp.experts.local_experts.3.linear_fc1.weight".
  std::string expert_name(const Layer& l, const char* linear, const char* kind, Index local) const;

  const MegatronSizes& s_;
  const bool hybrid_;  ///< layers are either mixers or MLPs (MambaModel).
  const Index mtp_;    ///< number of modules for multi-token prediction in the layout.
  MeshId expert_;
  int dense_pp_ = 0, expert_pp_ = 0, expert_ep_ = 0;
  CutId etp_;
  Index stage_ = 0;
  bool chunked_ = false;  ///< stages have several chunks, with names "model<c>. ...".
};

}  // namespace reshard::families
