// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/delta/delta_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <tuple>

#include "reshard/base/bytes.h"
#include "reshard/base/hash.h"
#include "reshard/io/files/disk.h"
#include "reshard/io/files/json.h"
#include "reshard/model/name_pattern.h"
#include "reshard/transform/delta/delta_code.h"

namespace reshard {
namespace {

constexpr auto kBlock = static_cast<Index>(kDeltaBlockBytes);
constexpr std::size_t kMaxFileName = 1024;
constexpr Index kMaxBytes = Index{1} << 62;
/// The fewest bytes of a file and of a part in an index.
constexpr std::size_t kFileBytes = 2, kPartBytes = 4 + sizeof(Fingerprint);

void put(ByteWriter& out, std::uint64_t word) {
  std::array<char, sizeof word> bytes{};
  for (char& byte : bytes) {
    byte = static_cast<char>(word & 0xff);
    word >>= 8;
  }
  out.raw({bytes.data(), bytes.size()});
}

std::uint64_t take_word(ByteReader& in, const char* name) {
  const std::string_view bytes = in.raw(sizeof(std::uint64_t), name);
  std::uint64_t word = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    word = word << 8 | static_cast<unsigned char>(bytes[i]);
  return word;
}

void put(ByteWriter& out, const Fingerprint& fingerprint) {
  for (const std::uint64_t lane : fingerprint.lane) put(out, lane);
}

Fingerprint take_fingerprint(ByteReader& in) {
  Fingerprint fingerprint;
  for (std::uint64_t& lane : fingerprint.lane) lane = take_word(in, "a fingerprint");
  return fingerprint;
}

void put(ByteWriter& out, const DeltaPart& part) {
  out.text(part.name);
  out.number(static_cast<std::uint64_t>(part.state));
  out.number(static_cast<std::uint64_t>(part.width));
  out.number(static_cast<std::uint64_t>(part.bytes));
  if (part.in_base()) put(out, part.base);
  if (!part.has_codes()) return;
  put(out, part.result);
  for (const DeltaBlock& block : part.blocks) {
    out.number(block.bytes);
    if (block.bytes > 0) put(out, block.hash);
  }
}

Index block_bytes(const DeltaPart& part, std::size_t block) {
  return std::min(kBlock, part.bytes - static_cast<Index>(block) * kBlock);
}

void take_blocks(ByteReader& in, DeltaPart& part) {
  const auto blocks = static_cast<std::uint64_t>(num_delta_blocks(part.bytes));
  // A block takes a byte at least: checked before memory is allocated for it.
  if (blocks > in.left()) return in.fail(fmt::format("{} blocks are more than its bytes", blocks));
  part.blocks.resize(static_cast<std::size_t>(blocks));
  bool any = blocks == 0;
  for (std::size_t i = 0; i < part.blocks.size() && in.ok(); ++i) {
    DeltaBlock& block = part.blocks[i];
    const auto most = static_cast<std::uint64_t>(block_bytes(part, i)) + 1;
    block.bytes = static_cast<std::uint32_t>(in.number(most, "the size of a code"));
    if (block.bytes > 0) block.hash = take_word(in, "a hash");
    if (part.state == PartState::added && block.bytes != most)
      in.fail("a part without a base is not whole");
    any = any || block.bytes > 0;
  }
  if (part.state == PartState::changed && (!any || blocks == 0)) in.fail("no change in a part");
}

DeltaPart take_part(ByteReader& in, const std::string& file) {
  DeltaPart part;
  part.file = file;
  part.name = std::string(in.text(kMaxTensorName, "the name of a tensor"));
  part.state = static_cast<PartState>(in.number(3, "the state of a part"));
  part.width = static_cast<int>(in.number(8, "the width of an element"));
  part.bytes = static_cast<Index>(in.number(static_cast<std::uint64_t>(kMaxBytes), "a size"));
  if (!in.ok()) return part;
  if (part.width != 1 && part.width != 2 && part.width != 4 && part.width != 8)
    in.fail(fmt::format("the width of an element is {}, must be 1, 2, 4 or 8", part.width));
  else if (part.bytes % part.width != 0)
    in.fail(fmt::format("{} bytes of elements of {}", part.bytes, part.width));
  if (!in.ok()) return part;
  if (part.in_base()) part.base = take_fingerprint(in);
  if (part.state == PartState::unchanged) part.result = part.base;
  if (!part.has_codes()) return part;
  part.result = take_fingerprint(in);
  take_blocks(in, part);
  return part;
}

/// Checks names and order of the parts of one file.
Result<> check_parts(std::span<const DeltaPart> parts) {
  std::set<std::string_view> base, result;
  const DeltaPart* last_removed = nullptr;
  for (const DeltaPart& part : parts) {
    const auto bad = [&](const char* why) {
      return fail(Code::corrupt, fmt::format("{}: {}", describe_part(part.file, part.name), why));
    };
    if (part.in_result() && last_removed != nullptr) return bad("comes after one that was removed");
    if (part.in_result() && part.name.empty() != result.empty())
      return bad("the first part of a file is its header, and no other is");
    if (part.in_base() && !base.insert(part.name).second) return bad("is in the base twice");
    if (part.in_result() && !result.insert(part.name).second) return bad("is in the result twice");
    if (part.in_result()) continue;
    if (last_removed != nullptr && last_removed->name >= part.name) return bad("is out of order");
    last_removed = &part;
  }
  return {};
}

Result<> check_sizes(const DeltaIndex& index) {
  Index all = 0;
  for (const DeltaPart& part : index.parts)
    if (__builtin_add_overflow(all, part.bytes, &all) || all > kMaxBytes)
      return fail(Code::corrupt, "the parts are larger than 2^62 bytes together");
  if (std::ranges::none_of(index.parts, [](const DeltaPart& p) { return p.in_result(); }))
    return fail(Code::corrupt, "its result has no files");
  return {};
}

void take_files(ByteReader& in, DeltaIndex& index) {
  std::string last;
  const std::size_t files = in.count(kFileBytes, "the number of files");
  if (index.is_one_file && files > 1) in.fail("several files of a checkpoint that is one");
  for (std::size_t f = 0; f < files && in.ok(); ++f) {
    const std::string file(in.text(kMaxFileName, "the name of a file"));
    if (index.is_one_file && !file.empty()) in.fail("the only file has a name");
    if (!index.is_one_file)
      if (const auto good = check_delta_file_name(file); !good) in.fail(good.error().message);
    if (f > 0 && file <= last) in.fail("files are out of order");
    const std::size_t first = index.parts.size();
    const std::size_t parts = in.count(kPartBytes, "the number of parts");
    if (parts == 0) in.fail("a file without parts");
    for (std::size_t p = 0; p < parts && in.ok(); ++p) index.parts.push_back(take_part(in, file));
    if (!in.ok()) return;
    if (const auto good = check_parts(std::span(index.parts).subspan(first)); !good)
      in.fail(good.error().message);
    last = file;
  }
}

}  // namespace

Result<> check_delta_file_name(std::string_view path) {
  if (path.size() > kMaxFileName)
    return fail(Code::corrupt, fmt::format("file name {} has {} bytes, at most {} are allowed",
                                           in_quotes(path), path.size(), kMaxFileName));
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    RESHARD_TRY(files::check_file_name(path.substr(begin, end - begin)));
    begin = end + 1;
  }
  return {};
}

