// SPDX-License-Identifier: Apache-2.0
// A plan is compiled, per rank, into a program: tiles and messages, and the steps that each waits
// for. Programs are data. An executor runs a program and knows no layout: it resolves buffers to
// addresses, runs each step once all steps that it waits for are done, and does nothing else.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/base/quant_format.h"
#include "reshard/base/value_map.h"
#include "reshard/layout/strided.h"
#include "reshard/model/model_layout.h"

namespace reshard {

/// The index of a buffer in Program::buffers.
using BufferId = StrongInt<struct BufferIdTag, std::uint32_t>;
/// The index of a step in Program::steps.
using StepId = StrongInt<struct StepIdTag, std::uint32_t>;

/// A range of memory that a program reads or writes; an executor knows its address.
struct ProgramBuffer {
  enum class Kind : std::uint8_t {
    staging,  ///< one buffer of Program::staging_bytes, shared by all steps. Messages may use it.
    scratch,  ///< Program::scratch_bytes of each worker, valid during one tile.
    source,   ///< local tensor `slot` of `rank` in the source layout; never written.
    target,   ///< local tensor `slot` of `rank` in the target layout.
  };
  Kind kind = Kind::staging;
  Rank rank;        ///< source and target: its owner; another rank's source is a peer's memory.
  SlotId slot;      ///< source and target.
  Index bytes = 0;  ///< size.
  /// False: gets read it by Transport::get() (source); puts write it, such as to a file (target).
  bool mapped = true;
  friend bool operator==(const ProgramBuffer&, const ProgramBuffer&) = default;
};

/// A byte of a buffer.
struct Place {
  BufferId buffer;
  Index offset = 0;  ///< bytes from the start of the buffer.
  friend bool operator==(const Place&, const Place&) = default;
};

/// Work that one thread does at once, for one part of the bytes, while they are in its caches: its
/// ops in order.
struct ProgramOp {
  enum class Kind : std::uint8_t {
    copy,      ///< pieces: copies, with a conversion of values if their forms differ.
    get,       ///< pieces: reads from a buffer that is not mapped. Sizes and values are unchanged.
    put,       ///< pieces: writes to a target that is not mapped. Sizes and values are unchanged.
    clear,     ///< ranges: writes zeros.
    amax,      ///< matrices: writes the largest magnitude of the rows' values.
    max,       ///< maxima: writes the largest of several such magnitudes.
    quantise,  ///< matrices: values -> data and scales.
    dequantise,  ///< matrices: data and scales -> values.
  };
  Kind kind = Kind::copy;
  bool streams = false;              ///< copy: writes past the caches (CopyHint::streaming).
  std::uint32_t first = 0, end = 0;  ///< entries of the table that `kind` names.
  friend bool operator==(const ProgramOp&, const ProgramOp&) = default;
};

/// Strided bytes of one buffer that are written to strided bytes of another. Offsets of `copy`
/// count from the start of the buffers.
struct ProgramPiece {
  StridedCopy copy;
  BufferId src, dst;
  Conversion conversion;
  friend bool operator==(const ProgramPiece&, const ProgramPiece&) = default;
};

struct ProgramRange {
  Place at;
  Index bytes = 0;
  friend bool operator==(const ProgramRange&, const ProgramRange&) = default;
};

/// Rows [begin, end) of a matrix, as values and as data with scales. All places are those of row
/// `begin` (scales: of the row of blocks, or of scale tiles, that begins there). Strides in bytes.
struct ProgramMatrix {
  QuantFormat format;
  DType values_dtype = DType::bf16;
  Index rows = 0, cols = 0, begin = 0, end = 0;  ///< of the whole matrix, in elements; the range.
  Place values, data, scales;
  Index values_row = 0, data_row = 0, scales_row = 0;
  Place factor;  ///< one f32, if the format has a tensor factor.
  Place amax;    ///< one f32: amax writes it; quantise reads it if needs_amax(format).
  /// The number of these rows among all that an observer sees: those that a target converts; or a
  /// source, in a program that has no target. Otherwise -1.
  Index unit = -1;
  friend bool operator==(const ProgramMatrix&, const ProgramMatrix&) = default;
};

/// The maximum of `count` f32 at `from`, 4 bytes apart; NaN if any is NaN.
struct ProgramMaximum {
  Place from;
  Index count = 0;
  Place to;
  friend bool operator==(const ProgramMaximum&, const ProgramMaximum&) = default;
};

/// In the ids of messages whose sender relays: it received their bytes in the same program. Ids are
/// below 2^63.
inline constexpr std::uint64_t kForwarded = std::uint64_t{1} << 62;

/// Contiguous bytes to or from a peer. Sender and receiver use the same id; a message that is sent
/// matches the one with the same (sender, receiver, id).
struct ProgramMessage {
  Rank peer;
  std::uint64_t id = 0;
  bool is_send = false;
  Place at;
  Index bytes = 0;
  friend bool operator==(const ProgramMessage&, const ProgramMessage&) = default;
};

struct ProgramStep {
  enum class Kind : std::uint8_t {
    tile,      ///< ops, run in order by one thread; none: only joins what it waits for.
    exchange,  ///< messages that begin together; done when all are complete.
    barrier,   ///< done once every rank of the group has reached its own.
  };
  Kind kind = Kind::tile;
  std::uint32_t first = 0, end = 0;  ///< ops or messages.
  Index bytes = 0;                   ///< of progress: moved by this step.
  Index delivered = 0;               ///< of those, bytes that reach the target.
  friend bool operator==(const ProgramStep&, const ProgramStep&) = default;
};

/// The steps of one rank (or of all ranks of one process) in a refit.
///
/// Laws, which check_program() and check_programs() verify (check.h):
///   1 bounds       every place is inside its buffer; only gets read sources that are not mapped,
///                  only puts write targets that are not, and nothing else; no step writes a source
///   2 order        a step waits only for earlier steps, so one thread can run the steps in order
///   3 no race      of two steps that use the same byte of staging or target, one of them to write
///                  it, the later waits for the earlier, directly or through others (an exchange
///                  begins after the exchanges before it, and so after what those wait for)
///   4 initialised  every byte of staging, scratch and target is written before it is read (so a
///                  relay forwards only what has arrived), but for gaps in staging of less than 8
///                  bytes between what a message packs
///   5 exact cover  every byte of the target that the plan delivers is written exactly once
///   6 staging      staging_bytes and all threads' scratch are at most the cap
///   7 no deadlock  each rank begins its exchanges in order; over the whole group, the steps have a
///                  topological order in which no exchange is done before both sides of each of its
///                  messages have begun
///   8 rounds       if all programs have round_bits: law 7 also where each rank moves one exchange
///   at
///                  a time, the oldest, and exchanges that messages connect, over any number of
///                  ranks, end together
struct Program {
  Rank rank;                      ///< that runs it; -1: all ranks, in one process.
  std::uint64_t plan_digest = 0;  ///< Planner::digest(): programs of one group have the same.
  Index staging_bytes = 0, scratch_bytes = 0;
  int round_bits = -1;  ///< of the rounds that its exchanges are (CompileOptions); -1: of none.
  std::vector<ProgramBuffer> buffers;
  std::vector<ProgramPiece> pieces;
  std::vector<ProgramRange> ranges;
  std::vector<ProgramMatrix> matrices;
  std::vector<ProgramMaximum> maxima;
  std::vector<ProgramOp> ops;
  std::vector<ProgramMessage> messages;
  std::vector<ProgramStep> steps;
  std::vector<std::uint32_t> first_wait;  ///< steps + 1 entries: step s waits for
  std::vector<StepId> waits;              ///< waits[first_wait[s], first_wait[s + 1]), ascending.
  Index copies = 0;  ///< memory copies after coalescing, before they are cut into tiles.

  std::span<const StepId> waits_of(StepId s) const {
    return std::span(waits).subspan(first_wait[s.index()],
                                    first_wait[s.index() + 1] - first_wait[s.index()]);
  }
  std::span<const ProgramOp> ops_of(const ProgramStep& tile) const {
    return std::span(ops).subspan(tile.first, tile.end - tile.first);
  }
  std::span<const ProgramMessage> messages_of(const ProgramStep& exchange) const {
    return std::span(messages).subspan(exchange.first, exchange.end - exchange.first);
  }
  std::span<const ProgramPiece> pieces_of(const ProgramOp& op) const {
    return std::span(pieces).subspan(op.first, op.end - op.first);
  }
  /// Progress and deliveries of all steps together. Bytes.
  Index bytes() const;
  Index delivered() const;
  friend bool operator==(const Program&, const Program&) = default;
};

}  // namespace reshard
