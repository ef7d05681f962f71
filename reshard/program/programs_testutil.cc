// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/programs_testutil.h"

#include <string>

#include "reshard/base/check.h"
#include "reshard/model/configs_testutil.h"

namespace reshard {
namespace {

using WayBetween = std::function<PairPath(Rank src, Rank dst)>;

void add_programs(const Planner& planner, CompileOptions options, const WayBetween& way,
                  std::vector<Program>& out) {
  options.staging_bytes = Index{256} << 10;
  options.in_place_bytes = 1000;
  options.world = planner.ranks().members().back().value() + 1;
  options.reads = options.gets = true;
  for (int r = 0; r < options.world; ++r) {
    options.path_from = [&](Rank src) { return way(src, Rank(r)); };
    options.path_to = [&](Rank dst) { return way(Rank(r), dst); };
    auto program = compile_rank(planner, planner.rank_plan(Rank(r)), options);
    RESHARD_CHECK(program.has_value());
    out.push_back(*std::move(program));
  }
}

}  // namespace

std::vector<Program> plain_programs() {
  const ModelConfig config = wide_moe();
  const auto model = model_of(config);
  const Planner planner = *Planner::make(layout_of("megatron:tp=2,pp=2", model, config),
                                         layout_of("vllm:tp=2,offset=2", model, config));
  std::vector<Program> out;
  add_programs(
      planner, {},
      [](Rank a, Rank b) { return static_cast<PairPath>((a.value() + b.value()) % 3); }, out);
  const std::vector<Rank> all = planner.ranks().members();
  out.push_back(*compile_in_process(planner, all));
  return out;
}

std::vector<Program> converted_programs() {
  const ModelConfig config = wide_moe();
  const auto model = model_of(config);
  QuantChoice choice;
  for (const CanonicalTensor& t : model->tensors())
    if (t.name.ends_with("_proj.weight")) choice.tensors.insert(t.name);
  const auto source = layout_of("megatron:tp=2,pp=2", model, config);
  const auto values = layout_of("vllm:tp=2,offset=2", model, config);
  const Planner planner = *Planner::make(source, values);
  std::vector<Program> out;
  for (const char* format : {"nvfp4", "mxfp8", "fp8_block"}) {
    choice.format = *quant_format_from_name(format);
    const auto target = quantise_layout(values, choice);
    RESHARD_CHECK(target.has_value());
    CompileOptions options;
    options.after = {&*target, {}, true};
    for (const auto& pair : target->pairs) options.after.slots.push_back(pair.values);
    options.unit_bytes = Index{16} << 10;
    for (const PairPath first : {PairPath::mapped, PairPath::message})
      add_programs(
          planner, options,
          [first](Rank a, Rank) { return a.value() == 0 ? first : PairPath::message; }, out);
  }
  return out;
}

}  // namespace reshard
