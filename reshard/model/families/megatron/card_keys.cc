// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/megatron/card_keys.h"

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "reshard/model/families/megatron/sizes.h"
#include "reshard/model/families/megatron/stages.h"

namespace reshard::families {
namespace {

/// Keeps the chunks of the last number of layers that was asked for.
class Chunks {
 public:
  explicit Chunks(MegatronSizes sizes) : sizes_(std::move(sizes)) {}

  Result<LayerPlace> place(Index layer, Index layers) {
    if (layers != layers_ || chunks_.empty()) {
      chunks_ = RESHARD_TRY(pipeline_chunks(sizes_, layers, 0));
      layers_ = layers;
    }
    for (const PipelineChunk& chunk : chunks_)
      if (chunk.first_layer <= layer && layer < chunk.first_layer + chunk.num_layers)
        return LayerPlace{chunk.stage, chunk.chunk, layer - chunk.first_layer};
    return fail(Code::invalid_argument,
                fmt::format("layer {} is beyond the model's {} layers", layer, layers));
  }

 private:
  MegatronSizes sizes_;
  Index layers_ = 0;
  std::vector<PipelineChunk> chunks_;
};

}  // namespace

Result<MegatronCardKeys> megatron_card_keys(const LayoutSpec& spec) {
  for (const char* key : {"norms", "experts", "mla_down", "gamma", "mamba_names", "mtp",
                          "mtp_names", "glu_interleave", "shared_glu_interleave"})
    if (spec.keys.contains(key))
      return fail(Code::unsupported,
                  fmt::format("megatron: {}={}: a card knows the modules of Transformer Engine as "
                              "Megatron-Bridge builds them, and no others",
                              key, spec.keys.at(key)));
  const MegatronSizes s = RESHARD_TRY(read_megatron_sizes(spec));
  MegatronCardKeys out;
  out.numbers = {{"tp", s.tp},
                 {"cp", s.cp},
                 {"dp", s.dp},
                 {"pp", s.pp},
                 {"ep", s.ep},
                 {"etp", s.etp},
                 {"vocab_multiple", s.vocab_multiple}};
  out.chunks = s.vpp;
  if (!s.pipeline.empty())
    out.chunks = static_cast<Index>(RESHARD_TRY(parse_pipeline_layout(s.pipeline)).size()) / s.pp;
  out.dp_last = s.order == "tp-cp-ep-pp-dp";
  out.layers = [chunks = std::make_shared<Chunks>(s)](Index layer, Index layers) {
    return chunks->place(layer, layers);
  };
  return out;
}

}  // namespace reshard::families
