// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/model/families/megatron/sizes.h"

namespace reshard::families {

/// Chunk `chunk` of pipeline stage `stage` (a virtual stage). Layers follow each other over chunks
/// in the order (chunk, stage): with 8 layers, pp=2 and vpp=2, stage 0 has layers 0, 1 and 4, 5.
struct PipelineChunk {
  Index stage = 0, chunk = 0;
  Index first_layer = 0, num_layers = 0;
  bool embedding = false, loss = false;
  bool mtp = false;  ///< all layers for multi-token prediction.
};

/// The s.pp * vpp chunks of a model with `layers` layers and `mtp` modules for multi-token
/// prediction, in the order of their layers.
///
/// Without the key `layout`: `first` and `last` as given, equal parts for the other stages, and vpp
/// equal chunks per stage. The embedding (loss) takes the place of a layer in the first (last)
/// chunk if it is accounted for; both are if accounts_by_rule(). MTP is with the loss. With
/// `layout`: as given. Errors: sizes that do not divide; a layout that does not fit the model, pp
/// and vpp.
///
/// Hybrids (MambaModel, HybridModel) distribute layers alone: embedding and loss take no place, and
/// vpp needs `layout` (in Megatron the '|' of hybrid_layer_pattern), with all MTP in the last
/// chunk.
Result<std::vector<PipelineChunk>> pipeline_chunks(const MegatronSizes& s, Index layers, Index mtp,
                                                   bool hybrid = false);

/// True if no key is given, the layers do not divide and two more would: then embedding and loss
/// are accounted for (Megatron's account_for_*_in_pipeline_split). Never for hybrids.
bool accounts_by_rule(const MegatronSizes& s, Index layers, bool hybrid);

/// The (virtual) stages of a pipeline_model_parallel_layout of Megatron, each a string of E, t, m,
/// L: "Et*2|(t|)*2mL" is Ett, t, t, mL. Errors: other characters, open parentheses, more than 2^16
/// characters when expanded.
Result<std::vector<std::string>> parse_pipeline_layout(std::string_view text);

}  // namespace reshard::families
