// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>

#include "reshard/base/check.h"
#include "reshard/io/files/json.h"
#include "reshard/model/name_pattern.h"

namespace reshard {
namespace {

constexpr std::size_t kLengthBytes = 8;
// About eight JSON values per tensor, so a quarter of a million tensors per file: more than whole
// models have with all their scales, and parsed within seconds.
constexpr JsonLimits kHeaderLimits{
    .bytes = std::size_t{kMaxSafetensorsHeader}, .values = std::size_t{2} << 20, .depth = 8};

Result<std::string_view> header_text(std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.starts_with("version https://git-lfs"))
    return fail(
        Code::corrupt,
        fmt::format(
            "is a Git LFS pointer and not the file it stands for; fetch that with git lfs pull"));
  if (file.size() < kLengthBytes)
    return fail(
        Code::corrupt,
        fmt::format(
            "{} bytes are too few for a safetensors file, which begins with 8 bytes of length",
            file.size()));
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  if (length > std::uint64_t{kMaxSafetensorsHeader})
    return fail(
        Code::corrupt,
        fmt::format(
            "header length {} is above the limit of {} bytes; this may be no safetensors file",
            length, kMaxSafetensorsHeader));
  if (length > file.size() - kLengthBytes)
    return fail(
        Code::corrupt,
        fmt::format(
            "header length {} reaches past the end of the file of {} bytes; it may be truncated",
            length, file.size()));
  const auto header = text.substr(kLengthBytes, static_cast<std::size_t>(length));
  if (!header.starts_with('{'))
    return fail(Code::corrupt, fmt::format("header must begin with an opening brace"));
  return header;
}

Result<const Json*> member(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  if (value == nullptr) return fail(Code::corrupt, fmt::format("{} is missing", key));
  return value;
}

Result<DType> parse_dtype(const Json& object) {
  const Json* value = RESHARD_TRY(member(object, "dtype"));
  if (value->string() == nullptr)
    return fail(Code::corrupt, fmt::format("dtype must be a string, is {}", value->describe()));
  if (const auto dtype = dtype_from_name(*value->string()); dtype && *dtype != DType::i4)
    return *dtype;
  return fail(Code::unsupported, fmt::format("dtype {} is not known", in_quotes(*value->string())));
}

Result<Dims> parse_shape(const Json& object) {
  const Json* value = RESHARD_TRY(member(object, "shape"));
  const auto* entries = value->array();
  if (entries == nullptr)
    return fail(Code::corrupt, fmt::format("shape must be a list, is {}", value->describe()));
  if (entries->size() > kMaxDims)
    return fail(Code::unsupported, fmt::format("shape has {} dimensions, at most {} are supported",
                                               entries->size(), kMaxDims));
  Dims shape;
  for (const Json& entry : *entries) {
    const auto size = entry.integer();
    if (!size || *size < 0)
      return fail(Code::corrupt,
                  fmt::format("shape entries must be integers from 0 to 2^63 - 1, one is {}",
                              entry.describe()));
    shape.push_back(*size);
  }
  return shape;
}

struct Range {
  std::int64_t begin = 0, end = 0;
};

Result<Range> parse_range(const Json& object, std::int64_t data_bytes) {
  const Json* value = RESHARD_TRY(member(object, "data_offsets"));
  const auto* entries = value->array();
  if (entries == nullptr || entries->size() != 2)
    return fail(Code::corrupt, fmt::format("data_offsets must be a list of two integers, is {}",
                                           entries ? fmt::format("a list of {}", entries->size())
                                                   : value->describe()));
  std::int64_t ends[2];
  for (std::size_t i = 0; i < 2; ++i) {
    const auto entry = (*entries)[i].integer();
    if (!entry || *entry < 0)
      return fail(Code::corrupt,
                  fmt::format("data_offsets must be integers from 0 to 2^63 - 1, one is {}",
                              (*entries)[i].describe()));
    ends[i] = *entry;
  }
  if (ends[0] > ends[1])
    return fail(Code::corrupt,
                fmt::format("data_offsets [{}, {}) end before they begin", ends[0], ends[1]));
  if (ends[1] > data_bytes)
    return fail(
        Code::corrupt,
        fmt::format(
            "bytes [{}, {}) reach past the end of the file, which has {} bytes of data; it may be "
            "truncated",
            ends[0], ends[1], data_bytes));
  return Range{ends[0], ends[1]};
}

Result<StoredTensor> parse_tensor(const Json& value, std::int64_t data_bytes) {
  if (value.object() == nullptr)
    return fail(Code::corrupt, fmt::format("must be an object, is {}", value.describe()));
  StoredTensor tensor;
  tensor.dtype = RESHARD_TRY(parse_dtype(value));
  tensor.shape = RESHARD_TRY(parse_shape(value));
  const Range range = RESHARD_TRY(parse_range(value, data_bytes));
  tensor.bytes = RESHARD_TRY(stored_bytes(tensor.dtype, tensor.shape));
  if (tensor.bytes != range.end - range.begin)
    return fail(Code::corrupt,
                fmt::format("{} of shape {} takes {} bytes, but data_offsets [{}, {}) hold {}",
                            name(tensor.dtype), to_string(tensor.shape), tensor.bytes, range.begin,
                            range.end, range.end - range.begin));
  tensor.offset = range.begin;
  return tensor;
}

Result<StoredTensor> parse_member(std::string name, const Json& value, std::int64_t data_bytes) {
  if (name.size() > kMaxTensorName)
    return fail(Code::corrupt, fmt::format("{}", check_tensor_name(name).error().message));
  auto tensor = parse_tensor(value, data_bytes);
  if (!tensor) return tl::unexpected(std::move(tensor).error().in("tensor " + in_quotes(name)));
  tensor->name = std::move(name);
  return tensor;
}

Result<StringMap> parse_metadata(const Json& value) {
  StringMap metadata;
  if (value.is_null()) return metadata;
  if (value.object() == nullptr)
    return fail(Code::corrupt,
                fmt::format("__metadata__ must be an object of strings, is {}", value.describe()));
  for (const auto& [key, entry] : *value.object()) {
    if (entry.string() == nullptr)
      return fail(Code::corrupt, fmt::format("__metadata__ {} must be a string, is {}",
                                             in_quotes(key), entry.describe()));
    metadata.emplace(key, *entry.string());
  }
  return metadata;
}

/// Checks that the tensors, sorted by offset, cover the data exactly.
Result<> check_cover(const std::vector<StoredTensor>& tensors, std::int64_t data_bytes) {
  std::int64_t end = 0;
  const StoredTensor* last = nullptr;
  for (const auto& tensor : tensors) {
    if (tensor.offset < end)
      return fail(Code::corrupt,
                  fmt::format("tensors {} and {} overlap: bytes [{}, {}) and [{}, {})",
                              in_quotes(last->name), in_quotes(tensor.name), last->offset, end,
                              tensor.offset, tensor.offset + tensor.bytes));
    if (tensor.offset > end)
      return fail(Code::corrupt,
                  fmt::format("a hole: bytes [{}, {}) before tensor {} belong to no tensor", end,
                              tensor.offset, in_quotes(tensor.name)));
    end = tensor.offset + tensor.bytes;
    last = &tensor;
  }
  if (end != data_bytes)
    return fail(Code::corrupt,
                fmt::format("{} trailing bytes after the last tensor belong to no tensor",
                            data_bytes - end));
  return {};
}

}  // namespace

