// SPDX-License-Identifier: Apache-2.0
// Protects: ranks that have only their own memory compute the fingerprints that one process with
// all memory does; if a rank is late or dead, all ranks get an error.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <mutex>

#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/exec/in_process.h"
#include "reshard/exec/verify/fingerprint_verifier.h"
#include "reshard/exec/verify/rank_reduce.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/model/random_layout_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/rank_threads_testutil.h"

namespace reshard {
namespace {

int world_of(const ModelLayout& layout) { return layout.ranks().members().back().value() + 1; }

/// A rank's own part of buffers that all threads share.
RankBuffers part_of(const RankBuffers& all, Rank r) {
  RankBuffers own(all.shared_layout());
  if (!all.layout().ranks().contains(r)) return own;
  for (SlotId slot : all.layout().slots_of(r))
    EXPECT_TRUE(own.bind(r, slot, {all.at(r, slot), static_cast<std::size_t>(all.bytes(r, slot))}));
  return own;
}

/// Every rank's fingerprints, by rank, computed by threads that each see their own memory only.
Result<std::vector<ModelFingerprints>> verified(const RankBuffers& all, int world,
                                                std::span<const StoredForm> forms = {}) {
  auto group = *InprocGroup::create(world);
  std::vector<ModelFingerprints> fingerprints(static_cast<std::size_t>(world));
  const auto rank = [&](Rank r) -> Result<> {
    const auto transport = RESHARD_TRY(group.transport(r));
    const auto control = RESHARD_TRY(group.control(r));
    const RankBuffers own = part_of(all, r);
    const bool holds = all.layout().ranks().contains(r);
    fingerprints[r.index()] = RESHARD_TRY(rank_fingerprints(
        all.layout(), holds ? &own : nullptr, *transport, *control, {.threads = 1}, forms));
    return {};
  };
  RESHARD_TRY(run_ranks(world, rank));
  return fingerprints;
}

std::string text(const ModelFingerprints& fingerprints) {
  std::string out;
  for (const auto& t : fingerprints.tensors)
    out += to_string(t.fingerprint) + " " + std::to_string(t.replicas) +
           (t.agree ? " agree" : " differ ") + t.disagreement + "\n";
  return out;
}

/// Flips a bit in up to three elements of random ranks.
void damage(const RankBuffers& buffers) {
  const auto ranks = buffers.layout().ranks().members();
  for (int n = *rc::gen::inRange(0, 4); n > 0; --n) {
    const Rank r = *rc::gen::elementOf(ranks);
    const auto slots = buffers.layout().slots_of(r);
    if (slots.empty()) continue;
    const SlotId slot = *rc::gen::elementOf(slots);
    const Index bytes = buffers.bytes(r, slot);
    if (bytes == 0) continue;
    buffers.at(r, slot)[*rc::gen::inRange<Index>(0, bytes)] ^= std::byte{0x10};
  }
}

RC_GTEST_PROP(FingerprintVerifier, says_on_every_rank_what_one_process_says, ()) {
  const auto model = random_model();
  const auto layout = random_layout(model);
  const RankBuffers all = allocate_all(layout);
  fill_elements(all);
  damage(all);  // padding included, which no proof may look at
  const ModelFingerprints want = *fingerprints(all, 1);
  const auto seen = verified(all, world_of(*layout) + *rc::gen::inRange(0, 3));
  if (!seen) RC_FAIL(seen.error().message);
  for (const ModelFingerprints& fingerprints : *seen) {
    RC_ASSERT(text(fingerprints) == text(want));
    RC_ASSERT(fingerprints.bytes == want.bytes);
  }
}

RC_GTEST_PROP(FingerprintVerifier, converts_as_one_process_does, ()) {
  const auto model = random_model();
  const auto from = random_layout(model, RandomForms::any),
             to = random_layout(model, RandomForms::any);
  const RankBuffers source = allocate_all(from);
  fill_elements(source);
  const auto forms = forms_of(*to);
  const ModelFingerprints want = *fingerprints(source, 1, {}, forms);
  const auto seen = verified(source, std::max(world_of(*from), world_of(*to)), forms);
  if (!seen) RC_FAIL(seen.error().message);
  for (const ModelFingerprints& fingerprints : *seen) RC_ASSERT(text(fingerprints) == text(want));
}

/// Three replicas of a model, so that two of them can be wrong in the same and in different ways.
struct Replicated {
  ModelConfig config = tiny_moe();
  std::shared_ptr<const ModelSpec> model = model_of(config);
  std::shared_ptr<const ModelLayout> layout = layout_of("vllm:tp=2,replicas=3", model, config);
  RankBuffers all = allocate_all(layout);
  Replicated() { fill_elements(all); }

