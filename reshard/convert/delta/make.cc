// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <map>
#include <optional>

#include "reshard/base/stopwatch.h"
#include "reshard/convert/delta.h"
#include "reshard/convert/delta/comparison.h"
#include "reshard/convert/delta/report.h"
#include "reshard/io/checkpoint/safetensors_writer.h"
#include "reshard/io/delta/delta_file.h"
#include "reshard/io/files/output_dir.h"

namespace reshard {
namespace {

using delta::Comparison;
using delta::Parts;

/// The first part of the base that is not as `last`, the delta before, leaves it.
std::string first_difference(const DeltaIndex& index, const DeltaIndex& last) {
  using PartName = std::pair<std::string_view, std::string_view>;
  std::map<PartName, const DeltaPart*> left;
  for (const DeltaPart& part : last.parts)
    if (part.in_result()) left.emplace(PartName(part.file, part.name), &part);
  for (const DeltaPart& part : index.parts) {
    if (!part.in_base()) continue;
    const auto found = left.find({part.file, part.name});
    if (found == left.end() || found->second->bytes != part.bytes ||
        found->second->result != part.base)
      return describe_part(part.file, part.name);
    left.erase(found);
  }
  return left.empty() ? "nothing"
                      : describe_part(left.begin()->first.first, left.begin()->first.second);
}

/// `last`: the delta that ends at the base, if there is one.
Result<DeltaLink> link_after(const MakeDeltaOptions& options, const std::optional<DeltaFile>& last,
                             const DeltaIndex& index) {
  DeltaLink link{.base = base_fingerprint(index), .result = result_fingerprint(index)};
  link.anchor = link.base;
  if (!last) return link;
  if (last->link().result != link.base)
    return fail(Code::invalid_argument,
                fmt::format("{}: is not the checkpoint at which {} ends: {} differs", options.base,
                            options.after, first_difference(index, last->index())));
  link.anchor = last->link().anchor;
  link.step = last->link().step + 1;
  return link;
}

Result<> write_codes(const DeltaIndex& index, const DeltaCodeStore& codes,
                     SafetensorsWriter& writer) {
  std::vector<std::byte> buffer;
  std::size_t tensor = 1;
  for (const DeltaPart& part : index.parts) {
    Index at = 0;
    for (const DeltaBlock& block : part.blocks) {
      buffer.resize(block.bytes);
      RESHARD_TRY(codes.read(block.at, buffer));
      RESHARD_TRY(writer.write_at(tensor, at, buffer));
      at += block.bytes;
    }
    if (at > 0) ++tensor;
  }
  return {};
}

Result<Index> write_delta(const std::string& path, const DeltaLink& link, const DeltaIndex& index,
                          const DeltaCodeStore& codes, bool sync) {
  const std::vector<std::byte> bytes = serialise(index);
  std::vector<TensorSpec> tensors{
      {std::string(kDeltaIndexName), DType::u8, Dims{static_cast<Index>(bytes.size())}}};
  for (const DeltaPart& part : index.parts)
    if (const Index size = part.code_bytes(); size > 0)
      tensors.push_back({delta_tensor_name(part), DType::u8, Dims{size}});
  auto writer =
      RESHARD_TRY(SafetensorsWriter::create(path, std::move(tensors), delta_metadata(link, bytes)));
  RESHARD_TRY(writer.write_at(0, 0, bytes));
  RESHARD_TRY(write_codes(index, codes, writer));
  const Index written = writer.file_bytes();
  RESHARD_TRY(writer.finish(sync));
  return written;
}

}  // namespace

Result<DeltaReport> make_delta(const MakeDeltaOptions& options) {
  const Stopwatch watch;
  const auto base = RESHARD_TRY(Parts::open(options.base));
  const auto next = RESHARD_TRY(Parts::open(options.next));
  if (base.is_one_file() != next.is_one_file())
    return fail(Code::invalid_argument,
                fmt::format("{} is a {}, but {} is a {}; give two folders or two files",
                            options.base, base.is_one_file() ? "file" : "folder", options.next,
                            next.is_one_file() ? "file" : "folder"));
  std::optional<DeltaFile> last;
  if (!options.after.empty()) last = RESHARD_TRY(DeltaFile::open(options.after));
  auto output = RESHARD_TRY(OutputFile::create(options.output));
  auto codes = RESHARD_TRY(DeltaCodeStore::create(output.partial()));
  Comparison comparison(base, next, codes);
  RESHARD_TRY(comparison.run(options.threads, options.progress));
  RESHARD_TRY(base.unchanged());
  RESHARD_TRY(next.unchanged());
  const DeltaIndex index = comparison.index();
  const DeltaLink link = RESHARD_TRY(link_after(options, last, index));
  const Index written =
      RESHARD_TRY(write_delta(output.partial(), link, index, codes, options.sync));
  RESHARD_TRY(output.commit());
  DeltaReport report = delta::report_of(link, index);
  report.delta_bytes = written;
  report.seconds = watch.seconds();
  return report;
}

}  // namespace reshard
