// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <functional>

#include "reshard/base/hash.h"
#include "reshard/base/stopwatch.h"
#include "reshard/convert/delta.h"
#include "reshard/convert/delta/chain.h"
#include "reshard/convert/output/file_fingerprint.h"
#include "reshard/exec/progress_meter.h"
#include "reshard/io/files/new_file.h"
#include "reshard/io/files/output_dir.h"
#include "reshard/memory/worker_pool.h"
#include "reshard/transform/delta/delta_code.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using delta::PartChain;
using delta::Parts;
using output::FileFingerprint;

constexpr auto kBlock = static_cast<Index>(kDeltaBlockBytes);

/// A part that is being written, and its place in its file.
struct PartOutput {
  PartOutput(const PartChain& c, Index o)
      : chain(&c), offset(o), source(c.result->bytes), result(c.result->bytes) {}
  const PartChain* chain;
  Index offset;
  FileFingerprint source, result;  ///< of what was read and of what was written.
};

struct Unit {
  PartOutput* part = nullptr;
  std::size_t block = 0;
};

/// The parts of one file of the result.
struct FileOutput {
  std::string name;
  std::deque<PartOutput> parts;
  std::vector<Unit> units;
  Index bytes = 0;

  void add(const PartChain& chain) {
    PartOutput& part = parts.emplace_back(chain, bytes);
    bytes += chain.result->bytes;
    for (Index block = 0; block < num_delta_blocks(chain.result->bytes); ++block)
      units.push_back({&part, static_cast<std::size_t>(block)});
  }
};

std::deque<FileOutput> files_of(std::span<const PartChain> chains) {
  std::deque<FileOutput> files;
  for (const PartChain& chain : chains) {
    if (files.empty() || files.back().name != chain.result->file)
      files.emplace_back().name = chain.result->file;
    files.back().add(chain);
  }
  return files;
}

/// The bytes of a block of the result, in `buffer` or in the base's file.
Result<std::span<const std::byte>> make_block(const Unit& unit, std::span<std::byte> buffer) {
  const PartChain& chain = *unit.part->chain;
  const Index at = static_cast<Index>(unit.block) * kBlock;
  const auto size = static_cast<std::size_t>(std::min(kBlock, chain.result->bytes - at));
  std::span<const std::byte> block;
  if (chain.base != nullptr) {
    block = chain.source.file->data(*chain.source.part, at, kBlock);
    unit.part->source.add(at, block);
  }
  for (const auto& [file, part] : chain.steps) {
    const auto code = RESHARD_TRY(file->code(*part, unit.block));
    if (code.empty()) continue;
    if (block.data() != buffer.data()) std::ranges::copy(block, buffer.begin());
    block = buffer.first(size);
    if (auto applied = apply_delta_code(code, part->width, buffer.first(size)); !applied)
      return tl::unexpected(std::move(applied).error().in(
          fmt::format("{}: {}", file->path(), describe_part(part->file, part->name))));
    file->mapping().drop(part->blocks[unit.block].at, static_cast<Index>(code.size()));
  }
  unit.part->result.add(at, block);
  return block;
}

/// Checks the fingerprints of a part that is written.
Result<> check_part(const Parts& base, std::span<const DeltaFile> deltas, const PartOutput& part) {
  const PartChain& chain = *part.chain;
  const std::string name = describe_part(chain.result->file, chain.result->name);
  if (chain.base != nullptr && part.source.value() != chain.base->base)
    return fail(Code::invalid_argument,
                fmt::format("{}: is not the checkpoint that {} changes: {} differs; its "
                            "fingerprint is {}, must be {}",
                            base.path(), deltas.front().path(), name, part.source.text(),
                            to_string(chain.base->base)));
  if (part.result.value() != chain.result->result)
    return fail(Code::corrupt,
                fmt::format("{}: does not give the checkpoint that it says: {} has fingerprint {}, "
                            "must have {}",
                            deltas.back().path(), name, part.result.text(),
                            to_string(chain.result->result)));
  return {};
}

/// Writes the files of the result one after another, each by all workers.
class ResultWriter {
 public:
  ResultWriter(const Parts& base, std::span<const DeltaFile> deltas,
               const ApplyDeltasOptions& options, Index bytes)
      : base_(base),
        deltas_(deltas),
        sync_(options.sync),
        pool_(options.threads),
        buffers_(static_cast<std::size_t>(pool_.size())),
        meter_("apply", bytes, options.progress) {}

