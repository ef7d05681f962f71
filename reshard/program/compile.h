// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>

#include "reshard/model/quant/quantised_layout.h"
#include "reshard/plan/planner.h"
#include "reshard/program/program.h"

namespace reshard {

/// How the bytes of one rank reach another.
enum class PairPath : std::uint8_t {
  mapped,   ///< the receiver copies from the sender's memory, which is mapped in its process.
  get,      ///< the receiver reads the sender's memory by Transport::get().
  message,  ///< the sender packs and sends, the receiver unpacks.
};

/// The conversion of one side of a plan between plain values and data with scales. The plan's
/// layout of that side is one form of `layout` (values or stored), which is never in memory as a
/// whole; the other form is the memory.
struct SideConversion {
  const QuantisedLayout* layout = nullptr;  ///< null: the plan's layout is the memory.
  std::vector<SlotId> slots;                ///< of values; ascending. Those that the plan moves.
  bool quantises = false;                   ///< values -> data and scales; or the other way.
  /// For each TensorId of a target's values, whether the plan delivers the canonical tensor; empty:
  /// it delivers all. Nothing else of the memory is written.
  std::vector<bool> delivers = {};
  /// For a target that quantises, if its shards cut blocks: the plan whose local copies take the
  /// other form of `layout` (whole blocks, not in memory either) to the target. Null: none.
  const Planner* finish = nullptr;
};

/// The layout of the memory of one side, whose layout in the plan is `planned`.
const std::shared_ptr<const ModelLayout>& memory_of(
    const SideConversion& side, bool is_target, const std::shared_ptr<const ModelLayout>& planned);

/// The options of a program's compilation. Ranks of a group must pass equal options, except that
/// `stages_all`, `round_bytes`, `path_from` and `path_to` are each rank's own; those of two ranks
/// must agree on the way between them.
struct CompileOptions {
  /// The most staging of the rank. Bytes, at least 32 KiB.
  Index staging_bytes = Index{64} << 20;
  /// Runs of at least this many bytes are sent and received in place. Bytes, at least 1.
  Index in_place_bytes = Index{64} << 10;
  /// True if all messages of this rank begin and end in staging, never in a source or a target, as
  /// for memory of a GPU. `in_place_bytes` is then above all sizes, on all ranks.
  bool stages_all = false;
  int world = 1;  ///< number of ranks in the group.
  /// At least 0: exchanges are rounds, cut at the same positions of the messages' order on all
  /// ranks, for a transport with Capabilities::rounds. The program has the largest round_bits up to
  /// this whose rounds fit (Program::round_bits), which all ranks must have equal;
  /// compile_in_rounds() (exec/agreement.h) sees to that. -1: every rank cuts as it likes.
  int round_bits = -1;
  /// The most bytes of a round, of this rank alone; but for a round of a single position.
  Index round_bytes = Index{64} << 20;
  bool reads = false;  ///< some pair of the group is `mapped` or `get`: all ranks begin together.
  bool gets = false;   ///< some pair of the group is `get`: messages leave staging for reads.
  /// Conversions of the source's local tensors before they are read or sent, and of the target's
  /// after they have arrived.
  SideConversion before, after;
  Index unit_bytes = Index{512} << 10;  ///< of values that a thread converts at once, about.
  /// How this rank gets bytes from another, and how another gets them from this rank.
  std::function<PairPath(Rank src)> path_from;
  std::function<PairPath(Rank dst)> path_to;
};

/// Compiles one rank's part of a plan: `part` is Planner::rank_plan() of the rank. Not collective;
/// needs no memory. Errors: Code::unsupported if sub-byte elements begin inside a byte, or staging
/// is too small for a chain of relays.
Result<Program> compile_rank(const Planner& planner, const RankPlan& part,
                             const CompileOptions& options);

/// Compiles what the rank's source converts in a plan: tiles that convert its rows in scratch, for
/// an observer. It needs no other rank. `options`: before, unit_bytes. Errors: as compile_rank().
Result<Program> compile_source(const Planner& planner, Rank rank, const CompileOptions& options);

/// Compiles the deliveries to some destination ranks whose memory, and that of all sources, is in
/// one process. Errors: as compile_rank(); `unsupported` for a plan with relays.
Result<Program> compile_in_process(const Planner& planner, std::span<const Rank> destinations);

/// The most staging that messages of a program use with these options. Bytes.
Index message_staging(const CompileOptions& options);

/// The way of the bytes between two different ranks.
using WayBetween = std::function<PairPath(Rank src, Rank dst)>;

/// Compiles programs of the ranks of a group that need not exist: the ways are given, not agreed
/// on.
class GroupCompiler {
 public:
  /// `options`: all but reads, gets, path_from and path_to, which follow from `way`; `world` is at
  /// least the ranks of the plan. The planner must outlive this object. Cost: planning of all
  /// ranks, unless soon some pair is found that reads by `get`.
  GroupCompiler(const Planner& planner, WayBetween way, CompileOptions options = {});
  /// Ranks 0 to world() - 1. Errors: those of compile_rank().
  Result<Program> compile(Rank rank) const;
  int world() const { return options_.world; }

 private:
  const Planner& planner_;
  WayBetween way_;
  CompileOptions options_;
};

}  // namespace reshard
