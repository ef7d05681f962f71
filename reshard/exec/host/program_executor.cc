// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/host/program_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "reshard/exec/host/bound_program.h"
#include "reshard/exec/host/ready_tiles.h"

namespace reshard::host {

class ProgramExecutor::State {
 public:
  State(std::shared_ptr<const Program> program, const Environment& environment)
      : program_(std::move(program)), environment_(environment), ready_(*program_) {}

  Result<> bind(const std::function<Result<BufferPlace>(const ProgramBuffer&)>& place);
  Result<> run(Deadline deadline, ProgressMeter& meter, ConversionObserver* observer);

  double first_seconds = 0, last_seconds = 0;
  std::vector<StepTime> times;
  const Program& program() const { return *program_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Kind = ProgramStep::Kind;

  bool is_flying() const { return over_ < begun_; }
  bool can_begin() const {
    return begun_ < exchanges_.size() && ready_.is_free(exchanges_[begun_]);
  }
  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  const ProgramStep& step(StepId s) const { return program_->steps[s.index()]; }
  bool begins_with_barrier() const {
    return !program_->steps.empty() && program_->steps.front().kind == Kind::barrier;
  }
  bool ends_with_barrier() const {
    return program_->steps.size() > 1 && program_->steps.back().kind == Kind::barrier;
  }
  void begin_step(StepId s, int worker) {
    if (!times.empty()) times[s.index()] = {worker, now(), 0};
  }
  void end_step(StepId s) {
    if (!times.empty()) times[s.index()].end = now();
    ready_.complete(s);
  }

  Result<> barrier(StepId s);
  Result<> move();
  Result<> serve();
  Result<> progress();
  Result<bool> is_over();
  Result<> await();
  void end_exchange();
  void work(int worker);
  Result<> run_tile(StepId s, int worker);
  Result<> run_get(const ProgramOp& op);
  Result<bool> flush(const RemoteMemory& from);
  bool count(StepId s, int worker) { return meter_->add(worker, step(s).bytes, step(s).delivered); }

  std::shared_ptr<const Program> program_;
  Environment environment_;
  BoundProgram bound_;
  ReadyTiles ready_;
  std::vector<StepId> exchanges_;

  // Of one run.
  Clock::time_point start_;
  Deadline deadline_ = Deadline::never();
  ProgressMeter* meter_ = nullptr;
  std::vector<std::unique_ptr<Event>> events_;  ///< by exchange.
  std::size_t over_ = 0, begun_ = 0;            ///< exchanges that are complete; that began.
  std::vector<Get> batch_;
};

namespace {

constexpr std::size_t kMostGets = 4096;

}  // namespace

Result<> ProgramExecutor::State::bind(
    const std::function<Result<BufferPlace>(const ProgramBuffer&)>& place) {
  for (std::size_t s = 0; s < program_->steps.size(); ++s) {
    const StepId id(static_cast<std::uint32_t>(s));
    if (step(id).kind == Kind::exchange) exchanges_.push_back(id);
    const bool at_end = s == 0 || s + 1 == program_->steps.size();
    if (step(id).kind == Kind::barrier && !at_end)
      return fail(Code::unsupported, fmt::format("step {}: a barrier between other steps", s));
  }
  bound_ = RESHARD_TRY(
      BoundProgram::make(*program_, environment_.staging, environment_.pool->size(), place));
  events_.resize(exchanges_.size());
  if (bound_.has_gets()) batch_.reserve(kMostGets);
  return {};
}

Result<> ProgramExecutor::State::barrier(StepId s) {
  begin_step(s, 0);
  RESHARD_TRY(environment_.control->barrier(deadline_));
  end_step(s);
  return {};
}

Result<> ProgramExecutor::State::run(Deadline deadline, ProgressMeter& meter,
                                     ConversionObserver* observer) {
  bound_.observe(observer);
  start_ = Clock::now();
  deadline_ = deadline;
  meter_ = &meter;
  over_ = begun_ = 0;
  first_seconds = 0;
  ready_.restart();
  if (begins_with_barrier()) {
    RESHARD_TRY(barrier(StepId(0)));
    first_seconds = now();
  }
  if (auto moved = move(); !moved) {
    // Abort before dropping the pending messages: peers then see the cause, not its consequence.
    if (environment_.control != nullptr && is_flying())
      environment_.control->abort(moved.error().message);
    for (std::size_t i = over_; i < begun_; ++i) events_[i].reset();
    return moved;
  }
  last_seconds = now();
  // Sources may be written again once no rank reads them, and no rank reports success before all
  // have their bytes.
  if (ends_with_barrier())
    return barrier(StepId(static_cast<std::uint32_t>(program_->steps.size() - 1)));
  return {};
}

Result<> ProgramExecutor::State::move() {
  Result<> served;
  auto body = [&](int worker) {
    if (worker == 0) {
      served = serve();
      ready_.stop();
    } else {
      work(worker);
    }
  };
  environment_.pool->run(body);
  RESHARD_TRY(std::move(served));
  if (auto done = meter_->finish(); !done) return done;
  return {};
}

/// What worker 0 does.
Result<> ProgramExecutor::State::serve() {
  while (!ready_.stopped()) {
    RESHARD_TRY(progress());
    if (ready_.stopped()) break;
    if (const auto tile = ready_.take(0)) {
      RESHARD_TRY(run_tile(*tile, 0));
    } else if (!ready_.is_idle()) {
      ready_.pause(!is_flying());
    } else if (can_begin()) {
      continue;  // It became free since progress(); a peer may wait for it.
    } else if (is_flying()) {
      RESHARD_TRY(await());
    } else {
      if (ready_.all_done() && over_ == exchanges_.size()) break;
      return fail(Code::corrupt, "a step of the program waits for what never happens");
    }
  }
  return {};
}

/// Begins the exchanges that wait for nothing any more, and ends those that are complete.
Result<> ProgramExecutor::State::progress() {
  while (is_flying() && !ready_.stopped())
    if (!RESHARD_TRY(is_over())) break;
  while (can_begin() && !ready_.stopped()) {
    const StepId s = exchanges_[begun_];
    begin_step(s, 0);
    const BoundProgram::Messages messages = bound_.messages(begun_);
    events_[begun_] = RESHARD_TRY(environment_.transport->exchange(messages.sends, messages.recvs));
    ++begun_;
    RESHARD_TRY(is_over());
  }
  return {};
}

/// Polls the oldest exchange in progress, and ends it if it is complete.
Result<bool> ProgramExecutor::State::is_over() {
  if (!RESHARD_TRY(events_[over_]->test())) return false;
  end_exchange();
  return true;
}

Result<> ProgramExecutor::State::await() {
  RESHARD_TRY(events_[over_]->wait(deadline_));
  end_exchange();
  return {};
}

void ProgramExecutor::State::end_exchange() {
  const StepId s = exchanges_[over_];
  events_[over_++].reset();
  if (first_seconds == 0) first_seconds = now();
  end_step(s);
  if (!count(s, 0)) ready_.stop();
}

/// What the other workers do.
void ProgramExecutor::State::work(int worker) {
  while (const auto tile = ready_.wait_and_take(worker)) {
    if (auto done = run_tile(*tile, worker); !done) {
      meter_->fail_with(std::move(done).error());
      ready_.stop();
    }
    ready_.rest();
  }
}

Result<> ProgramExecutor::State::run_tile(StepId s, int worker) {
  begin_step(s, worker);
  bool streams = false;
  for (const ProgramOp& op : program_->ops_of(step(s))) {
    if (op.kind == ProgramOp::Kind::get) {
      RESHARD_TRY(run_get(op));
    } else {
      RESHARD_TRY(bound_.run(op, worker));
    }
    streams |= op.streams;
  }
  if (streams) copy_fence();
  end_step(s);
  if (!count(s, worker)) ready_.stop();
  return {};
}

Result<bool> ProgramExecutor::State::flush(const RemoteMemory& from) {
  if (!batch_.empty()) RESHARD_TRY(environment_.transport->get(from, batch_));
  batch_.clear();
  return true;
}

Result<> ProgramExecutor::State::run_get(const ProgramOp& op) {
  const RemoteMemory* from = nullptr;
  Result<bool> go = true;
  for (std::uint32_t i = op.first; i < op.end && go; ++i) {
    const BoundProgram::Read read = bound_.read(i);
    if (from != nullptr && from != read.from) go = flush(*from);
    from = read.from;
    for_each_run(*read.copy, [&](Index src, Index dst, Index bytes) {
      if (!go) return;
      batch_.push_back({static_cast<std::size_t>(read.offset + src),
                        {read.into + dst, static_cast<std::size_t>(bytes)}});
      if (batch_.size() == kMostGets) go = flush(*from);
    });
  }
  if (go && from != nullptr) go = flush(*from);
  batch_.clear();
  if (!go) return tl::unexpected(std::move(go).error());
  return {};
}

ProgramExecutor::ProgramExecutor(std::unique_ptr<State> state) : state_(std::move(state)) {}
ProgramExecutor::~ProgramExecutor() = default;

Result<std::unique_ptr<ProgramExecutor>> ProgramExecutor::make(
    std::shared_ptr<const Program> program, const Environment& environment,
    const std::function<Result<BufferPlace>(const ProgramBuffer&)>& place) {
  auto state = std::make_unique<State>(std::move(program), environment);
  RESHARD_TRY(state->bind(place));
  return std::unique_ptr<ProgramExecutor>(new ProgramExecutor(std::move(state)));
}

Result<> ProgramExecutor::run(Deadline deadline, ProgressMeter& meter,
                              ConversionObserver* observer) {
  return state_->run(deadline, meter, observer);
}

double ProgramExecutor::first_seconds() const { return state_->first_seconds; }
double ProgramExecutor::last_seconds() const { return state_->last_seconds; }
void ProgramExecutor::record_times() { state_->times.resize(state_->program().steps.size()); }
std::span<const StepTime> ProgramExecutor::times() const { return state_->times; }
const Program& ProgramExecutor::program() const { return state_->program(); }

}  // namespace reshard::host
