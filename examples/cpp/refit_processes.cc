// SPDX-License-Identifier: Apache-2.0
// A trainer and an engine as processes of their own: they meet, prepare a session once and refit
// after each of twenty steps. Two ranks train (0 and 1), two serve (2 and 3):
//
//   refit_processes RANK URL SECRET [TRANSPORT]
//
//   for r in 0 1 2 3; do refit_processes $r tcp://127.0.0.1:29400 key & done; wait
//
// SECRET is a file that only its owner may read, with 16 characters or more. TRANSPORT is shm, or
// gloo, ucx, mpi where the ranks are on several hosts.
#include <reshard/reshard.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

namespace {

constexpr int kRanks = 4, kSteps = 20;

struct Arguments {
  int rank = 0;
  std::string url, secret, transport = "shm";
};

// In place of training: sets every byte of this rank's weights to the number of the step.
void train(reshard::RankBuffers& weights, reshard::Rank rank, int step) {
  for (const reshard::SlotId slot : weights.layout().slots_of(rank))
    std::memset(weights.at(rank, slot), step, static_cast<std::size_t>(weights.bytes(rank, slot)));
}

// Stands for serving: says what the engine would compute with.
void serve(const reshard::Session& session, const reshard::RankBuffers& weights,
           reshard::Rank rank) {
  const reshard::TargetVersion target = session.target_version();
  const reshard::SlotId slot = weights.layout().slots_of(rank).front();
  std::printf("rank %d serves version %lld (%s), first byte %d\n", rank.value(),
              static_cast<long long>(target.version), std::string(name(target.state)).c_str(),
              std::to_integer<int>(*weights.at(rank, slot)));
}

reshard::Result<> run(const Arguments& arguments) {
  const reshard::Model model = RESHARD_TRY(reshard::open_model("demo-moe"));
  const auto trainer = RESHARD_TRY(reshard::make_layout("megatron:tp=2,ep=2,etp=1", model));
  const auto engine = RESHARD_TRY(reshard::make_layout("vllm:tp=2,offset=2", model));

  // Every process knows both layouts and holds its own part of one of them.
  const reshard::Rank me(arguments.rank);
  const bool trains = trainer->ranks().contains(me);
  auto weights = RESHARD_TRY(reshard::RankBuffers::allocate(trains ? trainer : engine, {{me}}));

  reshard::RendezvousOptions join;
  join.url = arguments.url;
  join.rank = me;
  join.size = kRanks;
  join.secret = RESHARD_TRY(reshard::Secret::from_file(arguments.secret));
  reshard::ProcessGroup group = RESHARD_TRY(reshard::join_group(arguments.transport, join));

  const reshard::SessionSide source{.layout = trainer, .buffers = trains ? &weights : nullptr};
  const reshard::SessionSide target{.layout = engine, .buffers = trains ? nullptr : &weights};
  auto session =
      RESHARD_TRY(reshard::Session::prepare(*group.transport, *group.control, source, target));
  for (int step = 1; step <= kSteps; ++step) {
    if (trains) train(weights, me, step);
    RESHARD_TRY(session.refit(step));  // every rank calls it; plans nothing
    if (!trains) serve(session, weights, me);
  }
  RESHARD_TRY(group.control->quiesce(reshard::Deadline::after(std::chrono::seconds(10))));
  group.transport->close();
  group.control->close();
  return reshard::finish_serving(reshard::Deadline::after(std::chrono::seconds(10)));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: refit_processes RANK URL SECRET [TRANSPORT]\n");
    return 2;
  }
  Arguments arguments{.rank = std::atoi(argv[1]), .url = argv[2], .secret = argv[3]};
  if (argc > 4) arguments.transport = argv[4];
  const auto done = run(arguments);
  if (!done) std::fprintf(stderr, "rank %d: %s\n", arguments.rank, done.error().message.c_str());
  return done ? 0 : 1;
}
