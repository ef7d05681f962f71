// SPDX-License-Identifier: Apache-2.0
#include "bench/common/case.h"

#include <fmt/format.h>

#include "reshard/io/hf/config.h"
#include "reshard/model/canonical.h"
#include "reshard/model/families.h"

namespace reshard::bench {
namespace {

Result<std::shared_ptr<const ModelLayout>> shared(Result<ModelLayout> layout) {
  return std::make_shared<const ModelLayout>(RESHARD_TRY(std::move(layout)));
}

Result<std::shared_ptr<const ModelSpec>> copies_of_one_tensor(Arguments& arguments) {
  const auto sizes = RESHARD_TRY(arguments.integers("tensor", "", 'x'));
  const Index count = RESHARD_TRY(arguments.integer("count", 1));
  const std::string dtype_text = arguments.text("dtype", "BF16");
  const auto dtype = dtype_from_name(dtype_text);
  if (!dtype || sizes.size() > kMaxDims)
    return fail(Code::invalid_argument,
                fmt::format("{} of {}: give a dtype of safetensors and at most {} dimensions",
                            arguments.text("tensor"), dtype_text, kMaxDims));
  auto model = std::make_shared<ModelSpec>();
  for (Index i = 0; i < count; ++i)
    RESHARD_TRY(model->add(fmt::format("tensor.{}", i), Dims(std::span(sizes)), *dtype));
  return std::shared_ptr<const ModelSpec>(std::move(model));
}

/// "DIM:PARTS" or "DIM:PARTS:OFFSET": every tensor cut alike, part i on rank OFFSET + i.
Result<std::shared_ptr<const ModelLayout>> cut_layout(const std::string& text,
                                                      std::shared_ptr<const ModelSpec> model) {
  const auto cut = RESHARD_TRY(whole_numbers(text, ':'));
  if (cut.size() < 2 || cut.size() > 3 || cut[0] >= kMaxDims)
    return fail(Code::invalid_argument,
                fmt::format("'{}': a cut is DIM:PARTS, as 1:8, or DIM:PARTS:OFFSET", text));
  Rule rule;
  rule.match = "*";
  rule.cuts.push_back({.dim = static_cast<int>(cut[0]), .axes = {"part"}});
  const RuleSet rules{{{"part", cut[1]}}, {rule}};
  LayoutSpec spec;
  spec.family = "rules";
  spec.file = text;
  if (cut.size() == 3) spec.keys["offset"] = std::to_string(cut[2]);
  return shared(rules_layout(spec, FamilyInput{std::move(model), nullptr}, rules));
}

}  // namespace

Result<ModelConfig> config_of(Arguments& arguments) {
  ModelConfig config = RESHARD_TRY(read_config(arguments.text("config")));
  config.num_hidden_layers = RESHARD_TRY(arguments.integer("layers", config.num_hidden_layers));
  config.vocab_size = RESHARD_TRY(arguments.integer("vocab", config.vocab_size));
  return config;
}

Result<std::shared_ptr<const ModelLayout>> layout_of(const std::string& text,
                                                     const ModelConfig& config,
                                                     std::shared_ptr<const ModelSpec> model) {
  const LayoutSpec spec = RESHARD_TRY(parse_layout(text));
  const FamilyInput input{std::move(model), &config};
  if (spec.family == "megatron") return shared(megatron_layout(spec, input));
  if (spec.family == "vllm") return shared(vllm_layout(spec, input));
  if (spec.family == "hf") return shared(hf_layout(spec, input));
  return fail(Code::invalid_argument,
              fmt::format("layout '{}': give one of megatron, vllm, hf", text));
}

Result<Case> case_of(Arguments& arguments) {
  const std::string from = arguments.text("from"), to = arguments.text("to");
  if (arguments.text("tensor").empty()) {
    const ModelConfig config = RESHARD_TRY(config_of(arguments));
    const auto model = std::make_shared<const ModelSpec>(RESHARD_TRY(canonical_tensors(config)));
    return Case{RESHARD_TRY(layout_of(from, config, model)),
                RESHARD_TRY(layout_of(to, config, model))};
  }
  const auto model = RESHARD_TRY(copies_of_one_tensor(arguments));
  return Case{RESHARD_TRY(cut_layout(from, model)), RESHARD_TRY(cut_layout(to, model))};
}

}  // namespace reshard::bench
