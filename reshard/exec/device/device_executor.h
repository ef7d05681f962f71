// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "reshard/base/stopwatch.h"
#include "reshard/exec/device/program_launches.h"
#include "reshard/exec/device/step_order.h"
#include "reshard/exec/exchange_queue.h"
#include "reshard/exec/executor.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/memory/worker_pool.h"

namespace reshard::device {

/// The resources of a program on a GPU. Everything is borrowed, and must outlive what runs it.
struct DeviceEnvironment {
  Transport* transport = nullptr;
  ControlPlane* control = nullptr;
  WorkerPool* pool = nullptr;  ///< runs what an observer sees.
  std::shared_ptr<const cuda::Device> device;
  /// The buffers of this rank; null if it holds nothing of a side. Memory of the host is pinned.
  const RankBuffers *source = nullptr, *target = nullptr;
  /// At least Program::staging_bytes: of pinned host memory, or of this GPU if the transport takes
  /// messages there.
  std::span<std::byte> staging;
  int most_blocks = 0;  ///< as TileRunner::make().
};

/// Runs the program of a rank whose source or target is in a GPU's memory. The GPU runs the tiles,
/// on streams of its own: those that no message leads to on one, packing and unpacking on another.
/// The calling thread launches them and moves messages: from and to the memory of the GPU if the
/// transport takes them there, or else pinned host memory, so that every transport serves GPUs. A
/// run allocates nothing and waits for events only.
class DeviceExecutor final : public Executor {
 public:
  /// `address` is that of a source or target as kernels of this GPU use it. Errors: those of
  /// ProgramLaunches::make(); `unsupported` for a barrier that is neither the first nor the last
  /// step.
  static Result<std::unique_ptr<DeviceExecutor>> make(std::shared_ptr<const Program> program,
                                                      const DeviceEnvironment& environment,
                                                      const AddressOf& address);

  /// The GPU begins after what the callers' streams have. When this returns, its work is done, also
  /// after an error. For an observer, threads of the host run the program, with copies of all its
  /// tensors in host memory.
  Result<> run(Deadline deadline, ProgressMeter& meter,
               ConversionVerifier* observer = nullptr) override;
  double first_seconds() const override { return first_seconds_; }
  double last_seconds() const override { return last_seconds_; }
  void record(TraceRecorder& recorder, const trace::ProgramTimes::Names& names) override;
  const Program& program() const override { return *program_; }
  Index scratch_bytes() const override { return launches_.scratch_bytes(); }

 private:
  using Kind = ProgramStep::Kind;

  DeviceExecutor(std::shared_ptr<const Program> program, const DeviceEnvironment& environment)
      : program_(std::move(program)), environment_(environment) {}
  Result<> prepare(const AddressOf& address);
  Result<> make_streams();
  Result<> start();
  Result<> run_observed(ConversionVerifier& observer);

  const ProgramStep& step(StepId s) const { return program_->steps[s.index()]; }
  bool is_barrier(std::size_t s) const { return program_->steps[s].kind == Kind::barrier; }
  Result<> run_steps();
  Result<> follow_callers();
  Result<> barrier(StepId s);
  Result<> launch_residents();
  Result<> serve();
  Result<bool> launch_ready();
  Result<bool> end_tiles();
  Result<bool> move_messages();
  Result<> wait_for(const cuda::Event& event);
  Result<> keep_going();
  void begin(StepId s) {
    if (times_) times_->begin(s, 0);
  }
  Result<> end(StepId s);
  void give_up(const Error& error);

  std::shared_ptr<const Program> program_;
  DeviceEnvironment environment_;
  std::vector<std::byte*> addresses_;  ///< by buffer.
  bool in_place_ = false;              ///< some messages are from or to tensors.
  ProgramLaunches launches_;
  StepOrder order_;
  ExchangeQueue exchanges_;
  std::unique_ptr<trace::ProgramTimes> times_;  ///< null: nothing is timed.
  std::vector<cuda::Stream> streams_;           ///< of residents; of the other tiles.
  std::vector<cuda::Event> events_;             ///< of tiles in progress, a ring.
  std::vector<cuda::Event> given_;  ///< work of callers' streams: of the source, of the target.
  std::vector<cuda::Event> residents_done_;  ///< one.
  double first_seconds_ = 0, last_seconds_ = 0;

  // Of one run.
  Stopwatch clock_;
  Deadline deadline_ = Deadline::never();
  ProgressMeter* meter_ = nullptr;
  bool residents_run_ = false;
  std::vector<StepId> flying_;            ///< by event: the tile that it ends.
  std::size_t launched_ = 0, ended_ = 0;  ///< tiles, without residents.
};

}  // namespace reshard::device
