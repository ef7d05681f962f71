// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/model/families/family_builder.h"
#include "reshard/model/families/megatron/sizes.h"
#include "reshard/model/families/megatron/stages.h"
#include "reshard/model/families/violations.h"

namespace reshard::families {

/// Megatron-Core's GPTModel and MambaModel as slots. Column-parallel projections are cut on
/// dimension 0, row-parallel ones on 1, over tp (routed experts: etp); what a module packs is cut
/// part by part. Names are those of the Transformer Engine spec, or with norms=separate those of
/// the local spec. Layer numbers in names count within a chunk of a pipeline stage.
///
/// Rules, sources and worked examples: docs/layouts.md.
class MegatronBuilder : private FamilyBuilder {
 public:
  /// All arguments are borrowed.
  MegatronBuilder(const LayoutSpec& spec, const MegatronSizes& sizes, const FamilyInput& input);

  /// Errors, all of them at once: sizes that do not divide; what Megatron's modules cannot hold.
  Result<ModelLayout> build(const LayoutSpec& spec);

 private:
  static void check(const MegatronSizes& s, const ModelConfig& c, Violations& wrong);

  /// A layer and the front of its names: "decoder.layers.3.".
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
  /// hf + ".weight" cut on `dim` over tp; with `bias` its bias too, cut alike (0) or whole (1).
  Result<> parallel(const std::string& name, const std::string& hf, int dim, bool bias = false);
  /// Those rows of those tensors, one behind the other, cut into equal runs over tp.
  Section stacked(const std::vector<Rows>& list) const { return stacked(list, tp_); }
  /// The same cut another way.
  Section stacked(const std::vector<Rows>& list, CutId how) const;
  /// Gate and up rows of an MLP as linear_fc1 stacks them on each rank: all gates, then all ups, or
  /// in blocks of `interleave` rows in turn.
  std::vector<Section> gate_up(TensorId gate, TensorId up, Index interleave, CutId how) const;

  // megatron_attention.cc
  Result<> attention(const Layer& l);
  Result<Section> interleaved_qkv(LayerAt at, const std::string& kind);
  Result<> mla(const Layer& l);
  Result<> mla_down(const Layer& l, const std::string& front);

  // megatron_mixers.cc
  Result<> mamba2(const Layer& l);
  Result<> gated_delta(const Layer& l);
  Result<std::vector<Section>> gated_delta_rows(LayerAt at);

  // megatron_ffn.cc
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
  const bool hybrid_;  ///< layers are mixers or MLPs alone (MambaModel).
  const Index mtp_;    ///< modules for multi-token prediction that the layout has.
  MeshId expert_;
  int dense_pp_ = 0, expert_pp_ = 0, expert_ep_ = 0;
  CutId etp_;
  Index stage_ = 0;
  bool chunked_ = false;  ///< stages have several chunks, whose names begin with "model<c>.".
};

}  // namespace reshard::families
