// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/model/model_layout.h"
#include "reshard/program/program.h"

/// Descriptions of programs, as data that can be printed, and in words.
namespace reshard {

/// The layouts of the memory that a program's buffers are in. Borrowed; null: its local tensors
/// have numbers instead of names.
struct ProgramLayouts {
  const ModelLayout *source = nullptr, *target = nullptr;
};

/// Some bytes of one buffer.
struct ProgramSpan {
  BufferId buffer;
  Index begin = 0, end = 0;
};

/// One thing that a step does: copies from one buffer to another, some rows of a matrix, zeros, or
/// a message.
struct ProgramAction {
  enum class Kind : std::uint8_t {
    read,        ///< from another rank's memory, into the target, staging or scratch.
    copy,        ///< from the rank's own source into its target; or within its target.
    pack,        ///< from the rank's source, or what it relays of its target, into staging or
                 ///< scratch.
    unpack,      ///< from staging or scratch into the target, or from one to the other.
    clear,       ///< writes zeros.
    amax,        ///< finds the largest magnitude of some rows.
    max,         ///< finds the largest of several of those.
    quantise,    ///< rows of values -> data and scales.
    dequantise,  ///< data and scales -> rows of values.
    send,
    receive,
    forward,  ///< sends what the rank has received.
  };
  Kind kind = Kind::copy;
  Index bytes = 0;  ///< that are written or sent; of values if rows are converted.
  std::optional<ProgramSpan> from = {}, to = {};
  Index pieces = 0;  ///< of the copies.
  Rank peer{-1};     ///< read, send, receive, forward.
  std::uint64_t message = 0;
  const ProgramMatrix* matrix = nullptr;      ///< amax, quantise, dequantise; of the program.
  std::optional<Conversion> conversion = {};  ///< of copied values, if it changes them.
};
/// "read", "copy", ...
std::string_view name(ProgramAction::Kind kind);

/// The actions of a step, in order. Copies of one tile between the same two buffers are one action.
/// @pre the step is of the program, which passes check_structure()
std::vector<ProgramAction> actions_of(const Program& program, const ProgramStep& step);

/// "tile", "exchange", "barrier".
std::string_view name(ProgramStep::Kind kind);
/// The kinds of work of a step, in words and without sizes: "reads from rank 3's memory,
/// quantises to mxfp8".
std::string work_of(const Program& program, const ProgramStep& step);

/// "model.norm.weight", "staging", "local tensor 7 of the source".
std::string name_of(const Program& program, const ProgramLayouts& layouts, BufferId buffer);
/// "q_proj.weight [rows 0..1024]": the rows that it touches; "staging [bytes 100..200]".
std::string to_string(const Program& program, const ProgramLayouts& layouts, const ProgramSpan& at);
/// "reads 3.67 MB of q_proj.weight [rows 0..1024] from rank 3's memory into qkv_proj.weight [...]".
std::string to_string(const Program& program, const ProgramLayouts& layouts,
                      const ProgramAction& action);
/// One line for the step and, indented, one for each thing that it does. With line ends.
std::string step_text(const Program& program, const ProgramLayouts& layouts, StepId step);

/// Totals of a program. Bytes.
struct ProgramTotals {
  struct Peer {
    Rank peer;
    Index sent = 0, received = 0, read = 0, messages = 0;
  };
  /// Steps of the same kind that do the same kind of work.
  struct Work {
    ProgramStep::Kind kind = ProgramStep::Kind::tile;
    std::string what;  ///< work_of() each.
    StepId first, last;
    Index steps = 0, bytes = 0;
  };
  Index tiles = 0, exchanges = 0, barriers = 0, messages = 0;
  Index sent = 0, received = 0, read = 0, copied = 0, packed = 0, unpacked = 0;
  Index forwarded = 0;                   ///< of those sent.
  Index quantised = 0, dequantised = 0;  ///< values.
  std::vector<Peer> peers;               ///< ascending.
  std::vector<Work> work;                ///< in the order of the first step of each.
};
/// @pre the program passes check_structure()
ProgramTotals totals_of(const Program& program);

}  // namespace reshard