std::string_view name(PartState state) {
  constexpr std::array<std::string_view, 4> kNames = {"unchanged", "changed", "added", "removed"};
  return kNames[static_cast<std::size_t>(state)];
}

Index DeltaPart::code_bytes() const {
  Index sum = 0;
  for (const DeltaBlock& block : blocks) sum += block.bytes;
  return sum;
}

Index num_delta_blocks(Index part_bytes) { return (part_bytes + kBlock - 1) / kBlock; }

std::string describe_part(std::string_view file, std::string_view name) {
  if (name.empty() && file.empty()) return "the header";
  if (name.empty())
    return (file.ends_with(".safetensors") ? "the header of " : "") + std::string(as_word(file));
  const std::string tensor = fmt::format("tensor {}", as_word(name));
  return file.empty() ? tensor : fmt::format("{} of {}", tensor, as_word(file));
}

Index DeltaIndex::result_bytes() const {
  Index sum = 0;
  for (const DeltaPart& part : parts)
    if (part.in_result()) sum += part.bytes;
  return sum;
}

std::uint64_t checkpoint_fingerprint(std::vector<CheckpointPart> parts) {
  std::ranges::sort(parts, {}, [](const CheckpointPart& p) { return std::tie(p.file, p.name); });
  Digest digest;
  digest.add("checkpoint 1").add(parts.size());
  for (const CheckpointPart& p : parts)
    digest.add(p.file)
        .add(p.name)
        .add(p.bytes)
        .add(p.fingerprint.lane[0])
        .add(p.fingerprint.lane[1]);
  return digest.value();
}

std::uint64_t base_fingerprint(const DeltaIndex& index) {
  std::vector<CheckpointPart> parts;
  for (const DeltaPart& p : index.parts)
    if (p.in_base()) parts.push_back({p.file, p.name, p.bytes, p.base});
  return checkpoint_fingerprint(std::move(parts));
}

std::uint64_t result_fingerprint(const DeltaIndex& index) {
  std::vector<CheckpointPart> parts;
  for (const DeltaPart& p : index.parts)
    if (p.in_result()) parts.push_back({p.file, p.name, p.bytes, p.result});
  return checkpoint_fingerprint(std::move(parts));
}

std::vector<std::byte> serialise(const DeltaIndex& index) {
  std::size_t files = 0;
  for (std::size_t i = 0; i < index.parts.size(); ++i)
    if (i == 0 || index.parts[i].file != index.parts[i - 1].file) ++files;
  ByteWriter out;
  out.number(index.is_one_file ? 1 : 0);
  out.number(files);
  for (auto at = index.parts.begin(); at != index.parts.end();) {
    const auto end =
        std::find_if(at, index.parts.end(), [&](const DeltaPart& p) { return p.file != at->file; });
    out.text(at->file);
    out.number(static_cast<std::uint64_t>(end - at));
    for (; at != end; ++at) put(out, *at);
  }
  return std::move(out).finish();
}

Result<DeltaIndex> parse_delta_index(std::span<const std::byte> bytes) {
  ByteReader in(bytes, "index of a delta");
  DeltaIndex index;
  index.is_one_file = in.number(1, "whether it is one file") == 1;
  take_files(in, index);
  RESHARD_TRY(in.finish());
  if (auto good = check_sizes(index); !good)
    return tl::unexpected(std::move(good).error().in("index of a delta"));
  // LEB128 has longer forms of the same numbers.
  if (!std::ranges::equal(serialise(index), bytes))
    return fail(Code::corrupt, "index of a delta: a number is longer than it must be");
  return index;
}

}  // namespace reshard
