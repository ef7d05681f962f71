// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/synthesize.h"

#include <fmt/format.h>

#include <atomic>
#include <map>
#include <vector>

#include "reshard/base/hash.h"
#include "reshard/base/stopwatch.h"
#include "reshard/convert/hooks.h"
#include "reshard/convert/output/checkpoint_output.h"
#include "reshard/exec/progress_meter.h"
#include "reshard/io/checkpoint/index.h"
#include "reshard/io/files/json.h"
#include "reshard/io/hf/config.h"
#include "reshard/io/make_layout.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/memory/worker_pool.h"
#include "reshard/model/names.h"
#include "reshard/transform/oracle.h"

namespace reshard {
namespace {

constexpr Index kChunkBytes = Index{4} << 20;

/// Rows of one tensor, computed and written by one thread.
struct SynthChunk {
  std::size_t tensor;
  Index first = 0, rows = 0;
};

Index row_bytes(const TensorSpec& t) {
  return t.shape.size() == 0 ? bits(t.dtype) / 8 : volume(t.shape) / t.shape[0] * bits(t.dtype) / 8;
}

std::vector<SynthChunk> chunks_of(const output::OutputFile& file) {
  std::vector<SynthChunk> chunks;
  for (std::size_t i = 0; i < file.tensors.size(); ++i) {
    const TensorSpec& t = file.tensors[i];
    const Index rows = t.shape.size() == 0 ? 1 : t.shape[0];
    const Index step = std::max<Index>(1, kChunkBytes / row_bytes(t));
    for (Index first = 0; first < rows; first += step)
      chunks.push_back({i, first, std::min(step, rows - first)});
  }
  return chunks;
}

/// Stored name -> the name from which its values are computed; they differ for repeated tensors.
using Aliases = std::map<std::string, std::string>;

Aliases aliases_of(const ModelConfig& config) {
  Aliases aliases;
  for (auto& [alias, name] : HfNames(config).aliases()) aliases.emplace(alias, name);
  return aliases;
}

/// The inputs shared by all chunks of a file.
struct SynthValues {
  const Aliases& aliases;
  std::uint64_t seed;
};

Result<> write_chunk(const output::OutputFile& file, const SynthChunk& chunk,
                     const SynthValues& values, std::span<std::byte> buffer,
                     TensorFileWriter& writer) {
  const TensorSpec& t = file.tensors[chunk.tensor];
  const auto alias = values.aliases.find(t.name);
  const std::string& name = alias == values.aliases.end() ? t.name : alias->second;
  Box box = Box::whole(t.shape);
  if (box.rank() > 0) box = box.with(0, {chunk.first, chunk.first + chunk.rows});
  const Strided where{0, row_major(box.shape())};
  RESHARD_TRY(oracle_fill(Oracle{OracleKind::weights, values.seed}, name, t.shape, t.dtype, box,
                          where, buffer.data()));
  const Index bytes = chunk.rows * row_bytes(t);
  return writer.write_at(chunk.tensor, chunk.first * row_bytes(t),
                         buffer.first(static_cast<std::size_t>(bytes)));
}

Result<> write_values(const output::OutputFile& file, const SynthValues& values, int threads,
                      TensorFileWriter& writer, const Progress& progress) {
  const auto chunks = chunks_of(file);
  Index largest = kChunkBytes;
  for (const TensorSpec& t : file.tensors) largest = std::max(largest, row_bytes(t));
  WorkerPool pool(threads);
  auto memory = RESHARD_TRY(HostBuffer::allocate(largest * pool.size()));
  ProgressMeter meter("write", file.tensor_bytes, progress);
  std::atomic<std::size_t> next{0};
  auto body = [&](int worker) {
    const auto mine = memory.bytes().subspan(static_cast<std::size_t>(largest * worker),
                                             static_cast<std::size_t>(largest));
    for (std::size_t i = next++; i < chunks.size(); i = next++) {
      if (auto written = write_chunk(file, chunks[i], values, mine, writer); !written)
        meter.fail_with(std::move(written).error());
      if (!meter.add(worker, chunks[i].rows * row_bytes(file.tensors[chunks[i].tensor]))) break;
    }
  };
  pool.run(body);
  return meter.finish();
}

Result<std::string> synth_config(const Model& model, std::optional<Index> layers) {
  auto text = RESHARD_TRY(read_text_file(model.config_path, std::size_t{16} << 20));
  if (layers) text = RESHARD_TRY(config_with_layers(text, *layers, model.config_path));
  return config_of_plain_weights(text, model.config_path);
}

}  // namespace

Result<SynthesizeReport> synthesize_checkpoint(const SynthesizeOptions& options) {
  return synthesize_checkpoint(options, {});
}

Result<SynthesizeReport> synthesize_checkpoint(const SynthesizeOptions& a,
                                               const ConvertHook& hook) {
  const Stopwatch watch;
  SynthesizeReport report;
  report.model = RESHARD_TRY(open_model(a.config, {.layers = a.layers}));
  const Model& model = report.model;
  if (model.weights)
    return fail(Code::invalid_argument,
                fmt::format("{}: is a checkpoint already; give a config.json or a named example",
                            a.config));
  const auto config = RESHARD_TRY(synth_config(model, a.layers));
  const LayoutSide side = RESHARD_TRY(make_side("hf", model));
  const Aliases aliases = aliases_of(*model.config);
  auto files = RESHARD_TRY(output::hf_output_files(side, a.max_shard_bytes));
  const auto key =
      hex(Digest().add("synth 1").add(config).add(a.seed).add(a.max_shard_bytes).value());
  auto out = RESHARD_TRY(output::CheckpointOutput::create(a.output, key, std::move(files), hook));
  RESHARD_TRY(out.write(a.progress, [&](const output::OutputFile& file, TensorFileWriter& writer,
                                        const Progress& progress) {
    return write_values(file, {aliases, a.seed}, a.threads, writer, progress);
  }));
  RESHARD_TRY(out.folder().write_text(kConfigFile, config));
  report.files = static_cast<Index>(out.files().files.size());
  if (report.files > 1)
    RESHARD_TRY(out.folder().write_text(kHfIndexFile, output::hf_index_of(out.files())));
  RESHARD_TRY(out.commit(false));
  report.bytes = out.files().tensor_bytes();
  report.kept_bytes = out.kept_bytes();
  report.seconds = watch.seconds();
  return report;
}

}  // namespace reshard
