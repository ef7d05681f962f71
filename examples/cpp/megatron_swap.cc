// SPDX-License-Identifier: Apache-2.0
// Megatron-Core's swap_model_weights() in C++. A trainer of two ranks (tensor parallel 2: ranks 0
// and 1) hands its weights to an engine of one (rank 2) after each step. Ranks are threads of this
// process; as processes they would call join_group() and name its transport.
#include <reshard/megatron.h>

#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace reshard::megatron;
using reshard::Index;

constexpr int kTrainers = 2, kRanks = 3, kSteps = 3;
constexpr Index kVocabulary = 64, kHidden = 16;

// A rank's part of the model: the embedding is cut along its rows, linear_fc2 along its columns,
// and every rank has the norm.
struct Part {
  Index rank = 0, of = 1;
  OwnedTensor embedding, fc2, norm;
  Module module;
};

reshard::Result<> add(Part& part, OwnedTensor& tensor, const reshard::Dims& shape,
                      const std::string& path, const ParameterAttributes& attributes) {
  tensor = RESHARD_TRY(make_tensor(reshard::DType::f32, shape));
  RESHARD_TRY(part.module.submodule(path).register_parameter("weight", tensor.view, attributes));
  return {};
}

reshard::Result<> make(Part& part, int rank, int of) {
  part.rank = rank;
  part.of = of;
  RESHARD_TRY(add(part, part.embedding, {kVocabulary / of, kHidden}, "embedding.word_embeddings",
                  {.tensor_model_parallel = true, .partition_dim = 0}));
  RESHARD_TRY(add(part, part.fc2, {kHidden, kHidden / of}, "decoder.layers.0.mlp.linear_fc2",
                  {.tensor_model_parallel = true, .partition_dim = 1}));
  RESHARD_TRY(add(part, part.norm, {kHidden}, "decoder.final_layernorm", {}));
  std::vector<reshard::Rank> ranks;
  for (int r = 0; r < of; ++r) ranks.emplace_back(r);
  const auto tp = std::make_shared<const std::vector<reshard::Rank>>(ranks);
  const auto one = std::make_shared<const std::vector<reshard::Rank>>(1, reshard::Rank(rank));
  part.module.config = TransformerConfig{};
  part.module.pg_collection = ProcessGroups{.tp = tp, .pp = one, .ep = one, .dp = one};
  return {};
}

std::span<float> values(const OwnedTensor& tensor) {
  return {reinterpret_cast<float*>(tensor.view.data),
          static_cast<std::size_t>(tensor.view.num_elements())};
}

// The value of each element tells its step and its place in the whole tensor.
float value(int step, Index row, Index column, Index columns) {
  return static_cast<float>(10'000 * step + row * columns + column);
}

// Calls visit(element, value) for all elements of the part at this step.
template <typename Visit>
void for_each(Part& part, int step, Visit visit) {
  const Index rows = kVocabulary / part.of, columns = kHidden / part.of;
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < kHidden; ++c)
      visit(values(part.embedding)[static_cast<std::size_t>(r * kHidden + c)],
            value(step, part.rank * rows + r, c, kHidden));
  for (Index r = 0; r < kHidden; ++r)
    for (Index c = 0; c < columns; ++c)
      visit(values(part.fc2)[static_cast<std::size_t>(r * columns + c)],
            value(step, r, part.rank * columns + c, kHidden));
  for (Index c = 0; c < kHidden; ++c)
    visit(values(part.norm)[static_cast<std::size_t>(c)], value(step, 0, c, kHidden));
}

reshard::Result<> run(reshard::InprocGroup& group, reshard::Rank me) {
  const auto transport = RESHARD_TRY(group.transport(me));
  const auto control = RESHARD_TRY(group.control(me));
  const bool trains = me.value() < kTrainers;
  Part part;
  RESHARD_TRY(trains ? make(part, me.value(), kTrainers) : make(part, 0, 1));
  // A rank passes null for the model that it does not have.
  const ModelArgument trainer(trains ? &part.module : nullptr);
  const ModelArgument engine(trains ? nullptr : &part.module);
  RefitContext context({.world = {control.get(), transport.get()}});
  const RefitArguments arguments{.dst_rank_offset = kTrainers};
  RESHARD_TRY(prepare_swap_model_weights(trainer, engine, arguments, context));
  for (int step = 1; step <= kSteps; ++step) {
    if (trains) for_each(part, step, [](float& at, float value) { at = value; });
    RESHARD_TRY(swap_model_weights(trainer, engine, "inproc", arguments, context));
    int right = 0, wrong = 0;
    if (!trains)
      for_each(part, step, [&](float at, float value) { ++(at == value ? right : wrong); });
    if (!trains) std::printf("step %d: the engine has %d elements, %d wrong\n", step, right, wrong);
  }
  return control->quiesce(reshard::Deadline::after(std::chrono::seconds(10)));
}

reshard::Result<> run_all() {
  auto group = RESHARD_TRY(reshard::InprocGroup::create(kRanks));
  std::vector<reshard::Result<>> results(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r)
    threads.emplace_back(
        [&, r] { results[static_cast<std::size_t>(r)] = run(group, reshard::Rank(r)); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) RESHARD_TRY(result);
  return {};
}

}  // namespace

int main() {
  const auto done = run_all();
  if (!done) std::fprintf(stderr, "megatron_swap: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
