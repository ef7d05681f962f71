// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/delta/delta_file.h"

#include <fmt/format.h>

#include <charconv>
#include <set>

#include "reshard/base/hash.h"
#include "reshard/io/files/json.h"

namespace reshard {
namespace {

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Result<std::string_view> entry(const StringMap& metadata, const char* key) {
  const auto found = metadata.find(key);
  if (found == metadata.end())
    return fail(Code::corrupt, fmt::format("__metadata__ has no '{}'", key));
  return std::string_view(found->second);
}

/// A number that is written as `written` would write it.
template <class Written>
Result<std::uint64_t> number_of(const StringMap& metadata, const char* key, int radix,
                                const Written& written) {
  const auto text = RESHARD_TRY(entry(metadata, key));
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, radix);
  if (error != std::errc() || end != text.data() + text.size() || written(value) != text)
    return fail(Code::corrupt,
                fmt::format("__metadata__ {} is {}, which is no {}", key, in_quotes(text),
                            radix == 16 ? "16 hexadecimal digits" : "number"));
  return value;
}

Result<std::uint64_t> hash_of(const StringMap& metadata, const char* key) {
  return number_of(metadata, key, 16, hex);
}

Result<> check_format(const StringMap& metadata) {
  constexpr std::string_view kName = "reshard.delta/";
  const auto format = metadata.find("format");
  if (format == metadata.end() || !format->second.starts_with(kName))
    return fail(Code::corrupt,
                fmt::format("is no delta: its __metadata__ must say format {}", kDeltaFormat));
  if (format->second != kDeltaFormat)
    return fail(Code::unsupported, fmt::format("is a delta of format {}; this version reads {}",
                                               in_quotes(format->second), kDeltaFormat));
  return {};
}

Result<DeltaLink> parse_link(const StringMap& metadata) {
  DeltaLink link;
  link.base = RESHARD_TRY(hash_of(metadata, "base"));
  link.result = RESHARD_TRY(hash_of(metadata, "result"));
  link.anchor = RESHARD_TRY(hash_of(metadata, "anchor"));
  const auto step = RESHARD_TRY(
      number_of(metadata, "step", 10, [](std::uint64_t v) { return std::to_string(v); }));
  constexpr std::uint64_t kMaxStep = std::uint64_t{1} << 53;
  if (step == 0 || step > kMaxStep)
    return fail(Code::corrupt, fmt::format("step {} must be from 1 to {}", step, kMaxStep));
  link.step = static_cast<std::int64_t>(step);
  if (link.step == 1 && link.anchor != link.base)
    return fail(Code::corrupt, "step 1 of a chain does not begin with its anchor");
  return link;
}

using ByName = std::map<std::string_view, const StoredTensor*>;

/// Finds where the codes of each part lie, and that there are no others.
Result<> find_codes(const ByName& tensors, DeltaIndex& index) {
  std::size_t used = 1;  // the index itself
  for (DeltaPart& part : index.parts) {
    const Index bytes = part.code_bytes();
    if (bytes == 0) continue;
    const std::string name = delta_tensor_name(part);
    const auto found = tensors.find(name);
    if (found == tensors.end())
      return fail(Code::corrupt, fmt::format("has no tensor {}", in_quotes(name)));
    if (found->second->dtype != DType::u8 || found->second->bytes != bytes)
      return fail(Code::corrupt,
                  fmt::format("tensor {} must be {} bytes of dtype U8", in_quotes(name), bytes));
    Index at = found->second->offset;
    for (DeltaBlock& block : part.blocks) {
      block.at = at;
      at += block.bytes;
    }
    ++used;
  }
  if (used != tensors.size())
    return fail(Code::corrupt,
                fmt::format("has {} tensors, its index asks for {}", tensors.size(), used));
  return {};
}

/// Checks that no two parts have codes in one tensor: names of files may contain ':'.
Result<> check_names(const DeltaIndex& index) {
  std::set<std::string> names;
  for (const DeltaPart& part : index.parts)
    if (part.code_bytes() > 0 && !names.insert(delta_tensor_name(part)).second)
      return fail(Code::corrupt,
                  fmt::format("two parts are called {}", in_quotes(delta_tensor_name(part))));
  return {};
}

}  // namespace

StringMap delta_metadata(const DeltaLink& link, std::span<const std::byte> index) {
  return {{"format", std::string(kDeltaFormat)}, {"base", hex(link.base)},
          {"result", hex(link.result)},          {"anchor", hex(link.anchor)},
          {"step", std::to_string(link.step)},   {"index", hex(hash64(text_of(index)))}};
}

std::string delta_tensor_name(const DeltaPart& part) { return part.file + ":" + part.name; }

Result<Delta> parse_delta(std::span<const std::byte> file) {
  const auto header = RESHARD_TRY(parse_safetensors(file));
  RESHARD_TRY(check_format(header.metadata));
  Delta delta;
  delta.link = RESHARD_TRY(parse_link(header.metadata));
  ByName tensors;
  for (const StoredTensor& tensor : header.tensors) tensors.emplace(tensor.name, &tensor);
  const auto found = tensors.find(kDeltaIndexName);
  if (found == tensors.end()) return fail(Code::corrupt, "has no tensor 'index'");
  const auto index = file.subspan(static_cast<std::size_t>(found->second->offset),
                                  static_cast<std::size_t>(found->second->bytes));
  if (hash64(text_of(index)) != RESHARD_TRY(hash_of(header.metadata, "index")))
    return fail(Code::corrupt, "the index differs from its hash; the file is damaged");
  delta.index = RESHARD_TRY(parse_delta_index(index));
  RESHARD_TRY(check_names(delta.index));
  RESHARD_TRY(find_codes(tensors, delta.index));
  if (base_fingerprint(delta.index) != delta.link.base ||
      result_fingerprint(delta.index) != delta.link.result)
    return fail(Code::corrupt, "the index is of other checkpoints than its __metadata__");
  return delta;
}

Result<DeltaFile> DeltaFile::open(const std::string& path) {
  auto file = RESHARD_TRY(MappedFile::open(path));
  auto delta = parse_delta(file.bytes());
  RESHARD_TRY(file.unchanged());
  if (!delta) return tl::unexpected(std::move(delta).error().in(path));
  return DeltaFile(std::move(file), *std::move(delta));
}

Result<std::span<const std::byte>> DeltaFile::code(const DeltaPart& part, std::size_t block) const {
  const DeltaBlock& b = part.blocks[block];
  const auto code = file_.bytes().subspan(static_cast<std::size_t>(b.at), b.bytes);
  if (b.bytes > 0 && hash64(text_of(code)) != b.hash)
    return fail(Code::corrupt,
                fmt::format("{}: {}: the code of block {} differs from its hash; the file is "
                            "damaged",
                            path(), describe_part(part.file, part.name), block));
  return code;
}

}  // namespace reshard
