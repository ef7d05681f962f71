// SPDX-License-Identifier: Apache-2.0
// A discrete-event simulation: tiles and messages in progress share the resources of the cluster;
// what ends lets the steps begin that waited for it.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <queue>

#include "reshard/simulate/message_pairs.h"
#include "reshard/simulate/outcome.h"

namespace reshard {
namespace {

using simulate::ClusterLinks;
using simulate::FairShare;
using simulate::MessagePair;
using simulate::UseList;
using StepKind = ProgramStep::Kind;

constexpr double kNever = std::numeric_limits<double>::infinity();

/// One rank's program while it runs. Steps by their index.
struct RankRun {
  const Program* program = nullptr;
  std::vector<std::uint32_t> waits;             ///< per step: how many others it still waits for.
  std::vector<std::uint32_t> open;              ///< per step: its messages that are not complete.
  std::vector<std::uint32_t> first_next, next;  ///< step s lets next[first_next[s]...] go on.
  std::vector<std::uint32_t> exchanges, barriers;
  std::size_t begun = 0, reached = 0, done = 0;                   ///< exchanges; barriers; steps.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> messages;  ///< (step, message), sorted.
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> tiles;  ///< ready.
  std::vector<std::uint32_t> idle;  ///< threads without a tile.
  RankSeconds seconds;
};

/// An event at a known time.
struct TimedEvent {
  double at = 0;
  bool is_barrier = false;
  std::uint32_t which = 0;  ///< a barrier; or a message whose first byte arrives.
  bool operator>(const TimedEvent& other) const {
    return std::tie(at, is_barrier, which) > std::tie(other.at, other.is_barrier, other.which);
  }
};

Index bytes_of(const ProgramMatrix& m) {
  return (m.end - m.begin) * m.cols * bits(m.values_dtype) / 8;
}

/// The copies of one tile, added up.
struct TileWork {
  double bytes = 0, runs = 0;
  std::map<Rank, double> read;  ///< bytes from the memory of other ranks.

  void add(const Program& p, const ProgramOp& op) {
    for (std::uint32_t i = op.first; i < op.end; ++i) switch (op.kind) {
        case ProgramOp::Kind::copy:
        case ProgramOp::Kind::get: {
          const ProgramPiece& piece = p.pieces[i];
          const ProgramBuffer& src = p.buffers[piece.src.index()];
          const auto n = static_cast<double>(piece.copy.bytes());
          bytes += n;
          runs += static_cast<double>(piece.copy.runs());
          if (src.kind == ProgramBuffer::Kind::source && src.rank != p.rank) read[src.rank] += n;
          break;
        }
        case ProgramOp::Kind::clear: bytes += static_cast<double>(p.ranges[i].bytes); break;
        case ProgramOp::Kind::max: bytes += static_cast<double>(p.maxima[i].count * 4); break;
        default: bytes += static_cast<double>(bytes_of(p.matrices[i]));
      }
  }
};

class ProgramsRun {
 public:
  /// @pre there is a program for each of `ranks` ranks, or one of rank -1 and `ranks` is 1
  ProgramsRun(const ClusterSpec& cluster, std::span<const Program> programs, Index ranks)
      : cluster_(cluster), links_(cluster, ranks), load_(links_.rates().size()) {
    for (const Program& p : programs) add(p);
  }

  Result<Simulation> run(std::vector<MessagePair> messages);

 private:
  struct Thread {
    std::uint32_t rank = 0, step = 0;
    UseList uses;  ///< of its tile, whose id is that of the thread.
  };
  struct MessageRun {
    MessagePair pair;
    int sides = 0;  ///< that have begun.
    UseList uses;
  };

  void add(const Program& p);
  void add_messages(std::vector<MessagePair> messages);
  std::uint32_t message_id(std::uint32_t message) const {
    return static_cast<std::uint32_t>(threads_.size()) + message;
  }
  void begin_exchanges(std::uint32_t rank);
  void begin_tiles(std::uint32_t rank);
  void reach_barrier(std::uint32_t rank);
  void begin_side(std::uint32_t message);
  void begin_message(std::uint32_t message);
  void bytes_moved(RankSeconds& rank) const;
  void step_done(std::uint32_t rank, std::uint32_t step);
  void tile_done(std::uint32_t thread);
  void message_done(std::uint32_t message);
  void settle();
  bool advance();
  Result<> check_done() const;

