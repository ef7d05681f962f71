// SPDX-License-Identifier: Apache-2.0
// All ranks of a trainer and of an engine in one process: the refit moves every weight into the
// engine's layout, and fingerprints of both sides show that every byte is right.
#include <reshard/reshard.h>

#include <cstdio>
#include <cstring>
#include <memory>

namespace {

// In place of training: writes bytes that depend on their position.
void train(reshard::RankBuffers& weights) {
  const reshard::ModelLayout& layout = weights.layout();
  for (const reshard::Rank rank : layout.ranks().members())
    for (const reshard::SlotId slot : layout.slots_of(rank))
      std::memset(weights.at(rank, slot), static_cast<int>(slot.value() % 100),
                  static_cast<std::size_t>(weights.bytes(rank, slot)));
}

reshard::Result<> run() {
  const reshard::Model model = RESHARD_TRY(reshard::open_model("demo-moe"));
  const auto trainer = RESHARD_TRY(reshard::make_layout("megatron:tp=2,ep=4,etp=1", model));
  const auto engine = RESHARD_TRY(reshard::make_layout("vllm:tp=2", model));

  // Here reshard allocates the memory; RankBuffers::bind() takes tensors that are there already.
  auto source = RESHARD_TRY(reshard::RankBuffers::allocate(trainer, trainer->ranks().members()));
  auto target = RESHARD_TRY(reshard::RankBuffers::allocate(engine, engine->ranks().members()));
  train(source);

  const auto planner = RESHARD_TRY(reshard::Planner::make(trainer, engine));
  auto refit = RESHARD_TRY(reshard::InProcessRefit::prepare(planner, source, target));
  const reshard::RefitReport report = RESHARD_TRY(refit.run());
  std::printf("%lld bytes in %.1f ms\n", static_cast<long long>(report.bytes),
              report.seconds * 1e3);

  const auto sent = RESHARD_TRY(reshard::fingerprints(source));
  const auto received = RESHARD_TRY(reshard::fingerprints(target));
  RESHARD_TRY(reshard::compare_fingerprints(*model.tensors, sent, received));
  std::printf("every tensor is the same on both sides\n");
  return {};
}

}  // namespace

int main() {
  const auto done = run();
  if (!done) std::fprintf(stderr, "refit_in_process: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
