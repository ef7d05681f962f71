// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/output/quantised_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "reshard/convert/quant_areas.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/exec/worker_pool.h"

namespace reshard::output {
namespace {

using Bytes = std::vector<std::byte>;

/// Rows of one matrix for one worker.
struct Task {
  const QuantArea* area = nullptr;
  Index begin = 0, end = 0;
};

/// Splits into whole rows of blocks of about kElements elements. A matrix whose scales depend on
/// all of it stays whole.
std::vector<Task> tasks_of(const std::vector<QuantArea>& areas) {
  constexpr Index kElements = Index{1} << 20, kTileRows = 128;
  std::vector<Task> tasks;
  for (const QuantArea& a : areas) {
    const QuantFormat& f = a.quantised.format;
    Index step = a.values.rows;
    if (f.block_rows > 0 && f.block_cols > 0 && !f.tensor_factor) {
      const Index rows = f.order == ScaleOrder::swizzled ? kTileRows : f.block_rows;
      step = rows * std::max<Index>(1, kElements / (rows * a.values.cols));
    }
    for (Index begin = 0; begin < a.values.rows; begin += step)
      tasks.push_back({&a, begin, std::min(a.values.rows, begin + step)});
  }
  return tasks;
}

void run(const Task& task) {
  const QuantArea& a = *task.area;
  if (task.begin == 0 && task.end == a.values.rows)
    quantise(a.values, a.quantised);
  else
    quantise_rows(a.values, a.quantised, task.begin, task.end, 0);
}

void quantise_all(const std::vector<QuantArea>& areas, int threads) {
  const std::vector<Task> tasks = tasks_of(areas);
  std::atomic<std::size_t> next{0};
  WorkerPool pool(threads);
  auto body = [&](int) {
    for (std::size_t i = next++; i < tasks.size(); i = next++) run(tasks[i]);
  };
  pool.run(body);
}

class FileWriter {
 public:
  FileWriter(const Planner& planner, const StreamSource& source, const StreamDone& done,
             const StoredSource& stored, const QuantisedLayout& target, const OutputFile& file,
             TensorFileWriter& writer, const StreamOptions& options)
      : planner_(planner),
        source_(source),
        done_(done),
        stored_(stored),
        target_(target),
        file_(file),
        writer_(writer),
        options_(options) {}

  Result<> write() {
    std::vector<SlotId> plain;
    std::vector<SlotId> stored_of(static_cast<std::size_t>(target_.values->num_slots()));
    for (std::size_t v = 0; v < target_.plain.size(); ++v) {
      stored_of[v] = target_.plain[v];
      if (stored_of[v].value() >= 0 && index_of(stored_of[v]))
        plain.emplace_back(static_cast<SlotId::rep>(v));
    }
    const StreamSink sink = [&](Rank, SlotId slot, Index offset, std::span<const std::byte> bytes) {
      return writer_.write_at(*index_of(stored_of[slot.index()]), offset, bytes);
    };
    Index bytes = 0;
    for (const SlotId slot : plain) bytes += bytes_in_file(stored_of[slot.index()]);
    RESHARD_TRY(stream_rank(planner_, source_, file_.rank, plain, sink, done_, options_for(bytes)));
    for (const QuantisedLayout::Pair& pair : target_.pairs)
      if (index_of(pair.data) || index_of(pair.scales) || index_of(pair.factor))
        RESHARD_TRY(write(pair));
    return {};
  }

 private:
  std::optional<std::size_t> index_of(SlotId stored) const {
    const auto it = std::find(file_.slots.begin(), file_.slots.end(), stored);
    if (it == file_.slots.end()) return std::nullopt;
    return static_cast<std::size_t>(it - file_.slots.begin());
  }

  Index bytes_in_file(SlotId stored) const {
    return index_of(stored) ? bytes_of_local(*target_.stored, file_.rank, stored) : 0;
  }

