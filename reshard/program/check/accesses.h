// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/program/matrix_parts.h"
#include "reshard/program/program.h"

namespace reshard::check {

/// A run of bytes that a step reads or writes.
struct Access {
  BufferId buffer;
  Index begin = 0, end = 0;
  bool writes = false;
};

template <class F>
void for_each_access(const ProgramPiece& piece, F&& f) {
  const StridedCopy& copy = piece.copy;
  const Index read = copy.source_bytes(copy.run_bytes);
  for_each_run(copy, [&](Index src, Index dst, Index bytes) {
    f(Access{piece.src, src, src + read, false});
    f(Access{piece.dst, dst, dst + bytes, true});
  });
}

template <class F>
void for_each_access(const ProgramMatrix& matrix, ProgramOp::Kind kind, F&& f) {
  for (const PartUse& part : parts_of(matrix, kind)) {
    const MatrixRows& r = part.rows;
    for (Index i = 0; i < r.rows && r.row > 0; ++i) {
      const Index begin = r.at.offset + i * r.stride;
      f(Access{r.at.buffer, begin, begin + r.row, part.writes});
    }
  }
}

/// Calls f(access) for each run of bytes that an op uses, in order.
template <class F>
void for_each_access(const Program& p, const ProgramOp& op, F&& f) {
  for (std::uint32_t i = op.first; i < op.end; ++i) switch (op.kind) {
      case ProgramOp::Kind::copy:
      case ProgramOp::Kind::get:
      case ProgramOp::Kind::put: for_each_access(p.pieces[i], f); break;
      case ProgramOp::Kind::clear: {
        const ProgramRange& r = p.ranges[i];
        f(Access{r.at.buffer, r.at.offset, r.at.offset + r.bytes, true});
        break;
      }
      case ProgramOp::Kind::max: {
        const ProgramMaximum& m = p.maxima[i];
        f(Access{m.from.buffer, m.from.offset, m.from.offset + m.count * 4, false});
        f(Access{m.to.buffer, m.to.offset, m.to.offset + 4, true});
        break;
      }
      default: for_each_access(p.matrices[i], op.kind, f);
    }
}

/// The same for a step. Messages of an exchange have no order.
template <class F>
void for_each_access(const Program& p, const ProgramStep& step, F&& f) {
  if (step.kind == ProgramStep::Kind::tile)
    for (const ProgramOp& op : p.ops_of(step)) for_each_access(p, op, f);
  if (step.kind == ProgramStep::Kind::exchange)
    for (const ProgramMessage& m : p.messages_of(step))
      f(Access{m.at.buffer, m.at.offset, m.at.offset + m.bytes, !m.is_send});
}

}  // namespace reshard::check