Result<std::int64_t> stored_bytes(DType dtype, const Dims& shape) {
  std::int64_t elements = 1, nonzero = 1;
  for (Index size : shape) {
    if (size < 0)
      return fail(Code::invalid_argument, fmt::format("shape entry {} is negative", size));
    if (__builtin_mul_overflow(nonzero, std::max<Index>(size, 1), &nonzero))
      return fail(Code::corrupt,
                  fmt::format("shape {} has more elements than 64 bits can count: overflow",
                              to_string(shape)));
    elements *= size;
  }
  std::int64_t all_bits = 0;
  if (__builtin_mul_overflow(nonzero, std::int64_t{bits(dtype)}, &all_bits))
    return fail(Code::corrupt,
                fmt::format("{} of shape {} has more bytes than 64 bits can count: overflow",
                            name(dtype), to_string(shape)));
  const auto bytes = bytes_of(dtype, elements);
  if (!bytes)
    return fail(Code::corrupt, fmt::format("{} of shape {} is not a whole number of bytes",
                                           name(dtype), to_string(shape)));
  return *bytes;
}

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file) {
  const std::string_view text = RESHARD_TRY(header_text(file));
  SafetensorsHeader header;
  header.data_offset = static_cast<std::int64_t>(kLengthBytes + text.size());
  const std::int64_t data_bytes = static_cast<std::int64_t>(file.size()) - header.data_offset;
  Result<> good;
  const auto add = [&](std::string key, const Json& value) -> Result<> {
    if (key == "__metadata__")
      header.metadata = RESHARD_TRY(parse_metadata(value));
    else
      header.tensors.push_back(RESHARD_TRY(parse_member(std::move(key), value, data_bytes)));
    return {};
  };
  auto json = parse_json_members(text, kHeaderLimits, [&](std::string key, const Json& value) {
    if (good) good = add(std::move(key), value);
  });
  if (!json) return tl::unexpected(std::move(json).error().in("header"));
  RESHARD_TRY(std::move(good));
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  RESHARD_TRY(check_cover(header.tensors, data_bytes));
  for (auto& tensor : header.tensors) tensor.offset += header.data_offset;
  return header;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  auto file = RESHARD_TRY(MappedFile::open(path));
  auto header = parse_safetensors(file.bytes());
  RESHARD_TRY(file.unchanged());
  if (!header) return tl::unexpected(std::move(header).error().in(path));
  return SafetensorsFile(std::move(file), *std::move(header));
}

SafetensorsFile::SafetensorsFile(MappedFile file, SafetensorsHeader header)
    : file_(std::move(file)), header_(std::move(header)), by_name_(header_.tensors.size()) {
  std::iota(by_name_.begin(), by_name_.end(), std::size_t{0});
  std::sort(by_name_.begin(), by_name_.end(),
            [this](auto a, auto b) { return tensors()[a].name < tensors()[b].name; });
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [this](auto i, auto key) { return tensors()[i].name < key; });
  return at != by_name_.end() && tensors()[*at].name == name ? &tensors()[*at] : nullptr;
}

std::span<const std::byte> SafetensorsFile::data(const StoredTensor& tensor) const {
  RESHARD_CHECK(tensor.offset >= 0 && tensor.bytes >= 0 && tensor.offset <= file_.size() &&
                tensor.bytes <= file_.size() - tensor.offset);
  return file_.bytes().subspan(static_cast<std::size_t>(tensor.offset),
                               static_cast<std::size_t>(tensor.bytes));
}

}  // namespace reshard