  const ClusterSpec& cluster_;
  ClusterLinks links_;
  simulate::Load load_;
  std::vector<RankRun> ranks_;
  std::vector<Thread> threads_;
  std::vector<MessageRun> messages_;
  std::vector<std::size_t> arrived_;  ///< per barrier: ranks that have reached it.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ready_;  ///< (rank, step)
  std::priority_queue<TimedEvent, std::vector<TimedEvent>, std::greater<>> timed_;
  std::optional<FairShare> share_;
  double now_ = 0;
};

void ProgramsRun::add(const Program& p) {
  const auto rank = static_cast<std::uint32_t>(ranks_.size());
  const std::size_t steps = p.steps.size();
  RankRun& run = ranks_.emplace_back();
  run.program = &p;
  run.seconds.rank = p.rank;
  run.open.assign(steps, 0);
  run.first_next.assign(steps + 1, 0);
  for (const StepId s : p.waits) ++run.first_next[s.index() + 1];
  for (std::size_t s = 0; s < steps; ++s) run.first_next[s + 1] += run.first_next[s];
  run.next.resize(p.waits.size());
  std::vector<std::uint32_t> at(run.first_next.begin(), run.first_next.end() - 1);
  for (std::uint32_t s = 0; s < steps; ++s) {
    const auto waits = p.waits_of(StepId(s));
    run.waits.push_back(static_cast<std::uint32_t>(waits.size()));
    for (const StepId w : waits) run.next[at[w.index()]++] = s;
    if (waits.empty()) ready_.emplace_back(rank, s);
    if (p.steps[s].kind == StepKind::exchange) run.exchanges.push_back(s);
    if (p.steps[s].kind == StepKind::barrier) run.barriers.push_back(s);
  }
  arrived_.resize(std::max(arrived_.size(), run.barriers.size()), 0);
  for (Index t = 0; t < (p.rank.value() < 0 ? cluster_.copies.cores : cluster_.cores_of_rank());
       ++t) {
    run.idle.push_back(static_cast<std::uint32_t>(threads_.size()));
    threads_.push_back({rank, 0, {}});
  }
}

void ProgramsRun::add_messages(std::vector<MessagePair> messages) {
  for (std::uint32_t i = 0; i < messages.size(); ++i) {
    for (const auto& side : {messages[i].sender, messages[i].receiver}) {
      ranks_[side.program].messages.emplace_back(side.step, i);
      ++ranks_[side.program].open[side.step];
    }
    messages_.push_back({messages[i], 0, {}});
  }
  for (RankRun& run : ranks_) std::ranges::sort(run.messages);
}

/// Begins the exchanges that are ready, up to the first that is not.
void ProgramsRun::begin_exchanges(std::uint32_t rank) {
  RankRun& run = ranks_[rank];
  while (run.begun < run.exchanges.size()) {
    const std::uint32_t step = run.exchanges[run.begun];
    if (run.waits[step] > 0) return;
    ++run.begun;
    if (run.open[step] == 0) step_done(rank, step);
    for (auto it = std::ranges::lower_bound(run.messages, std::pair(step, 0U));
         it != run.messages.end() && it->first == step; ++it)
      begin_side(it->second);
  }
}

void ProgramsRun::begin_tiles(std::uint32_t rank) {
  RankRun& run = ranks_[rank];
  while (!run.tiles.empty() && !run.idle.empty()) {
    const std::uint32_t step = run.tiles.top(), thread = run.idle.back();
    run.tiles.pop();
    run.idle.pop_back();
    TileWork work;
    for (const ProgramOp& op : run.program->ops_of(run.program->steps[step]))
      work.add(*run.program, op);
    Thread& on = threads_[thread];
    on.step = step;
    on.uses.clear();
    const Rank r = run.program->rank;
    const double units = std::max(work.bytes, 1.0);
    links_.copy(r, work.bytes / units, work.runs / units, on.uses);
    for (const auto& [from, bytes] : work.read) links_.read(from, r, bytes / units, on.uses);
    load_.add(on.uses.uses(), units);
    if (const double core = links_.core_seconds(work.bytes, work.runs); core > 0)
      on.uses.add(static_cast<std::uint32_t>(links_.rates().size()) + thread, core / units);
    share_->begin(thread, on.uses.uses(), units);
  }
}

void ProgramsRun::reach_barrier(std::uint32_t rank) {
  const std::size_t barrier = ranks_[rank].reached++;
  if (++arrived_[barrier] == ranks_.size())
    timed_.push(
        {now_ + cluster_.messages.seconds_per_barrier, true, static_cast<std::uint32_t>(barrier)});
}

void ProgramsRun::begin_side(std::uint32_t message) {
  MessageRun& run = messages_[message];
  if (++run.sides == 2)
    timed_.push({now_ + links_.latency(run.pair.from, run.pair.to), false, message});
}

void ProgramsRun::begin_message(std::uint32_t message) {
  MessageRun& run = messages_[message];
  const auto units = static_cast<double>(std::max<Index>(run.pair.bytes, 1));
  links_.message(run.pair.from, run.pair.to, 1, 1 / units, run.uses);
  load_.add(run.uses.uses(), units);
  share_->begin(message_id(message), run.uses.uses(), units);
}

void ProgramsRun::bytes_moved(RankSeconds& rank) const {
  if (rank.moved == 0) rank.first = now_;
  rank.moved = now_;
}

void ProgramsRun::step_done(std::uint32_t rank, std::uint32_t step) {
  RankRun& run = ranks_[rank];
  ++run.done;
  for (std::uint32_t n = run.first_next[step]; n < run.first_next[step + 1]; ++n)
    if (--run.waits[run.next[n]] == 0) ready_.emplace_back(rank, run.next[n]);
}

void ProgramsRun::tile_done(std::uint32_t thread) {
  const Thread& on = threads_[thread];
  RankRun& run = ranks_[on.rank];
  run.idle.push_back(thread);
  const ProgramStep& tile = run.program->steps[on.step];
  if (tile.first != tile.end) bytes_moved(run.seconds);
  step_done(on.rank, on.step);
  begin_tiles(on.rank);
}

void ProgramsRun::message_done(std::uint32_t message) {
  MessageRun& run = messages_[message];
  for (const auto& side : {run.pair.sender, run.pair.receiver}) {
    RankRun& rank = ranks_[side.program];
    bytes_moved(rank.seconds);
    if (--rank.open[side.step] == 0) step_done(side.program, side.step);
  }
}

/// Begins all that can begin now.
void ProgramsRun::settle() {
  while (!ready_.empty()) {
    const auto now_ready = std::exchange(ready_, {});
    for (const auto& [rank, step] : now_ready) {
      switch (ranks_[rank].program->steps[step].kind) {
        case StepKind::tile:
          ranks_[rank].tiles.push(step);
          begin_tiles(rank);
          break;
        case StepKind::exchange: begin_exchanges(rank); break;
        case StepKind::barrier: reach_barrier(rank);
      }
    }
  }
}

/// Goes on to the next event; false if there is none.
bool ProgramsRun::advance() {
  const double moved = share_->idle() ? kNever : share_->next();
  const double timed = timed_.empty() ? kNever : std::max(0.0, timed_.top().at - now_);
  const double step = std::min(moved, timed);
  if (step == kNever) return false;
  now_ += step;
  if (!share_->idle())
    for (const auto& done : share_->advance(step))
      done.id < threads_.size()
          ? tile_done(done.id)
          : message_done(done.id - static_cast<std::uint32_t>(threads_.size()));
  while (!timed_.empty() && timed_.top().at <= now_) {
    const TimedEvent event = timed_.top();
    timed_.pop();
    if (!event.is_barrier) {
      begin_message(event.which);
      continue;
    }
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) step_done(r, ranks_[r].barriers[event.which]);
  }
  return true;
}

Result<> ProgramsRun::check_done() const {
  for (const RankRun& run : ranks_)
    if (run.done != run.program->steps.size())
      return fail(
          Code::invalid_argument,
          fmt::format("the programs cannot end: rank {} ran {} of {} steps, and nothing that "
                      "the others wait for is in progress",
                      run.program->rank.value(), run.done, run.program->steps.size()));
  return {};
}

Result<Simulation> ProgramsRun::run(std::vector<MessagePair> messages) {
  add_messages(std::move(messages));
  std::vector<double> rates = links_.rates();
  rates.insert(rates.end(), threads_.size(), 1.0);
  share_.emplace(std::move(rates));
  settle();
  while (advance()) settle();
  RESHARD_TRY(check_done());
  Simulation out;
  out.predicted_seconds = now_;
  for (const RankRun& run : ranks_) out.ranks.push_back(run.seconds);
  load_.judge(links_, out);
  return out;
}

/// The ranks of the programs. Errors: ranks that are missing or twice.
Result<Index> check_ranks(std::span<const Program> programs) {
  if (programs.size() == 1 && programs[0].rank.value() < 0) return 1;
  for (std::size_t i = 0; i < programs.size(); ++i)
    if (programs[i].rank != Rank(static_cast<Rank::rep>(i)))
      return fail(Code::invalid_argument,
                  fmt::format("program {} must be that of rank {}, is that of rank {}", i, i,
                              programs[i].rank.value()));
  return static_cast<Index>(programs.size());
}

}  // namespace

Result<Simulation> simulate_programs(const ClusterSpec& cluster,
                                     std::span<const Program> programs) {
  RESHARD_TRY(check_cluster(cluster));
  const Index ranks = RESHARD_TRY(check_ranks(programs));
  RESHARD_TRY(check_places(cluster, ranks));
  auto messages = RESHARD_TRY(simulate::pair_messages(programs));
  return ProgramsRun(cluster, programs, ranks).run(std::move(messages));
}

}  // namespace reshard
