// SPDX-License-Identifier: Apache-2.0
// Protects: conversions over messages cost no more than they must: senders convert each row once,
// and what arrives is not copied before it is converted.
#include <gtest/gtest.h>

#include "reshard/model/configs_testutil.h"
#include "reshard/program/compile.h"

namespace reshard {
namespace {

/// Two trainers send some experts of Qwen3-30B to two engines, whose shards of down_proj are slices
/// of columns. `is_sender`: the trainers quantise.
class QuantisedExperts {
 public:
  static constexpr Index kInPlace = Index{1} << 20;

  /// `intermediate`: the size of an expert.
  explicit QuantisedExperts(bool is_sender, Index intermediate = 768,
                            const std::string& engines = "vllm:tp=2,offset=2") {
    ModelConfig config = qwen3_30b();
    config.moe_intermediate_size = intermediate;
    config.num_hidden_layers = 1;
    config.layers.resize(1);
    config.num_experts = 8;
    config.vocab_size = 1024;
    const auto model = model_of(config);
    QuantChoice choice;
    choice.format = *quant_format_from_name("mxfp8");
    for (const CanonicalTensor& t : model->tensors())
      if (t.name.find(".experts.") != std::string::npos) choice.tensors.insert(t.name);
    const auto from = layout_of("megatron:tp=2,ep=2,etp=1", model, config);
    const auto to = layout_of(engines, model, config);
    side_ = *quantise_layout(is_sender ? from : to, choice);
    other_ = is_sender ? quantise_layout(to, choice)->stored : from;
    planner_ =
        is_sender ? *Planner::make(side_->stored, other_) : *Planner::make(other_, side_->values);
    CompileOptions options;
    options.in_place_bytes = kInPlace;
    SideConversion& converts = is_sender ? options.before : options.after;
    converts = {&*side_, {}, true};
    for (const auto& pair : side_->pairs) converts.slots.push_back(pair.values);
    compiler_.emplace(*planner_, [](Rank, Rank) { return PairPath::message; }, options);
  }

  Program program(int rank) const { return *compiler_->compile(Rank(rank)); }
  /// Values of the rank's local tensors that are quantised.
  Index values(Rank r) const {
    Index count = 0;
    for (const auto& pair : side_->pairs) {
      if (!side_->values->rank_set(side_->values->slot(pair.values).ranks).contains(r)) continue;
      for (const QuantBlockArea& a : block_areas(*side_, pair, r)) count += a.rows * a.cols;
    }
    return count;
  }

 private:
  std::optional<QuantisedLayout> side_;
  std::shared_ptr<const ModelLayout> other_;
  std::optional<Planner> planner_;
  std::optional<GroupCompiler> compiler_;
};

/// Values that a program quantises, each as often as it does.
Index quantised(const Program& program) {
  Index count = 0;
  for (const ProgramOp& op : program.ops)
    for (std::uint32_t i = op.first; op.kind == ProgramOp::Kind::quantise && i < op.end; ++i) {
      const ProgramMatrix& m = program.matrices[i];
      count += (m.end - m.begin) * m.cols;
    }
  return count;
}

TEST(CompileConverted, SendersQuantiseEachRowOnce) {
  const QuantisedExperts experts(true);
  for (const int rank : {0, 1})
    EXPECT_EQ(quantised(experts.program(rank)), experts.values(Rank(rank))) << "rank " << rank;
}

TEST(CompileConverted, SendersQuantiseEachRowOnceForManyReplicas) {
  const QuantisedExperts experts(true, 64, "vllm:tp=2,replicas=3,offset=2");
  for (const int rank : {0, 1})
    EXPECT_EQ(quantised(experts.program(rank)), experts.values(Rank(rank))) << "rank " << rank;
}

TEST(CompileConverted, ReceiversQuantiseWhereMessagesArrive) {
  const QuantisedExperts experts(false);
  for (const int rank : {2, 3}) {
    const Program program = experts.program(rank);
    EXPECT_EQ(quantised(program), experts.values(Rank(rank))) << "rank " << rank;
    Index copied = 0;
    for (const ProgramPiece& piece : program.pieces) {
      const auto is_staging = [&](BufferId id) {
        return program.buffers[id.index()].kind == ProgramBuffer::Kind::staging;
      };
      if (is_staging(piece.src) && is_staging(piece.dst)) copied += piece.copy.bytes();
    }
    EXPECT_EQ(copied, 0) << "rank " << rank;
  }
}

/// The messages from one rank to another.
struct Sent {
  Index messages = 0, bytes = 0;
};
Sent sent_to(const Program& program, Rank peer) {
  Sent sent;
  for (const ProgramMessage& m : program.messages) {
    if (!m.is_send || m.peer != peer) continue;
    ++sent.messages;
    sent.bytes += m.bytes;
  }
  return sent;
}

TEST(CompileConverted, SmallMatricesShareMessages) {
  for (const bool is_sender : {true, false}) {
    // Each engine gets four experts from a trainer: 8 matrices, 0.8 or 1.6 MB in all.
    const QuantisedExperts experts(is_sender, 64);
    const Sent sent = sent_to(experts.program(0), Rank(2));
    EXPECT_GE(sent.bytes, 4 * 3 * 64 / 2 * 2048);
    EXPECT_LE(sent.messages, 4 * sent.bytes / QuantisedExperts::kInPlace + 1) << sent.bytes;
  }
}

}  // namespace
}  // namespace reshard