  /// Options for a stream that accounts for `bytes` of the file, whatever it reads itself.
  StreamOptions options_for(Index bytes) {
    StreamOptions options = options_;
    const Index before = std::exchange(written_, written_ + bytes);
    options.progress = [this, before, bytes](std::string_view phase, Index done, Index total) {
      const double part = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
      const auto here = static_cast<Index>(part * static_cast<double>(bytes));
      return !options_.progress || options_.progress(phase, before + here, file_.tensor_bytes);
    };
    return options;
  }

  Bytes room_for(const ModelLayout& layout, SlotId slot) const {
    const Index bytes = slot.value() < 0 ? 0 : bytes_of_local(layout, file_.rank, slot);
    return Bytes(static_cast<std::size_t>(bytes));
  }

  bool is_stored(const QuantisedLayout::Pair& pair) const {
    const auto& parts = target_.stored->slot(pair.data).sections[0].parts;
    return stored_.planner != nullptr && !parts.empty() && stored_.planner->moves(parts[0].tensor);
  }

  /// Moves those slots of a pair that are in this file as the source stores them.
  Result<> move(const QuantisedLayout::Pair& pair) {
    std::vector<SlotId> slots;
    Index bytes = 0;
    for (const SlotId slot : {pair.data, pair.scales, pair.factor}) {
      if (!index_of(slot)) continue;
      slots.push_back(slot);
      bytes += bytes_in_file(slot);
    }
    const StreamSink sink = [&](Rank, SlotId slot, Index offset, std::span<const std::byte> part) {
      return writer_.write_at(*index_of(slot), offset, part);
    };
    return stream_rank(*stored_.planner, *stored_.buffers, file_.rank, slots, sink, stored_.done,
                       options_for(bytes));
  }

  Result<> write(const QuantisedLayout::Pair& pair) {
    if (is_stored(pair)) return move(pair);
    if (!pair.whole)
      return fail(
          Code::unsupported,
          fmt::format("{}: '{}' cannot be quantised, because shards cut its blocks; convert "
                      "to hf:quant=... first and shard that, or use quant_grid=local",
                      target_.stored->name(), target_.values->slot(pair.values).name));
    Bytes values = room_for(*target_.values, pair.values);
    const StreamSink sink = [&](Rank, SlotId, Index offset,
                                std::span<const std::byte> bytes) -> Result<> {
      std::memcpy(values.data() + offset, bytes.data(), bytes.size());
      return {};
    };
    Index bytes = bytes_in_file(pair.data) + bytes_in_file(pair.scales);
    if (pair.factor.value() >= 0) bytes += bytes_in_file(pair.factor);
    RESHARD_TRY(stream_rank(planner_, source_, file_.rank, {&pair.values, 1}, sink, done_,
                            options_for(bytes)));
    Bytes data = room_for(*target_.stored, pair.data),
          scales = room_for(*target_.stored, pair.scales),
          factor = room_for(*target_.stored, pair.factor);
    const auto areas = RESHARD_TRY(areas_of(
        target_, pair, file_.rank, {values.data(), data.data(), scales.data(), factor.data()}));
    quantise_all(areas, options_.threads);
    RESHARD_TRY(write(pair.data, data));
    RESHARD_TRY(write(pair.scales, scales));
    return pair.factor.value() < 0 ? Result<>() : write(pair.factor, factor);
  }

  /// Does nothing if another file has the slot.
  Result<> write(SlotId slot, const Bytes& bytes) {
    const auto index = index_of(slot);
    return index ? writer_.write_at(*index, 0, bytes) : Result<>();
  }

  const Planner& planner_;
  const StreamSource& source_;
  const StreamDone& done_;
  const StoredSource& stored_;
  const QuantisedLayout& target_;
  const OutputFile& file_;
  TensorFileWriter& writer_;
  const StreamOptions& options_;
  Index written_ = 0;  ///< bytes of the file, including those of the current stream.
};

}  // namespace

Result<> write_quantised(const Planner& planner, const StreamSource& source, const StreamDone& done,
                         const StoredSource& stored, const QuantisedLayout& target,
                         const OutputFile& file, TensorFileWriter& writer,
                         const StreamOptions& options) {
  return FileWriter(planner, source, done, stored, target, file, writer, options).write();
}

}  // namespace reshard::output
