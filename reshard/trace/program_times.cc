// SPDX-License-Identifier: Apache-2.0
#include "reshard/trace/program_times.h"

#include <algorithm>
#include <map>

namespace reshard::trace {
namespace {

using OpKind = ProgramOp::Kind;

constexpr std::size_t kMaxWaits = 1 << 12;
constexpr std::int64_t kLeastWaitNs = 1000;
/// Waits for the same thing with a shorter time between them are one wait.
constexpr std::int64_t kGapNs = 5000;

/// Bytes of values, data and scales that an op writes for some rows.
Index bytes_written(OpKind kind, const ProgramMatrix& m) {
  const Index rows = m.end - m.begin;
  if (kind == OpKind::amax) return 0;
  return rows * (kind == OpKind::quantise ? m.data_row : m.values_row);
}

}  // namespace

/// Finds out what the steps of a program do.
class ProgramTimes::FactFinder {
 public:
  FactFinder(const Program& program, ProgramTimes& out, const Names& names)
      : program_(program), out_(out) {
    for (const ProgramBuffer& buffer : program.buffers) {
      const bool named =
          buffer.kind == ProgramBuffer::Kind::source || buffer.kind == ProgramBuffer::Kind::target;
      names_.push_back(named && names ? out.recorder_.name(names(buffer)) : 0);
    }
    for (const ProgramStep& step : program.steps)
      out.tiles_.push_back(step.kind == ProgramStep::Kind::tile ? tile(step) : TileFacts{});
    for (const ProgramMessage& m : program.messages)
      out.message_names_.push_back(names_[m.at.buffer.index()]);
  }

 private:
  TileFacts tile(const ProgramStep& step) {
    facts_ = {};
    peers_.clear();
    of_tensor_.clear();
    for (const ProgramOp& op : program_.ops_of(step)) add(op);
    Index most = -1;
    for (const auto& [name, bytes] : of_tensor_)
      if (bytes > most) {
        most = bytes;
        facts_.name = name;
      }
    facts_.first_read = static_cast<std::uint32_t>(out_.reads_.size());
    for (const auto& [peer, bytes] : peers_) out_.reads_.push_back({peer, bytes});
    facts_.end_read = static_cast<std::uint32_t>(out_.reads_.size());
    return facts_;
  }

  void add(const ProgramOp& op) {
    facts_.ops |= static_cast<std::uint16_t>(1U << static_cast<unsigned>(op.kind));
    if (op.kind == OpKind::copy || op.kind == OpKind::get || op.kind == OpKind::put) {
      for (const ProgramPiece& piece : program_.pieces_of(op)) add(piece);
    } else if (op.kind == OpKind::clear) {
      for (std::uint32_t i = op.first; i < op.end; ++i) facts_.bytes += program_.ranges[i].bytes;
    } else if (op.kind != OpKind::max) {
      for (std::uint32_t i = op.first; i < op.end; ++i) {
        const ProgramMatrix& m = program_.matrices[i];
        const Index bytes = bytes_written(op.kind, m);
        facts_.bytes += bytes;
        add_tensor(m.data.buffer, bytes);
        add_tensor(m.values.buffer, bytes);
      }
    }
  }

  void add(const ProgramPiece& piece) {
    const ProgramBuffer &src = program_.buffers[piece.src.index()],
                        &dst = program_.buffers[piece.dst.index()];
    const Index bytes = piece.copy.bytes();
    facts_.bytes += bytes;
    if (src.kind == ProgramBuffer::Kind::staging) facts_.ops |= TraceEvent::kUnpacks;
    if (dst.kind == ProgramBuffer::Kind::staging) facts_.ops |= TraceEvent::kPacks;
    add_tensor(dst.kind == ProgramBuffer::Kind::target ? piece.dst : piece.src, bytes);
    const bool remote = src.kind == ProgramBuffer::Kind::source && program_.rank.value() >= 0 &&
                        src.rank != program_.rank;
    // Values travel in the narrower form.
    if (remote) peers_[src.rank] += std::min(bytes, piece.copy.source_bytes(bytes));
  }

  void add_tensor(BufferId buffer, Index bytes) {
    if (const std::uint32_t name = names_[buffer.index()]; name != 0) of_tensor_[name] += bytes;
  }

