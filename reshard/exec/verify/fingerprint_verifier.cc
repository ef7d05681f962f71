// SPDX-License-Identifier: Apache-2.0
// Each cell of a tensor is owned by its lowest rank. The tensor's print is the sum of the owners'
// prints. That all holders of all cells agree is another sum: with h the bijective mix of a print
// and its cell,
//
//   sum over cells (sum over the other holders h(their print)) - (holders - 1) * h(owner's print)
//
// is 0 when they do, in both lanes, and when they do not with a probability of about 2^-64: a
// single difference is always found. So every rank adds four words a tensor, and one reduction
// proves the layout. Where a sum is not 0, the owners' prints of that tensor's cells are made known
// and every holder looks for its first difference.
#include "reshard/exec/verify/fingerprint_verifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "reshard/base/hash.h"
#include "reshard/exec/direct/held_copies.h"
#include "reshard/exec/verify/rank_reduce.h"

namespace reshard {
namespace {

constexpr MessageId kProofId{0x70726f6f66000000};
constexpr std::size_t kWordsPerTensor = 4;
/// Cells whose owners' prints are made known at once.
constexpr std::size_t kCellsAtOnce = std::size_t{1} << 16;
/// Weight of a rank's further copies, so that they cannot make up for what is wrong with its first.
constexpr std::uint64_t kFurther = 0x9e3779b97f4a7c15;
constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();

std::uint64_t mixed(const HeldCopy& copy, std::size_t lane) {
  const auto key = static_cast<std::uint64_t>(copy.cell) * 2 + lane;
  return mix64(copy.print.lane[lane] ^ mix64(key));
}

class RankProver {
 public:
  RankProver(const ModelLayout& layout, std::span<const StoredForm> forms, Transport& transport,
             ControlPlane& control)
      : layout_(layout),
        transport_(transport),
        control_(control),
        me_(control.rank()),
        held_(layout, forms),
        sums_(num_tensors() * kWordsPerTensor + 1) {
    prints_.tensors.resize(num_tensors());
  }

  Result<> prepare(const RankBuffers* buffers, std::span<const StoredForm> forms,
                   const std::vector<bool>& tensors, Deadline deadline) {
    RESHARD_TRY(agree(forms, tensors, deadline));
    return held_.find(buffers, me_, tensors);
  }

  /// @pre prepared
  Result<const ModelFingerprints*> run(const FingerprintOptions& options) {
    deadline_ = options.deadline;
    RESHARD_TRY(read(options));
    return finish();
  }
  Result<const ModelFingerprints*> run_with(std::span<const Fingerprint> prints,
                                            Deadline deadline) {
    deadline_ = deadline;
    held_.set(prints);
    return finish();
  }
  const HeldCopies& held() const { return held_; }

 private:
  Result<const ModelFingerprints*> finish() {
    RESHARD_TRY(sum());
    // Nobody goes on before everybody knows the verdict.
    RESHARD_TRY(control_.barrier(deadline_));
    return &prints_;
  }

  static TensorId id(std::size_t t) { return TensorId(static_cast<TensorId::rep>(t)); }
  std::size_t num_tensors() const { return static_cast<std::size_t>(layout_.model().size()); }
  const Cell& cell(const HeldCopy& copy) const {
    return held_.cells(copy.tensor)[static_cast<std::size_t>(copy.cell)];
  }
  bool owns(const HeldCopy& copy) const { return held_.holders(cell(copy)).count_below(me_) == 0; }
  Result<> reduce(std::span<std::uint64_t> values, Reduction reduction) {
    return reduce_to_all(values, reduction, transport_, kProofId, deadline_);
  }

