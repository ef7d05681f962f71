// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/model/families/megatron/sizes.h"

namespace reshard::families {

/// What one pipeline stage runs at a time: chunk `chunk` of stage `stage`. Layers follow each other
/// over chunks in the order (chunk, stage): with 8 layers, pp=2 and vpp=2, stage 0 has 0, 1 and
/// 4, 5.
struct PipelineChunk {
  Index stage = 0, chunk = 0;
  Index first_layer = 0, num_layers = 0;
  bool embedding = false, loss = false;
  bool mtp = false;  ///< all layers for multi-token prediction.
};

/// The chunks of a model with these layers and modules for multi-token prediction, in the order of
/// their layers; s.pp * vpp of them.
///
/// Without `layout`: first and last as given, the other stages in equal parts, each stage cut into
/// vpp equal chunks; the embedding (loss) takes one layer's place in the first (last) chunk where
/// it is accounted for, and both do where accounts_by_rule(). MTP is with the loss. With `layout`:
/// as it says. Errors: what does not divide; a layout that is not one of this model, pp and vpp.
///
/// Hybrids (MambaModel, HybridModel) share layers by themselves: embedding and loss take no place
/// and vpp needs `layout` (there the '|' of hybrid_layer_pattern), in whose last chunk all MTP is.
Result<std::vector<PipelineChunk>> pipeline_chunks(const MegatronSizes& s, Index layers, Index mtp,
                                                   bool hybrid = false);

/// True where nothing is given, the layers do not divide and two more would: then embedding and
/// loss are accounted for (Megatron's account_for_*_in_pipeline_split). Never for hybrids.
bool accounts_by_rule(const MegatronSizes& s, Index layers, bool hybrid);

/// The (virtual) stages of Megatron's pipeline_model_parallel_layout notation, one string of E, t,
/// m, L each: "Et*2|(t|)*2mL" is Ett, t, t, mL. Errors: other characters, open parentheses, more
/// than 2^16 characters when written out.
Result<std::vector<std::string>> parse_pipeline_layout(std::string_view text);

}  // namespace reshard::families