  const Program& program_;
  ProgramTimes& out_;
  std::vector<std::uint32_t> names_;  ///< by buffer.
  TileFacts facts_;
  std::map<Rank, Index> peers_;
  std::map<std::uint32_t, Index> of_tensor_;
};

ProgramTimes::ProgramTimes(const Program& program, int workers, TraceRecorder& recorder,
                           const Names& names)
    : program_(program), recorder_(recorder) {
  recorder.note_workers(workers);
  FactFinder(program, *this, names);
  steps_.resize(program.steps.size());
  waits_.resize(static_cast<std::size_t>(workers));
  for (Waits& waits : waits_) waits.spans.reserve(kMaxWaits);
  waits_for_tiles_ = recorder.name("tiles");
  waits_for_messages_ = recorder.name("messages");
}

void ProgramTimes::start() {
  std::ranges::fill(steps_, StepSpan{});
  for (Waits& waits : waits_) {
    waits.spans.clear();
    waits.dropped = 0;
    waits.is_last = false;
  }
}

void ProgramTimes::begin(StepId s, int worker) {
  steps_[s.index()] = {trace_now_ns(), 0, worker};
  waits_[static_cast<std::size_t>(worker)].is_last = false;
}

void ProgramTimes::end(StepId s) { steps_[s.index()].end_ns = trace_now_ns(); }

void ProgramTimes::waited(int worker, Awaited what, StepId step, std::int64_t since_ns) {
  const std::int64_t now = trace_now_ns();
  Waits& mine = waits_[static_cast<std::size_t>(worker)];
  if (mine.is_last) {
    WaitSpan& last = mine.spans.back();
    if (last.what == what && last.step == step && since_ns - last.end_ns < kGapNs) {
      last.end_ns = now;
      return;
    }
  }
  if (now - since_ns < kLeastWaitNs) return;
  if (mine.spans.size() == kMaxWaits) {
    ++mine.dropped;
  } else {
    mine.spans.push_back({what, step, since_ns, now});
    mine.is_last = true;
  }
}

void ProgramTimes::finish(bool verifying) {
  const std::int64_t now = trace_now_ns();
  recorder_.set_verifying(verifying);
  TraceEvent event;
  event.run = recorder_.begin_run();
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    const StepSpan& span = steps_[s];
    if (span.begin_ns == 0) continue;
    event.worker = span.worker;
    event.step = static_cast<std::uint32_t>(s);
    event.begin_ns = span.begin_ns;
    event.unfinished = span.end_ns == 0;
    event.end_ns = event.unfinished ? now : span.end_ns;
    add_step(s, event);
  }
  event.unfinished = false;
  for (std::size_t w = 0; w < waits_.size(); ++w) {
    recorder_.drop(waits_[w].dropped);
    for (const WaitSpan& wait : waits_[w].spans) {
      event.kind = TraceEvent::Kind::wait;
      event.worker = static_cast<std::int32_t>(w);
      event.step = wait.step.value();
      event.name = wait.what == Awaited::tiles ? waits_for_tiles_ : waits_for_messages_;
      event.begin_ns = wait.begin_ns;
      event.end_ns = wait.end_ns;
      recorder_.add(event);
    }
  }
  recorder_.set_verifying(false);
}

void ProgramTimes::add_step(std::size_t s, TraceEvent event) {
  const ProgramStep& step = program_.steps[s];
  if (step.kind == ProgramStep::Kind::barrier) {
    event.kind = TraceEvent::Kind::barrier;
    return recorder_.add(event);
  }
  if (step.kind == ProgramStep::Kind::tile) {
    const TileFacts& facts = tiles_[s];
    event.kind = TraceEvent::Kind::tile;
    event.bytes = facts.bytes;
    event.name = facts.name;
    event.ops = facts.ops;
    recorder_.add(event);
    event.kind = TraceEvent::Kind::read;
    for (std::uint32_t i = facts.first_read; i < facts.end_read; ++i) {
      event.peer = reads_[i].peer;
      event.bytes = reads_[i].bytes;
      recorder_.add(event);
    }
    return;
  }
  event.kind = TraceEvent::Kind::exchange;
  recorder_.add(event);
  for (std::uint32_t i = step.first; i < step.end; ++i) {
    const ProgramMessage& m = program_.messages[i];
    event.kind = m.is_send ? TraceEvent::Kind::send : TraceEvent::Kind::receive;
    event.peer = m.peer;
    event.message = m.id;
    event.bytes = m.bytes;
    event.name = message_names_[i];
    recorder_.add(event);
  }
}

}  // namespace reshard::trace