  /// Flips a bit in the first element of the last local tensor of a rank.
  std::string flip(int rank, std::byte bit) {
    const Rank r(rank);
    const SlotId slot = layout->slots_of(r).back();
    all.at(r, slot)[0] ^= bit;
    return (*model)[layout->local(slot, r).fragments[0].tensor].name;
  }
};

TEST(FingerprintVerifier, names_the_first_of_several_wrong_replicas_on_every_rank) {
  for (const int second : {-1, 1, 3, 5}) {
    Replicated job;
    const std::string tensor = job.flip(4, std::byte{0x80});
    if (second >= 0) job.flip(second, second == 3 ? std::byte{0x80} : std::byte{0x01});
    const ModelFingerprints want = *fingerprints(job.all, 1);
    const auto seen = verified(job.all, 7);
    ASSERT_TRUE(seen) << seen.error().message;
    for (const ModelFingerprints& fingerprints : *seen) {
      ASSERT_EQ(text(fingerprints), text(want));
      const auto same = compare_fingerprints(*job.model, fingerprints, fingerprints);
      ASSERT_FALSE(same);
      EXPECT_NE(same.error().message.find(tensor), std::string::npos) << same.error().message;
      EXPECT_NE(same.error().message.find("differs from rank"), std::string::npos);
    }
  }
}

/// Every rank's error, by rank; an empty text is success.
template <class Body>
std::vector<std::string> errors_of(int world, Body&& body) {
  auto group = *InprocGroup::create(world);
  std::vector<std::string> errors(static_cast<std::size_t>(world));
  const auto ended = run_ranks(world, [&](Rank r) -> Result<> {
    auto transport = RESHARD_TRY(group.transport(r));
    auto control = RESHARD_TRY(group.control(r));
    const Result<> done = body(r, *transport, *control);
    if (!done) errors[r.index()] = done.error().message;
    transport->close();
    control->close();
    return {};
  });
  EXPECT_TRUE(ended) << ended.error().message;
  return errors;
}

void expect_all_say(const std::vector<std::string>& errors, const std::string& words) {
  for (const std::string& e : errors)
    EXPECT_NE(e.find(words), std::string::npos) << "'" << e << "'";
}

TEST(FingerprintVerifier, memory_missing_on_one_rank_is_an_error_on_all) {
  const Replicated job;
  expect_all_say(
      errors_of(6,
                [&](Rank r, Transport& transport, ControlPlane& control) -> Result<> {
                  const RankBuffers own = part_of(job.all, r);
                  RESHARD_TRY(rank_fingerprints(*job.layout, r == Rank(2) ? nullptr : &own,
                                                transport, control, {.threads = 1}));
                  return {};
                }),
      "no memory for local tensor");
}

TEST(FingerprintVerifier, another_layout_on_one_rank_is_an_error_on_all) {
  const Replicated job;
  const auto other = layout_of("vllm:tp=1,replicas=6", job.model, job.config);
  const RankBuffers others = allocate_all(other);
  expect_all_say(
      errors_of(6,
                [&](Rank r, Transport& transport, ControlPlane& control) -> Result<> {
                  const bool odd = r == Rank(5);
                  RESHARD_TRY(rank_fingerprints(odd ? *other : *job.layout,
                                                odd ? &others : &job.all, transport, control));
                  return {};
                }),
      "verifies another layout");
}

TEST(FingerprintVerifier, a_rank_that_dies_is_an_error_on_the_others) {
  const Replicated job;
  for (int dead = 0; dead < 6; ++dead) {
    auto errors =
        errors_of(6, [&](Rank r, Transport& transport, ControlPlane& control) -> Result<> {
          if (r == Rank(dead)) return {};
          RESHARD_TRY(rank_fingerprints(*job.layout, &job.all, transport, control, {.threads = 1}));
          return {};
        });
    errors.erase(errors.begin() + dead);
    expect_all_say(errors, "rank " + std::to_string(dead));
  }
}

TEST(FingerprintVerifier, a_rank_that_does_not_come_is_named_at_the_deadline) {
  const Replicated job;
  auto group = *InprocGroup::create(6);
  const auto absent = group.control(Rank(3));
  const auto ended = run_ranks(5, [&](Rank i) -> Result<> {
    const Rank r(i.value() < 3 ? i.value() : i.value() + 1);
    const auto transport = RESHARD_TRY(group.transport(r));
    const auto control = RESHARD_TRY(group.control(r));
    const auto fingerprints = rank_fingerprints(
        *job.layout, &job.all, *transport, *control,
        {.threads = 1, .deadline = Deadline::after(std::chrono::milliseconds(50))});
    if (fingerprints) return fail(Code::corrupt, "verified without rank 3");
    // Others may be late as well on a busy machine: "ranks 0, 3 did not arrive".
    const std::string& what = fingerprints.error().message;
    EXPECT_NE(what.find(" 3"), std::string::npos) << what;
    EXPECT_NE(what.find("did not arrive"), std::string::npos) << what;
    return {};
  });
  EXPECT_TRUE(ended) << ended.error().message;
}

TEST(RankReduce, sums_and_takes_minima_over_any_number_of_ranks) {
  for (const int world : {1, 2, 3, 5, 8, 13}) {
    const auto n = static_cast<std::uint64_t>(world);
    const auto errors =
        errors_of(world, [&](Rank r, Transport& transport, ControlPlane&) -> Result<> {
          const auto mine = static_cast<std::uint64_t>(r.index());
          const Deadline deadline = Deadline::after(std::chrono::seconds(60));
          for (std::uint64_t round = 0; round < 3; ++round) {
            std::uint64_t sums[] = {1, mine, ~std::uint64_t{0} - round},
                          least[] = {mine + round, n - mine};
            RESHARD_TRY(verify::reduce_to_all(sums, verify::Reduction::sum, transport, MessageId(7),
                                              deadline));
            RESHARD_TRY(verify::reduce_to_all(least, verify::Reduction::min, transport,
                                              MessageId(7), deadline));
            EXPECT_EQ(sums[0], n);
            EXPECT_EQ(sums[1], n * (n - 1) / 2);
            EXPECT_EQ(sums[2], std::uint64_t{0} - n * (round + 1));
            EXPECT_EQ(least[0], round);
            EXPECT_EQ(least[1], 1U);
          }
          return {};
        });
    expect_all_say(errors, "");
    EXPECT_EQ(std::ranges::count(errors, ""), world);
  }
}

}  // namespace
}  // namespace reshard
