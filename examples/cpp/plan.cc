// SPDX-License-Identifier: Apache-2.0
// Plans a refit from a trainer's layout to an engine's and prints what it costs. No weights are
// read.
//
//   plan [MODEL FROM TO]      plan qwen3-30b-a3b megatron:tp=4,ep=8,etp=1 vllm:tp=8,offset=8
#include <reshard/reshard.h>

#include <cstdio>
#include <memory>
#include <string>

namespace {

reshard::Result<> run(const std::string& name, const std::string& from, const std::string& to) {
  const reshard::Model model = RESHARD_TRY(reshard::open_model(name));
  const auto trainer = RESHARD_TRY(reshard::make_layout(from, model));
  const auto engine = RESHARD_TRY(reshard::make_layout(to, model));
  const auto planner = RESHARD_TRY(reshard::Planner::make(trainer, engine));

  const reshard::PlanSummary cost = reshard::summarise(planner);
  std::printf("%s: %lld bytes to deliver, %lld of them between ranks, in %lld messages\n",
              name.c_str(), static_cast<long long>(cost.bytes_total),
              static_cast<long long>(cost.bytes_wire), static_cast<long long>(cost.messages));
  std::printf("the busiest sender carries %lld bytes; no plan does better than %lld\n",
              static_cast<long long>(cost.max_egress_bytes),
              static_cast<long long>(cost.optimal_max_egress_bytes));

  // Every rank makes its own part alone. Here: the first rank of the engine, its first transfers.
  const reshard::Rank rank = engine->ranks().members().front();
  std::printf("%s", reshard::to_text(planner, planner.rank_plan(rank), 4).c_str());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const bool given = argc == 4;
  const auto done =
      run(given ? argv[1] : "qwen3-30b-a3b", given ? argv[2] : "megatron:tp=4,ep=8,etp=1",
          given ? argv[3] : "vllm:tp=8,offset=8");
  if (!done) std::fprintf(stderr, "plan: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