  /// Every rank must prove the same.
  Result<> agree(std::span<const StoredForm> forms, const std::vector<bool>& tensors,
                 Deadline deadline) {
    Digest digest;
    digest.add(layout_.digest());
    for (const StoredForm& form : forms)
      digest.add(static_cast<int>(form.dtype)).add(static_cast<int>(form.map));
    for (const bool is_read : tensors) digest.add(is_read ? 1 : 0);
    const std::uint64_t mine = digest.value();
    const auto all = RESHARD_TRY(control_.all_gather(std::as_bytes(std::span(&mine, 1)), deadline));
    for (std::size_t r = 0; r < all.size(); ++r)
      if (all[r].size() != sizeof mine || std::memcmp(all[r].data(), &mine, sizeof mine) != 0)
        return fail(Code::invalid_argument,
                    fmt::format("rank {} proves another layout than rank {} ({}); all ranks must "
                                "pass equal models, layouts and forms",
                                r, me_.value(), layout_.name()));
    return {};
  }

  Result<> read(const FingerprintOptions& options) {
    const Progress progress = [&](std::string_view phase, Index done, Index total) {
      if (!control_.status()) return false;
      return !options.progress || options.progress(phase, done, total);
    };
    auto done = held_.read(options.threads, progress, options.deadline);
    // Why it was cancelled, if another rank was the reason.
    if (!done) RESHARD_TRY(control_.status());
    return done;
  }

  Result<> sum() {
    std::ranges::fill(sums_, 0);
    for (std::size_t t = 0; t < num_tensors(); ++t)
      add_own(id(t), std::span(sums_).subspan(t * kWordsPerTensor, kWordsPerTensor));
    sums_.back() = static_cast<std::uint64_t>(held_.bytes());
    RESHARD_TRY(reduce(sums_, Reduction::sum));
    std::vector<TensorId> wrong;
    for (std::size_t t = 0; t < num_tensors(); ++t) {
      const auto word = std::span(sums_).subspan(t * kWordsPerTensor, kWordsPerTensor);
      const bool agree = word[2] == 0 && word[3] == 0;
      prints_.tensors[t] = {{{word[0], word[1]}}, held_.replicas(id(t)), agree, ""};
      if (!agree) wrong.push_back(id(t));
    }
    prints_.bytes = static_cast<Index>(sums_.back());
    return name_differences(wrong, prints_);
  }

  /// This rank's part of a tensor's print (words 0 and 1) and of its replicas' agreement (2 and 3).
  /// A rank's further copies of a cell are compared with its first.
  void add_own(TensorId tensor, std::span<std::uint64_t> words) const {
    const HeldCopy* first = nullptr;
    for (const HeldCopy& c : held_.of(tensor)) {
      const bool is_first = first == nullptr || first->cell != c.cell;
      if (is_first) first = &c;
      const bool owned = is_first && owns(c);
      const auto others = static_cast<std::uint64_t>(held_.holders(cell(c)).size()) - 1;
      for (std::size_t l = 0; l < 2; ++l) {
        if (owned) words[l] += c.print.lane[l];
        words[2 + l] += owned      ? std::uint64_t{0} - others * mixed(c, l)
                        : is_first ? mixed(c, l)
                                   : kFurther * (mixed(c, l) - mixed(*first, l));
      }
    }
  }

  Result<> name_differences(std::span<const TensorId> wrong, ModelFingerprints& prints) {
    while (!wrong.empty()) {
      std::size_t n = 0, num_cells = 0;
      while (n < wrong.size() && (n == 0 || num_cells < kCellsAtOnce))
        num_cells += held_.cells(wrong[n++]).size();
      RESHARD_TRY(name_differences_of(wrong.first(n), num_cells, prints));
      wrong = wrong.subspan(n);
    }
    return {};
  }

