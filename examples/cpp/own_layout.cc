// SPDX-License-Identifier: Apache-2.0
// A layout of one's own: an engine that no family describes. It cuts the rows of every projection
// over four ranks, keeps norms whole, and calls its tensors "engine/...".
#include <reshard/reshard.h>

#include <cstdio>
#include <memory>

namespace {

reshard::Result<reshard::ModelLayout> engine_layout(const reshard::Model& model) {
  reshard::RuleSet rules;
  rules.axes = {{"tp", 4}};
  // The first rule that matches a tensor's canonical name decides; '*' matches any characters.
  reshard::Rule norms;
  norms.match = "*norm.weight";
  norms.name = "engine/$1norm";
  reshard::Rule rest;
  rest.match = "*";
  rest.name = "engine/$1";
  rest.cuts = {{.dim = 0, .axes = {"tp"}}};
  rules.rules = {norms, rest};

  reshard::LayoutSpec spec;
  spec.family = "rules";
  spec.file = "in the program";  // for messages
  return reshard::rules_layout(spec, {model.tensors}, rules);
}

reshard::Result<> run() {
  const reshard::Model model = RESHARD_TRY(reshard::open_model("demo-moe"));
  const auto trainer = RESHARD_TRY(reshard::make_layout("megatron:tp=2,ep=4,etp=1", model));
  const auto engine =
      std::make_shared<const reshard::ModelLayout>(RESHARD_TRY(engine_layout(model)));

  const reshard::SlotId first = engine->slots_of(reshard::Rank(3)).front();
  const reshard::Dims shape = engine->local_shape(first, reshard::Rank(3));
  std::printf("rank 3 of 4 holds %s [%lld, %lld]\n", engine->slot(first).name.c_str(),
              static_cast<long long>(shape[0]), static_cast<long long>(shape[1]));

  const auto planner = RESHARD_TRY(reshard::Planner::make(trainer, engine));
  const reshard::PlanSummary cost = reshard::summarise(planner);
  std::printf("%lld bytes to deliver, %lld of them between ranks\n",
              static_cast<long long>(cost.bytes_total), static_cast<long long>(cost.bytes_wire));
  return {};
}

}  // namespace

int main() {
  const auto done = run();
  if (!done) std::fprintf(stderr, "own_layout: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
