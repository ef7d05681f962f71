// SPDX-License-Identifier: Apache-2.0
// Each cell of a tensor is owned by the lowest rank that holds it. The tensor's fingerprint is the
// sum of the owners' fingerprints. Another sum tells whether all replicas agree. With h the
// bijective mix of a fingerprint and its cell,
//
//   sum over cells (sum over the other holders h(theirs)) - (holders - 1) * h(the owner's)
//
// is 0 in both lanes if they agree. A single difference always makes it non-zero; several do unless
// they cancel out, with a probability of about 2^-64. So every rank adds four 64-bit numbers a
// tensor, and one reduction verifies the layout. For each tensor whose sum is not 0, the owners'
// fingerprints of its cells are reduced too, and every holder looks for its first difference.
#include "reshard/exec/verify/fingerprint_verifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "reshard/base/hash.h"
#include "reshard/exec/verify/rank_reduce.h"

namespace reshard {
namespace {

constexpr MessageId kReductionId{0x70726f6f66000000};
constexpr std::size_t kSumsPerTensor = 4;
/// Cells whose owners' fingerprints one reduction makes known.
constexpr std::size_t kCellsAtOnce = std::size_t{1} << 16;
/// Weight of a rank's further replicas of a cell, so that they cannot cancel an error in its first.
constexpr std::uint64_t kFurther = 0x9e3779b97f4a7c15;
constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();

std::uint64_t mixed(const CellReplica& replica, std::size_t lane) {
  const auto key = static_cast<std::uint64_t>(replica.cell) * 2 + lane;
  return mix64(replica.fingerprint.lane[lane] ^ mix64(key));
}

class RankVerifier {
 public:
  RankVerifier(const ModelLayout& layout, std::span<const StoredForm> forms, Transport& transport,
               ControlPlane& control)
      : layout_(layout),
        transport_(transport),
        control_(control),
        me_(control.rank()),
        replicas_(layout, forms),
        sums_(num_tensors() * kSumsPerTensor + 1) {
    fingerprints_.tensors.resize(num_tensors());
  }

  Result<> prepare(const RankBuffers* buffers, std::span<const StoredForm> forms,
                   const std::vector<bool>& tensors, Deadline deadline) {
    RESHARD_TRY(agree(forms, tensors, deadline));
    return replicas_.find(buffers, me_, tensors);
  }

  /// @pre prepared
  Result<const ModelFingerprints*> run(const FingerprintOptions& options) {
    deadline_ = options.deadline;
    RESHARD_TRY(read(options));
    return finish();
  }
  Result<const ModelFingerprints*> run_with(std::span<const Fingerprint> fingerprints,
                                            Deadline deadline) {
    deadline_ = deadline;
    replicas_.set(fingerprints);
    return finish();
  }
  const CellReplicas& replicas() const { return replicas_; }

 private:
  Result<const ModelFingerprints*> finish() {
    RESHARD_TRY(sum());
    // No rank returns before all know the result.
    RESHARD_TRY(control_.barrier(deadline_));
    return &fingerprints_;
  }

  static TensorId id(std::size_t t) { return TensorId(static_cast<TensorId::rep>(t)); }
  std::size_t num_tensors() const { return static_cast<std::size_t>(layout_.model().size()); }
  const Cell& cell(const CellReplica& replica) const {
    return replicas_.cells(replica.tensor)[static_cast<std::size_t>(replica.cell)];
  }
  bool owns(const CellReplica& replica) const {
    return replicas_.holders(cell(replica)).count_below(me_) == 0;
  }
  Result<> reduce(std::span<std::uint64_t> values, verify::Reduction reduction) {
    return verify::reduce_to_all(values, reduction, transport_, kReductionId, deadline_);
  }

  /// All ranks must verify the same layout.
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
                    fmt::format("rank {} verifies another layout than rank {} ({}); all ranks must "
                                "pass equal models, layouts and forms",
                                r, me_.value(), layout_.name()));
    return {};
  }

  Result<> read(const FingerprintOptions& options) {
    const Progress progress = [&](std::string_view phase, Index done, Index total) {
      if (!control_.status()) return false;
      return !options.progress || options.progress(phase, done, total);
    };
    auto done = replicas_.read(options.threads, progress, options.deadline);
    // If another rank caused the cancellation, its error says more.
    if (!done) RESHARD_TRY(control_.status());
    return done;
  }

  Result<> sum() {
    std::ranges::fill(sums_, 0);
    for (std::size_t t = 0; t < num_tensors(); ++t)
      add_own(id(t), std::span(sums_).subspan(t * kSumsPerTensor, kSumsPerTensor));
    sums_.back() = static_cast<std::uint64_t>(replicas_.bytes());
    RESHARD_TRY(reduce(sums_, verify::Reduction::sum));
    std::vector<TensorId> wrong;
    for (std::size_t t = 0; t < num_tensors(); ++t) {
      const auto sums = std::span(sums_).subspan(t * kSumsPerTensor, kSumsPerTensor);
      const bool agree = sums[2] == 0 && sums[3] == 0;
      fingerprints_.tensors[t] = {{{sums[0], sums[1]}}, replicas_.replicas(id(t)), agree, ""};
      if (!agree) wrong.push_back(id(t));
    }
    fingerprints_.bytes = static_cast<Index>(sums_.back());
    return name_differences(wrong, fingerprints_);
  }

