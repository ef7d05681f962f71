// SPDX-License-Identifier: Apache-2.0
#include "bench/common/case.h"

#include <fmt/format.h>

#include "reshard/io/make_layout.h"
#include "reshard/model/canonical.h"
#include "reshard/model/families.h"
#include "reshard/model/families/rules.h"

namespace reshard::bench {
namespace {

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
  return std::make_shared<const ModelLayout>(
      RESHARD_TRY(rules_layout(spec, FamilyInput{std::move(model), nullptr}, rules)));
}

}  // namespace

Result<Model> model_of(Arguments& arguments) {
  ModelOptions options;
  if (const Index layers = RESHARD_TRY(arguments.integer("layers", 0)); layers > 0)
    options.layers = layers;
  Model model = RESHARD_TRY(open_model(arguments.text("config"), options));
  const Index vocab = RESHARD_TRY(arguments.integer("vocab", 0));
  if (vocab == 0) return model;
  if (!model.config)
    return fail(Code::invalid_argument,
                fmt::format("--vocab needs a model with a config, and {}", model.no_config));
  model.config->vocab_size = vocab;
  model.tensors = std::make_shared<const ModelSpec>(RESHARD_TRY(canonical_tensors(*model.config)));
  return model;
}

Result<Case> case_of(Arguments& arguments) {
  const std::string from = arguments.text("from"), to = arguments.text("to");
  if (arguments.text("tensor").empty()) {
    const Model model = RESHARD_TRY(model_of(arguments));
    return Case{RESHARD_TRY(make_layout(from, model)), RESHARD_TRY(make_layout(to, model))};
  }
  const auto model = RESHARD_TRY(copies_of_one_tensor(arguments));
  return Case{RESHARD_TRY(cut_layout(from, model)), RESHARD_TRY(cut_layout(to, model))};
}

}  // namespace reshard::bench
