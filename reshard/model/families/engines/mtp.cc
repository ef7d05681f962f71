// SPDX-License-Identifier: Apache-2.0
// The modules for multi-token prediction: a draft model of its own beside the last stage.
#include <fmt/format.h>

#include "reshard/model/families/engines/engine_layout_builder.h"

namespace reshard {

Result<> EngineLayoutBuilder::mtp_module(Index module) {
  const HfNames::Mtp names = hf_.mtp(module);
  const Index block = static_cast<Index>(c_.mtp_block.size());
  const auto in_block = [&](Index i) {
    const Index k = module * block + i;
    const LayerAt at(i, module);
    if (d_.nextn && c_.mtp_names == MtpNames::trailing) return Layer{at, d_.prefix + "model."};
    return c_.mtp_names == MtpNames::trailing
               ? Layer{at, fmt::format("{}model.layers.{}.", d_.prefix, c_.num_hidden_layers + k)}
               : Layer{at, fmt::format("{}mtp.layers.{}.", d_.prefix, k)};
  };
  const bool trailing = c_.mtp_names == MtpNames::trailing;
  const Layer first = in_block(0), last = in_block(block - 1);
  if (c_.mtp_names == MtpNames::qwen) {
    // One module repeats; what is outside its layers is there once.
    if (module == 0) {
      for (const std::string& hf : {names.embedding_norm, names.hidden_norm, names.final_norm})
        RESHARD_TRY(replicated(d_.prefix + hf, hf));
      RESHARD_TRY(
          vector(d_.prefix + names.projection, names.projection, d_.nextn ? CutId(0) : dense_));
    }
  } else {
    RESHARD_TRY(same(first, names.embedding_norm));
    RESHARD_TRY(same(first, names.hidden_norm));
    // Nemotron-H's is created in the config's dtype, whatever the rest of the model is in.
    RESHARD_TRY(vector(own(first, names.projection), names.projection, trailing ? CutId(0) : dense_,
                       in(trailing ? std::nullopt : config_dtype())));
    RESHARD_TRY(same(last, names.final_norm));
  }
  if (trailing && !d_.nextn)
    RESHARD_TRY(vocabulary(last.name + "shared_head.head.weight",
                           c_.tie_word_embeddings ? hf_.embedding() : hf_.lm_head(), head_,
                           d_.head_rows));
  for (Index i = 0; i < block; ++i) {
    Layer l = in_block(i);
    if (trailing) l.name += d_.nextn ? "decoder." : "mtp_block.";
    RESHARD_TRY(layer(l));
  }
  return {};
}

void EngineLayoutBuilder::omit_mtp() {
  if (c_.num_mtp == 0) return;
  const Index block = static_cast<Index>(c_.mtp_block.size());
  std::vector<std::string> starts = {"mtp."};
  if (c_.mtp_names == MtpNames::trailing) {
    starts.clear();
    for (Index m = 0; m < c_.num_mtp; ++m)
      for (Index i = 0; i < block; ++i) starts.push_back(hf_.layer(LayerAt(i, m), ""));
  }
  for (std::size_t t = 0; t < m_.tensors().size(); ++t)
    for (const std::string& start : starts)
      if (m_.tensors()[t].name.starts_with(start)) b_.omit(TensorId(static_cast<TensorId::rep>(t)));
}

}  // namespace reshard
