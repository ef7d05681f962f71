// SPDX-License-Identifier: Apache-2.0
// The engine holds MXFP8 (a scale for each 32 elements of a row), the trainer BF16: the session
// quantises on the way, and verifies data and scales before each commit. Ranks are threads of this
// process.
#include <reshard/reshard.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace {

constexpr int kRanks = 2;

struct Layouts {
  std::shared_ptr<const reshard::ModelLayout> trainer;
  reshard::LayoutSide engine;
};

reshard::Result<Layouts> make_layouts() {
  const reshard::Model model = RESHARD_TRY(reshard::open_model("demo-moe"));
  return Layouts{RESHARD_TRY(reshard::make_layout("megatron:tp=2", model)),
                 RESHARD_TRY(reshard::make_side("vllm:tp=2,quant=mxfp8", model))};
}

reshard::Result<> run(const Layouts& layouts, reshard::InprocGroup& group, reshard::Rank me) {
  const auto transport = RESHARD_TRY(group.transport(me));
  const auto control = RESHARD_TRY(group.control(me));
  const auto& stored = layouts.engine.quantised->stored;
  auto weights = RESHARD_TRY(reshard::RankBuffers::allocate(layouts.trainer, {{me}}));
  auto engine = RESHARD_TRY(reshard::RankBuffers::allocate(stored, {{me}}));
  for (const reshard::SlotId slot : layouts.trainer->slots_of(me))  // 0.0115 in BF16
    std::memset(weights.at(me, slot), 0x3c, static_cast<std::size_t>(weights.bytes(me, slot)));

  reshard::SessionOptions options;
  options.verify = reshard::VerifyMode::always;
  auto session = RESHARD_TRY(reshard::Session::prepare(
      *transport, *control, {.layout = layouts.trainer, .buffers = &weights},
      {.quantised = layouts.engine.quantised, .buffers = &engine}, options));
  const reshard::SessionReport report = RESHARD_TRY(session.refit(1));
  std::printf("rank %d: %lld bytes of BF16 became %lld of MXFP8, scales and plain tensors\n",
              me.value(), static_cast<long long>(reshard::local_bytes(*layouts.trainer, me)),
              static_cast<long long>(report.bytes));
  return {};
}

reshard::Result<> run_all() {
  const Layouts layouts = RESHARD_TRY(make_layouts());
  auto group = RESHARD_TRY(reshard::InprocGroup::create(kRanks));
  std::vector<reshard::Result<>> results(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r)
    threads.emplace_back(
        [&, r] { results[static_cast<std::size_t>(r)] = run(layouts, group, reshard::Rank(r)); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) RESHARD_TRY(result);
  return {};
}

}  // namespace

int main() {
  const auto done = run_all();
  if (!done) std::fprintf(stderr, "quantised_target: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
