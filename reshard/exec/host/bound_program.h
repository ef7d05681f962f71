// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "reshard/exec/host/program_executor.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/transform/copy.h"

namespace reshard::host {

/// A program's buffers resolved to addresses.
class BoundProgram {
 public:
  using Resolve = std::function<Result<BufferPlace>(const ProgramBuffer&)>;

  BoundProgram() = default;
  /// Borrows the program and the staging. Errors: those of `place`; out of memory.
  static Result<BoundProgram> make(const Program& program, std::span<std::byte> staging,
                                   int workers, const Resolve& place);

  /// The messages of an exchange, counted in the order of steps.
  struct Messages {
    std::span<const Send> sends;
    std::span<const Recv> recvs;
  };
  Messages messages(std::size_t exchange) const;

  /// Later conversions into a target show their rows to the observer instead; null: none.
  void observe(ConversionObserver* observer) { observer_ = observer; }
  /// Runs an op that is not a get. Workers may run different ops at once.
  Result<> run(const ProgramOp& op, int worker);

  /// A piece of a get.
  struct Read {
    const RemoteMemory* from = nullptr;
    Index offset = 0;  ///< of the source buffer in `from`.
    const StridedCopy* copy = nullptr;
    std::byte* into = nullptr;
  };
  Read read(std::size_t piece) const;
  bool has_gets() const { return has_gets_; }

 private:
  Result<> resolve(std::span<std::byte> staging, const Resolve& place);
  void bind_pieces();
  void bind_messages();
  std::byte* at(Place place, int worker) const;
  bool is_scratch(BufferId id) const {
    return program_->buffers[id.index()].kind == ProgramBuffer::Kind::scratch;
  }
  void run_copies_of(const ProgramOp& op, int worker);
  void run_matrix(ProgramOp::Kind kind, const ProgramMatrix& m, int worker);

  const Program* program_ = nullptr;
  std::vector<BufferPlace> places_;            ///< by buffer.
  std::vector<CopyTask> tasks_;                ///< by piece; scratch addresses are null.
  std::vector<std::vector<CopyTask>> placed_;  ///< by worker: an op's tasks with its scratch.
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
  std::vector<std::size_t> first_send_, first_recv_;  ///< by exchange.
  std::vector<bool> uses_scratch_;                    ///< by piece.
  ConversionObserver* observer_ = nullptr;
  HostBuffer scratch_;
  Index scratch_stride_ = 0;
  bool has_gets_ = false;
};

}  // namespace reshard::host