  Result<> write(FileOutput& file, const std::string& path) {
    auto output = RESHARD_TRY(NewFile::create(path, file.bytes));
    std::atomic<std::size_t> next{0};
    auto body = [&](int worker) {
      auto& buffer = buffers_[static_cast<std::size_t>(worker)];
      buffer.resize(kDeltaBlockBytes);
      for (std::size_t i = next++; i < file.units.size(); i = next++) {
        const auto written = write_block(file.units[i], buffer, output);
        if (!written) meter_.fail_with(written.error());
        if (!meter_.add(worker, written.value_or(0))) break;
      }
    };
    pool_.run(body);
    if (meter_.stopped()) return meter_.finish();
    for (const PartOutput& part : file.parts) RESHARD_TRY(check_part(base_, deltas_, part));
    return output.close(sync_);
  }
  Result<> finish() { return meter_.finish(); }

 private:
  /// The number of bytes written.
  Result<Index> write_block(const Unit& unit, std::span<std::byte> buffer, const NewFile& output) {
    const auto block = RESHARD_TRY(make_block(unit, buffer));
    const Index at = static_cast<Index>(unit.block) * kBlock;
    RESHARD_TRY(output.write_at(unit.part->offset + at, block));
    const Parts::Place& source = unit.part->chain->source;
    if (source.part != nullptr) source.file->drop(*source.part, at, kBlock);
    return static_cast<Index>(block.size());
  }

  const Parts& base_;
  std::span<const DeltaFile> deltas_;
  bool sync_;
  WorkerPool pool_;
  std::vector<std::vector<std::byte>> buffers_;  ///< one per worker.
  ProgressMeter meter_;
};

Result<> check_inputs(const Parts& base, std::span<const DeltaFile> deltas) {
  for (const DeltaFile& delta : deltas) RESHARD_TRY(delta.mapping().unchanged());
  return base.unchanged();
}

Result<> write_folder(const ApplyDeltasOptions& options, std::deque<FileOutput>& files,
                      ResultWriter& writer, const std::function<Result<>()>& check) {
  auto folder = RESHARD_TRY(OutputDir::create(options.output));
  for (FileOutput& file : files) {
    const fs::path path = fs::path(folder.partial()) / file.name;
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    if (error)
      return fail(Code::io, fmt::format("{}: cannot create the folder: {}",
                                        path.parent_path().string(), error.message()));
    RESHARD_TRY(writer.write(file, path.string()));
  }
  RESHARD_TRY(writer.finish());
  RESHARD_TRY(check());
  return folder.commit(options.sync);
}

Result<> write_file(const ApplyDeltasOptions& options, FileOutput& file, ResultWriter& writer,
                    const std::function<Result<>()>& check) {
  auto output = RESHARD_TRY(OutputFile::create(options.output));
  RESHARD_TRY(writer.write(file, output.partial()));
  RESHARD_TRY(writer.finish());
  RESHARD_TRY(check());
  return output.commit();
}

}  // namespace

Result<ApplyDeltasReport> apply_deltas(const ApplyDeltasOptions& options) {
  const Stopwatch watch;
  const auto deltas = RESHARD_TRY(delta::open_chain(options.deltas));
  const auto base = RESHARD_TRY(Parts::open(options.base));
  const DeltaIndex& last = deltas.back().index();
  for (const DeltaFile& delta : deltas)
    if (delta.index().is_one_file != base.is_one_file())
      return fail(Code::invalid_argument,
                  fmt::format("{}: is a {}, but {} is of {}", options.base,
                              base.is_one_file() ? "file" : "folder", delta.path(),
                              delta.index().is_one_file ? "files" : "folders"));
  const auto chains = RESHARD_TRY(delta::chains_of(base, deltas));
  std::deque<FileOutput> files = files_of(chains);
  ResultWriter writer(base, deltas, options, last.result_bytes());
  const auto check = [&] { return check_inputs(base, deltas); };
  RESHARD_TRY(base.is_one_file() ? write_file(options, files.front(), writer, check)
                                 : write_folder(options, files, writer, check));
  ApplyDeltasReport report{.base = hex(deltas.front().link().base),
                           .result = hex(deltas.back().link().result),
                           .first_step = deltas.front().link().step,
                           .step = deltas.back().link().step,
                           .files = static_cast<Index>(files.size()),
                           .bytes = last.result_bytes()};
  for (const DeltaFile& delta : deltas) report.delta_bytes += delta.mapping().size();
  report.seconds = watch.seconds();
  return report;
}

}  // namespace reshard