  /// Adds this rank's part of a tensor's fingerprint (sums 0 and 1) and of its replicas' agreement
  /// (2 and 3). A rank's further replicas of a cell are compared with its first.
  void add_own(TensorId tensor, std::span<std::uint64_t> sums) const {
    const CellReplica* first = nullptr;
    for (const CellReplica& c : replicas_.of(tensor)) {
      const bool is_first = first == nullptr || first->cell != c.cell;
      if (is_first) first = &c;
      const bool owned = is_first && owns(c);
      const auto others = static_cast<std::uint64_t>(replicas_.holders(cell(c)).size()) - 1;
      for (std::size_t l = 0; l < 2; ++l) {
        if (owned) sums[l] += c.fingerprint.lane[l];
        sums[2 + l] += owned      ? std::uint64_t{0} - others * mixed(c, l)
                       : is_first ? mixed(c, l)
                                  : kFurther * (mixed(c, l) - mixed(*first, l));
      }
    }
  }

  Result<> name_differences(std::span<const TensorId> wrong, ModelFingerprints& fingerprints) {
    while (!wrong.empty()) {
      std::size_t n = 0, num_cells = 0;
      while (n < wrong.size() && (n == 0 || num_cells < kCellsAtOnce))
        num_cells += replicas_.cells(wrong[n++]).size();
      RESHARD_TRY(name_differences_of(wrong.first(n), num_cells, fingerprints));
      wrong = wrong.subspan(n);
    }
    return {};
  }

  Result<> name_differences_of(std::span<const TensorId> wrong, std::size_t num_cells,
                               ModelFingerprints& fingerprints) {
    std::vector<std::uint64_t> owners(num_cells * 2), firsts(wrong.size(), kNone);
    const auto for_each_replica = [&](auto&& f) {
      std::size_t at = 0;
      for (std::size_t i = 0; i < wrong.size(); at += replicas_.cells(wrong[i++]).size())
        for (const CellReplica& c : replicas_.of(wrong[i]))
          f(i, c, owners.data() + (at + static_cast<std::size_t>(c.cell)) * 2);
    };
    const CellReplica* before = nullptr;
    for_each_replica([&](std::size_t, const CellReplica& c, std::uint64_t* owner) {
      const bool is_first =
          before == nullptr || before->tensor != c.tensor || before->cell != c.cell;
      before = &c;
      if (is_first && owns(c)) std::copy_n(c.fingerprint.lane.begin(), 2, owner);
    });
    RESHARD_TRY(reduce(owners, verify::Reduction::sum));
    for_each_replica([&](std::size_t i, const CellReplica& c, const std::uint64_t* owner) {
      if (std::equal(owner, owner + 2, c.fingerprint.lane.begin())) return;
      firsts[i] = std::min(firsts[i], static_cast<std::uint64_t>(c.cell) << 32 |
                                          static_cast<std::uint64_t>(me_.index()));
    });
    RESHARD_TRY(reduce(firsts, verify::Reduction::min));
    for (std::size_t i = 0; i < wrong.size(); ++i)
      fingerprints.tensors[wrong[i].index()].disagreement = text(wrong[i], firsts[i]);
    return {};
  }

  std::string text(TensorId tensor, std::uint64_t first) const {
    const auto cells = replicas_.cells(tensor);
    if (first >> 32 >= cells.size()) return "the ranks' sums contradict their fingerprints";
    const Cell& where = cells[first >> 32];
    return disagreement(Rank(static_cast<Rank::rep>(first & 0xffffffff)),
                        replicas_.holders(where).members().front(), where.box);
  }

  const ModelLayout& layout_;
  Transport& transport_;
  ControlPlane& control_;
  Rank me_;
  CellReplicas replicas_;
  Deadline deadline_ = Deadline::never();  ///< of the current run.
  std::vector<std::uint64_t> sums_;
  ModelFingerprints fingerprints_;
};

}  // namespace

struct FingerprintVerifier::State {
  ControlPlane& control;
  RankVerifier verifier;
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
      std::unique_ptr<State>(new State{control, RankVerifier(layout, forms, transport, control)});
  if (auto done = state->verifier.prepare(buffers, forms, tensors, deadline); !done) {
    control.abort(done.error().message);
    return tl::unexpected(std::move(done).error());
  }
  return FingerprintVerifier(std::move(state));
}

Result<const ModelFingerprints*> FingerprintVerifier::run(const FingerprintOptions& options) {
  auto fingerprints = state_->verifier.run(options);
  if (!fingerprints) state_->control.abort(fingerprints.error().message);
  return fingerprints;
}

Result<const ModelFingerprints*> FingerprintVerifier::run_with(
    std::span<const Fingerprint> fingerprints, Deadline deadline) {
  auto summed = state_->verifier.run_with(fingerprints, deadline);
  if (!summed) state_->control.abort(summed.error().message);
  return summed;
}

const CellReplicas& FingerprintVerifier::replicas() const { return state_->verifier.replicas(); }

Result<ModelFingerprints> rank_fingerprints(const ModelLayout& layout, const RankBuffers* buffers,
                                            Transport& transport, ControlPlane& control,
                                            const FingerprintOptions& options,
                                            std::span<const StoredForm> forms) {
  const auto start = std::chrono::steady_clock::now();
  auto verifier = RESHARD_TRY(
      FingerprintVerifier::prepare(layout, buffers, transport, control, options.deadline, forms));
  ModelFingerprints fingerprints = *RESHARD_TRY(verifier.run(options));
  fingerprints.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return fingerprints;
}

}  // namespace reshard
