// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reshard/model/config.h"
#include "reshard/model/model_layout.h"

namespace reshard {

/// Small decoders: 4 layers, hidden 16, 8 heads of 4 over 4 KV heads, vocabulary 100.
ModelConfig tiny_dense();
/// The same with 10 experts of 8 in every layer but the first.
ModelConfig tiny_moe();
/// tiny_moe() with a few hundred rows and columns per tensor.
ModelConfig wide_moe();
/// Other architectures of the same size: DeepSeek-V3 and GLM-4.5 with MTP, gpt-oss, Qwen3-Next,
/// Gemma-3, Nemotron-H with latent experts.
ModelConfig tiny_deepseek();
ModelConfig tiny_glm();
ModelConfig tiny_gpt_oss();
ModelConfig tiny_qwen3_next();
ModelConfig tiny_gemma3();
ModelConfig tiny_nemotron();
/// All of the above.
std::vector<ModelConfig> tiny_models();
/// The published shape of Llama-3.1-8B.
ModelConfig llama_8b();
/// The published shape of Qwen3-30B-A3B.
ModelConfig qwen3_30b();
/// The published shape of Qwen3-235B-A22B.
ModelConfig qwen3_235b();

/// The canonical tensors of a config; aborts on error.
std::shared_ptr<const ModelSpec> model_of(const ModelConfig& config);

/// The same with another dtype for the tensors whose names end with one of `ends`, as in some
/// checkpoints.
std::shared_ptr<const ModelSpec> model_of(const ModelConfig& config,
                                          const std::vector<std::string>& ends, DType dtype);

/// A layout of a family from its text ("megatron:tp=2"); not `rules`.
Result<ModelLayout> try_layout(const std::string& text, std::shared_ptr<const ModelSpec> model,
                               const ModelConfig& config);
/// The same; aborts on error, with the message.
std::shared_ptr<const ModelLayout> layout_of(const std::string& text,
                                             std::shared_ptr<const ModelSpec> model,
                                             const ModelConfig& config);

}  // namespace reshard
