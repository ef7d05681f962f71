// SPDX-License-Identifier: Apache-2.0
#include "cli/layout_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "reshard/base/check.h"
#include "reshard/io/dtensor_file.h"
#include "reshard/io/expert_map_file.h"
#include "reshard/io/rules_file.h"
#include "reshard/model/families.h"

namespace reshard::cli {
namespace {

Result<ModelLayout> build(const LayoutSpec& spec, const Model& model,
                          const std::string& rules_folder) {
  const FamilyInput input{model.tensors, model.config_or_null()};
  if (spec.family == "hf") return hf_layout(spec, input);
  if (spec.family == "fsdp") return fsdp_layout(spec, input);
  const auto path = (std::filesystem::path(rules_folder) / spec.file).string();
  if (spec.family == "rules") return rules_layout(spec, input, RESHARD_TRY(read_rules(path)));
  if (spec.family == "dtensor") return dtensor_layout(spec, input, RESHARD_TRY(read_dtensor(path)));
  if (!model.config)
    return fail(
        Code::unsupported,
        fmt::format("the family '{}' is made from a config, and {}; hf, fsdp, dtensor:FILE and "
                    "rules:FILE need none",
                    spec.family, model.no_config));
  if (spec.family == "megatron") return megatron_layout(spec, input);
  FamilyInput engine = input;
  ExpertTables tables;
  if (const auto map = spec.keys.find("expert_map"); map != spec.keys.end()) {
    const auto file = (std::filesystem::path(rules_folder) / map->second).string();
    tables = RESHARD_TRY(read_expert_map(file));
    engine.expert_map = &tables;
  }
  return spec.family == "vllm" ? vllm_layout(spec, engine) : sglang_layout(spec, engine);
}

}  // namespace

Result<LayoutSpec> read_layout_text(const std::string& text) {
  auto spec = RESHARD_TRY(parse_layout(text));
  const auto& f = spec.family;
  constexpr std::array kFamilies = {"hf", "megatron", "vllm", "sglang", "fsdp", "dtensor", "rules"};
  if (std::find(kFamilies.begin(), kFamilies.end(), f) == kFamilies.end())
    return fail(
        Code::invalid_argument,
        fmt::format("layout '{}': unknown family '{}'; known are {}", text, f, known_families()));
  if (takes_file(f) && spec.file.empty())
    return fail(Code::invalid_argument, fmt::format("layout '{0}' needs a file: {0}:cut.json", f));
  return spec;
}

Result<std::shared_ptr<const ModelLayout>> make_layout(const std::string& text, const Model& model,
                                                       const std::string& rules_folder) {
  auto layout = build(RESHARD_TRY(read_layout_text(text)), model, rules_folder);
  if (!layout) {
    const std::string& said = layout.error().message;
    if (said.starts_with("layout") || said.starts_with(text))
      return tl::unexpected(std::move(layout).error());
    return tl::unexpected(std::move(layout).error().in(fmt::format("layout '{}'", text)));
  }
  return std::make_shared<const ModelLayout>(*std::move(layout));
}

Result<std::shared_ptr<const ModelLayout>> own_layout(const Model& model) {
  RESHARD_CHECK(model.weights.has_value());
  if (model.weights->kind() == Checkpoint::Kind::hf) return make_layout("hf", model);
  const auto index = model.name + "/reshard.json";
  // A checkpoint brings its rules along; what it was downloaded with must not name other files.
  if (const auto spec = read_layout_text(model.weights->layout())) {
    std::vector<std::string> files;
    if (!spec->file.empty()) files.push_back(spec->file);
    if (const auto map = spec->keys.find("expert_map"); map != spec->keys.end())
      files.push_back(map->second);
    for (const std::string& file : files)
      if (auto plain = check_file_name(file); !plain)
        return tl::unexpected(std::move(plain).error().in(index + ": layout"));
  }
  auto layout = make_layout(model.weights->layout(), model, model.weights->folder());
  if (!layout) return tl::unexpected(std::move(layout).error().in(index));
  return layout;
}

}  // namespace reshard::cli
