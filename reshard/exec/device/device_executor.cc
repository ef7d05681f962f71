// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/device/device_executor.h"

#include <fmt/format.h>

#include <thread>

#include "reshard/exec/host/program_executor.h"

namespace reshard::device {
namespace {

/// Tiles that the stream has at a time, beside the residents.
constexpr std::size_t kMaxFlying = 64;

}  // namespace

Result<std::unique_ptr<DeviceExecutor>> DeviceExecutor::make(std::shared_ptr<const Program> program,
                                                             const DeviceEnvironment& environment,
                                                             const AddressOf& address) {
  std::unique_ptr<DeviceExecutor> out(new DeviceExecutor(std::move(program), environment));
  RESHARD_TRY(out->prepare(address));
  return out;
}

Result<> DeviceExecutor::prepare(const AddressOf& address) {
  for (std::size_t s = 1; s + 1 < program_->steps.size(); ++s)
    if (is_barrier(s))
      return fail(Code::unsupported, fmt::format("step {}: a barrier between other steps", s));
  const auto place = [&](const ProgramBuffer& buffer) -> Result<std::byte*> {
    if (buffer.kind == ProgramBuffer::Kind::staging) return environment_.staging.data();
    return address(buffer);
  };
  addresses_ = RESHARD_TRY(addresses_of(*program_, place));
  launches_ = RESHARD_TRY(ProgramLaunches::make(*program_, addresses_, environment_.device,
                                                {environment_.most_blocks, nullptr}));
  order_ = StepOrder(*program_, launches_);
  for (const ProgramMessage& m : program_->messages)
    in_place_ |= program_->buffers[m.at.buffer.index()].kind != ProgramBuffer::Kind::staging;
  if (in_place_ && !environment_.transport->capabilities().gpu_messages)
    return fail(Code::unsupported, "a message from or to the memory of a GPU");
  exchanges_ = ExchangeQueue(*program_, environment_.transport,
                             [&](BufferId buffer) { return addresses_[buffer.index()]; });
  return make_streams();
}

Result<> DeviceExecutor::make_streams() {
  const auto& device = environment_.device;
  for (int i = 0; i < 2; ++i) streams_.push_back(RESHARD_TRY(cuda::Stream::make(device)));
  residents_done_.push_back(RESHARD_TRY(cuda::Event::make(device)));
  const auto tiles =
      static_cast<std::size_t>(std::ranges::count(program_->steps, Kind::tile, &ProgramStep::kind));
  for (std::size_t i = 0; i < std::min(kMaxFlying, tiles); ++i)
    events_.push_back(RESHARD_TRY(cuda::Event::make(device)));
  flying_.resize(events_.size());
  for (const RankBuffers* side : {environment_.source, environment_.target})
    if (side != nullptr && side->device() != nullptr)
      given_.push_back(RESHARD_TRY(cuda::Event::make(device)));
  return {};
}

void DeviceExecutor::record(TraceRecorder& recorder, const trace::ProgramTimes::Names& names) {
  times_ = std::make_unique<trace::ProgramTimes>(*program_, 1, recorder, names);
}

Result<> DeviceExecutor::run(Deadline deadline, ProgressMeter& meter,
                             ConversionVerifier* observer) {
  clock_ = Stopwatch();
  deadline_ = deadline;
  meter_ = &meter;
  first_seconds_ = 0;
  launched_ = ended_ = 0;
  residents_run_ = false;
  order_.restart();
  exchanges_.restart();
  if (observer != nullptr) return run_observed(*observer);
  const trace::RunScope timed(times_.get(), false);
  if (auto done = run_steps(); !done) {
    give_up(done.error());
    return done;
  }
  last_seconds_ = clock_.seconds();
  const std::size_t n = program_->steps.size();
  if (n > 1 && is_barrier(n - 1)) return barrier(StepId(static_cast<StepId::rep>(n - 1)));
  return {};
}

/// Passes the first barrier.
Result<> DeviceExecutor::start() {
  RESHARD_TRY(follow_callers());
  const bool has_barrier = !program_->steps.empty() && is_barrier(0);
  // Peers and the transport use this rank's tensors, and know nothing of the callers' streams.
  if (has_barrier || in_place_)
    for (const cuda::Event& event : given_) RESHARD_TRY(wait_for(event));
  if (!has_barrier) return {};
  RESHARD_TRY(barrier(StepId(0)));
  first_seconds_ = clock_.seconds();
  return {};
}

/// Tensors of peers are copied after the first barrier, before which they may change.
Result<> DeviceExecutor::run_observed(ConversionVerifier& observer) {
  RESHARD_TRY(start());
  std::vector<HostBuffer> copies;
  std::vector<std::byte*> places = addresses_;
  for (std::byte*& at : places) {
    if (at == nullptr) continue;
    if (!RESHARD_TRY(cuda::memory_kind(*environment_.device, at)).on_device) continue;
    const Index bytes = program_->buffers[static_cast<std::size_t>(&at - places.data())].bytes;
    copies.push_back(RESHARD_TRY(streams_[0].read(at, bytes)));
    at = copies.back().data();
  }
  std::span<std::byte> staging = environment_.staging;
  if (!staging.empty() &&
      RESHARD_TRY(cuda::memory_kind(*environment_.device, staging.data())).on_device) {
    copies.push_back(RESHARD_TRY(HostBuffer::allocate(program_->staging_bytes)));
    staging = copies.back().bytes();
  }
  auto rest = std::make_shared<Program>(*program_);
  if (!rest->steps.empty() && is_barrier(0)) rest->steps[0] = {};  // An empty tile.
  const auto place = [&](const ProgramBuffer& buffer) -> Result<host::BufferPlace> {
    const auto i = static_cast<std::size_t>(&buffer - rest->buffers.data());
    return host::BufferPlace{places[i], nullptr, 0};
  };
  const auto executor = RESHARD_TRY(host::ProgramExecutor::make(
      rest, {environment_.transport, environment_.control, environment_.pool, staging, nullptr},
      place));
  return executor->run(deadline_, *meter_, &observer);
}

Result<> DeviceExecutor::run_steps() {
  RESHARD_TRY(start());
  RESHARD_TRY(launch_residents());
  RESHARD_TRY(serve());
  return meter_->finish();
}

/// No stream of this object runs ahead of what the callers' streams have now.
Result<> DeviceExecutor::follow_callers() {
  std::size_t next = 0;
  for (const RankBuffers* side : {environment_.source, environment_.target}) {
    if (side == nullptr || side->device() == nullptr) continue;
    const cuda::Event& event = given_[next++];
    RESHARD_TRY(event.record(cuda::Stream::borrow(environment_.device, side->stream())));
    for (const cuda::Stream& stream : streams_) RESHARD_TRY(event.hold(stream));
  }
  return {};
}

Result<> DeviceExecutor::barrier(StepId s) {
  begin(s);
  RESHARD_TRY(environment_.control->barrier(deadline_));
  if (times_) times_->end(s);
  if (s == StepId(0)) order_.end(s);
  return {};
}

Result<> DeviceExecutor::launch_residents() {
  for (std::size_t s = 0; s < program_->steps.size(); ++s)
    if (launches_.is_resident(StepId(static_cast<StepId::rep>(s)))) {
      residents_run_ = true;
      begin(StepId(static_cast<StepId::rep>(s)));
    }
  if (!residents_run_) return {};
  RESHARD_TRY(launches_.launch_residents(streams_[0]));
  return residents_done_[0].record(streams_[0]);
}

Result<> DeviceExecutor::serve() {
  while (!order_.all_ended()) {
    bool moved = RESHARD_TRY(launch_ready());
    moved |= RESHARD_TRY(end_tiles());
    moved |= RESHARD_TRY(move_messages());
    if (moved) continue;
    if (residents_run_ || ended_ < launched_) {
      RESHARD_TRY(keep_going());
      std::this_thread::yield();
    } else if (exchanges_.is_flying()) {
      const trace::WaitScope waits(times_.get(), 0, trace::Awaited::messages, exchanges_.oldest());
      RESHARD_TRY(exchanges_.wait(deadline_));
    } else {
      return fail(Code::corrupt, "a step of the program waits for what never happens");
    }
  }
  return {};
}

Result<bool> DeviceExecutor::launch_ready() {
  bool moved = false;
  while (const auto tile = order_.next_tile()) {
    if (launched_ - ended_ == events_.size()) break;
    begin(*tile);
    RESHARD_TRY(launches_.launch(streams_[1], *tile));
    RESHARD_TRY(events_[launched_ % events_.size()].record(streams_[1]));
    flying_[launched_++ % events_.size()] = *tile;
    order_.launch();
    moved = true;
  }
  return moved;
}

/// Ends the tiles that the GPU has run.
Result<bool> DeviceExecutor::end_tiles() {
  bool moved = false;
  while (ended_ < launched_) {
    if (!RESHARD_TRY(events_[ended_ % events_.size()].is_done())) break;
    RESHARD_TRY(end(flying_[ended_++ % events_.size()]));
    moved = true;
  }
  if (!residents_run_ || !RESHARD_TRY(residents_done_[0].is_done())) return moved;
  residents_run_ = false;
  for (std::size_t s = 0; s < program_->steps.size(); ++s)
    if (launches_.is_resident(StepId(static_cast<StepId::rep>(s))))
      RESHARD_TRY(end(StepId(static_cast<StepId::rep>(s))));
  return true;
}

Result<bool> DeviceExecutor::move_messages() {
  bool moved = false;
  while (exchanges_.is_flying() && RESHARD_TRY(exchanges_.test())) {
    RESHARD_TRY(end(exchanges_.end()));
    if (first_seconds_ == 0) first_seconds_ = clock_.seconds();
    moved = true;
  }
  for (auto next = exchanges_.next(); next && order_.is_free(*next); next = exchanges_.next()) {
    begin(*next);
    RESHARD_TRY(exchanges_.begin());
    moved = true;
  }
  return moved;
}

Result<> DeviceExecutor::wait_for(const cuda::Event& event) {
  while (!RESHARD_TRY(event.is_done())) {
    RESHARD_TRY(keep_going());
    std::this_thread::yield();
  }
  return {};
}

/// Errors: why the run must stop.
Result<> DeviceExecutor::keep_going() {
  if (meter_->add(0, 0, 0)) return {};
  return meter_->finish();
}

Result<> DeviceExecutor::end(StepId s) {
  if (times_) times_->end(s);
  order_.end(s);
  if (meter_->add(0, step(s).bytes, step(s).delivered)) return {};
  return meter_->finish();
}

/// Ends a run that failed: nobody uses the memory any more when this returns.
void DeviceExecutor::give_up(const Error& error) {
  // Abort before dropping the pending messages: peers then see the cause, not its consequence.
  if (environment_.control != nullptr && exchanges_.is_flying())
    environment_.control->abort(error.message);
  exchanges_.withdraw();
  for (const cuda::Stream& stream : streams_) (void)stream.synchronize();
}

}  // namespace reshard::device