  Result<> name_differences_of(std::span<const TensorId> wrong, std::size_t num_cells,
                               ModelFingerprints& prints) {
    std::vector<std::uint64_t> owners(num_cells * 2), firsts(wrong.size(), kNone);
    const auto for_each_copy = [&](auto&& f) {
      std::size_t at = 0;
      for (std::size_t i = 0; i < wrong.size(); at += held_.cells(wrong[i++]).size())
        for (const HeldCopy& c : held_.of(wrong[i]))
          f(i, c, owners.data() + (at + static_cast<std::size_t>(c.cell)) * 2);
    };
    const HeldCopy* before = nullptr;
    for_each_copy([&](std::size_t, const HeldCopy& c, std::uint64_t* owner) {
      const bool is_first =
          before == nullptr || before->tensor != c.tensor || before->cell != c.cell;
      before = &c;
      if (is_first && owns(c)) std::copy_n(c.print.lane.begin(), 2, owner);
    });
    RESHARD_TRY(reduce(owners, Reduction::sum));
    for_each_copy([&](std::size_t i, const HeldCopy& c, const std::uint64_t* owner) {
      if (std::equal(owner, owner + 2, c.print.lane.begin())) return;
      firsts[i] = std::min(firsts[i], static_cast<std::uint64_t>(c.cell) << 32 |
                                          static_cast<std::uint64_t>(me_.index()));
    });
    RESHARD_TRY(reduce(firsts, Reduction::min));
    for (std::size_t i = 0; i < wrong.size(); ++i)
      prints.tensors[wrong[i].index()].disagreement = text(wrong[i], firsts[i]);
    return {};
  }

  std::string text(TensorId tensor, std::uint64_t first) const {
    const auto cells = held_.cells(tensor);
    if (first >> 32 >= cells.size()) return "the ranks' sums contradict their prints";
    const Cell& where = cells[first >> 32];
    return disagreement(Rank(static_cast<Rank::rep>(first & 0xffffffff)),
                        held_.holders(where).members().front(), where.box);
  }

  const ModelLayout& layout_;
  Transport& transport_;
  ControlPlane& control_;
  Rank me_;
  HeldCopies held_;
  Deadline deadline_ = Deadline::never();  ///< of the run under way.
  std::vector<std::uint64_t> sums_;
  ModelFingerprints prints_;
};

}  // namespace

struct FingerprintVerifier::State {
  ControlPlane& control;
  RankProver prover;
};

FingerprintVerifier::FingerprintVerifier(std::unique_ptr<State> state) : state_(std::move(state)) {}
FingerprintVerifier::FingerprintVerifier(FingerprintVerifier&&) noexcept = default;
FingerprintVerifier& FingerprintVerifier::operator=(FingerprintVerifier&&) noexcept = default;
FingerprintVerifier::~FingerprintVerifier() = default;

Result<FingerprintVerifier> FingerprintVerifier::prepare(const ModelLayout& layout,
                                                         const RankBuffers* buffers,
                                                         Transport& transport,
                                                         ControlPlane& control, Deadline deadline,
                                                         std::span<const StoredForm> forms,
                                                         const std::vector<bool>& tensors) {
  auto state =
      std::unique_ptr<State>(new State{control, RankProver(layout, forms, transport, control)});
  if (auto done = state->prover.prepare(buffers, forms, tensors, deadline); !done) {
    control.abort(done.error().message);
    return tl::unexpected(std::move(done).error());
  }
  return FingerprintVerifier(std::move(state));
}

Result<const ModelFingerprints*> FingerprintVerifier::run(const FingerprintOptions& options) {
  auto prints = state_->prover.run(options);
  if (!prints) state_->control.abort(prints.error().message);
  return prints;
}

Result<const ModelFingerprints*> FingerprintVerifier::run_with(std::span<const Fingerprint> prints,
                                                               Deadline deadline) {
  auto summed = state_->prover.run_with(prints, deadline);
  if (!summed) state_->control.abort(summed.error().message);
  return summed;
}

const HeldCopies& FingerprintVerifier::held() const { return state_->prover.held(); }

Result<ModelFingerprints> rank_fingerprints(const ModelLayout& layout, const RankBuffers* buffers,
                                            Transport& transport, ControlPlane& control,
                                            const FingerprintOptions& options,
                                            std::span<const StoredForm> forms) {
  const auto start = std::chrono::steady_clock::now();
  auto proof = RESHARD_TRY(
      FingerprintVerifier::prepare(layout, buffers, transport, control, options.deadline, forms));
  ModelFingerprints prints = *RESHARD_TRY(proof.run(options));
  prints.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return prints;
}

}  // namespace reshard
