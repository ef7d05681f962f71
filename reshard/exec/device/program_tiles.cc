// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/device/program_tiles.h"

#include <algorithm>

namespace reshard::device {
namespace {

/// An op, and the number of ops that must be done one after another before it.
struct LevelledOp {
  std::uint32_t level = 0;
  const ProgramOp* op = nullptr;
};

/// All ops, in the order of levels. Errors: a step that is not a tile of copies.
Result<std::vector<LevelledOp>> levelled_ops(const Program& program) {
  std::vector<LevelledOp> out;
  std::vector<std::uint32_t> end_of(program.steps.size());  ///< by step: the first level after it.
  for (std::size_t s = 0; s < program.steps.size(); ++s) {
    const ProgramStep& step = program.steps[s];
    if (step.kind != ProgramStep::Kind::tile)
      return fail(Code::unsupported, "messages and barriers in a program for one GPU");
    std::uint32_t level = 0;
    for (const StepId before : program.waits_of(StepId(static_cast<StepId::rep>(s))))
      level = std::max(level, end_of[before.index()]);
    for (const ProgramOp& op : program.ops_of(step)) {
      if (op.kind != ProgramOp::Kind::copy)
        return fail(Code::unsupported, "a GPU copies and casts; it does not quantise yet");
      out.push_back({level++, &op});
    }
    end_of[s] = level;
  }
  std::ranges::stable_sort(out, {}, &LevelledOp::level);
  return out;
}

}  // namespace

Result<cuda::TileTable> tiles_of(const Program& program, const AddressOf& address) {
  std::vector<std::byte*> addresses;
  for (const ProgramBuffer& buffer : program.buffers) {
    using Kind = ProgramBuffer::Kind;
    if (buffer.bytes == 0) {
      addresses.push_back(nullptr);
    } else if (buffer.kind == Kind::staging || buffer.kind == Kind::scratch) {
      return fail(Code::unsupported, "staging in a program for one GPU");
    } else {
      addresses.push_back(RESHARD_TRY(address(buffer)));
    }
  }
  cuda::TileTable table;
  std::uint32_t level = 0;
  for (const LevelledOp& next : RESHARD_TRY(levelled_ops(program))) {
    if (next.level != level) table.end_level();
    level = next.level;
    for (const ProgramPiece& piece : program.pieces_of(*next.op)) {
      RESHARD_TRY(table.add({piece.copy, addresses[piece.src.index()], addresses[piece.dst.index()],
                             piece.conversion}));
    }
  }
  table.end_level();
  return table;
}

}  // namespace reshard::device
