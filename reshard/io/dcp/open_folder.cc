// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/dcp/open_folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "reshard/io/dcp/metadata.h"
#include "reshard/io/dcp/torch_item.h"
#include "reshard/io/files/json.h"

namespace reshard::dcp {
namespace {

namespace fs = std::filesystem;

/// "layers.0.weight", or "layers.0.weight[4:8,0:16]" for one piece of several.
std::string local_name(const Tensor& tensor, const Chunk& chunk) {
  if (chunk.sizes == tensor.shape) return tensor.name;
  std::string name = tensor.name;
  char sign = '[';
  for (int i = 0; i < chunk.sizes.size(); ++i) {
    name += fmt::format("{}{}:{}", sign, chunk.offsets[i], chunk.offsets[i] + chunk.sizes[i]);
    sign = ',';
  }
  return name + "]";
}

Box box_of(const Chunk& chunk) { return shift(Box::whole(chunk.sizes), chunk.offsets); }

class Opener {
 public:
  explicit Opener(std::string folder) : folder_(std::move(folder)) {}

  Result<Folder> open(const Metadata& metadata) {
    for (const Tensor& tensor : metadata.tensors) {
      const std::size_t id = out_.content.tensors.size();
      out_.content.tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
      for (const Chunk& chunk : tensor.chunks) {
        if (volume(chunk.sizes) == 0) continue;  // a rank that held nothing
        const std::size_t file = RESHARD_TRY(file_of(chunk.item.file));
        auto placed = read_chunk(tensor, chunk, file);
        if (!placed)
          return tl::unexpected(std::move(placed).error().in(
              fmt::format("{}: {}", out_.files[file].path(), in_quotes(tensor.name))));
        out_.content.pieces.push_back({placed->name, id, box_of(chunk), orders_.back()});
        out_.places.push_back(*std::move(placed));
      }
    }
    for (const Other& other : metadata.others) RESHARD_TRY(add_other(other));
    return std::move(out_);
  }

 private:
  Result<std::size_t> file_of(const std::string& name) {
    const auto known = files_.find(name);
    if (known != files_.end()) return known->second;
    out_.files.push_back(RESHARD_TRY(MappedFile::open((fs::path(folder_) / name).string())));
    files_.emplace(name, out_.files.size() - 1);
    return out_.files.size() - 1;
  }

  Result<std::span<const std::byte>> bytes_of(const Item& item, std::size_t file) const {
    const auto whole = out_.files[file].bytes();
    const auto size = static_cast<std::int64_t>(whole.size());
    if (item.offset > size || item.bytes > size - item.offset)
      return fail(Code::corrupt, fmt::format("bytes [{}, {} more) reach past the end of the file, "
                                             "which has {}; it may be truncated",
                                             item.offset, item.bytes, size));
    return whole.subspan(static_cast<std::size_t>(item.offset),
                         static_cast<std::size_t>(item.bytes));
  }

  Result<PlacedPiece> read_chunk(const Tensor& tensor, const Chunk& chunk, std::size_t file) {
    const auto bytes = RESHARD_TRY(bytes_of(chunk.item, file));
    const StoredItem item = RESHARD_TRY(read_torch_item(bytes));
    if (item.dtype != tensor.dtype || !(item.shape == chunk.sizes))
      return fail(Code::corrupt, fmt::format("is {} {}, by .metadata it is {} {}",
                                             reshard::name(item.dtype), to_string(item.shape),
                                             reshard::name(tensor.dtype), to_string(chunk.sizes)));
    Dims in_memory = item.shape;
    for (int i = 0; i < in_memory.size(); ++i)
      in_memory[i] = item.shape[static_cast<int>(item.order[i])];
    PlacedPiece piece;
    piece.name = local_name(tensor, chunk);
    piece.dtype = item.dtype;
    piece.shape = in_memory;
    piece.offset = chunk.item.offset + item.offset;
    piece.bytes = item.bytes;
    piece.file = file;
    orders_.push_back(item.order);
    return piece;
  }

  Result<> add_other(const Other& other) {
    CheckpointEntry entry{other.name, other.why, 0, other.item.offset, other.item.bytes};
    if (other.why.empty()) {
      entry.file = RESHARD_TRY(file_of(other.item.file));
      if (auto there = bytes_of(other.item, entry.file); !there)
        return tl::unexpected(std::move(there).error().in(
            fmt::format("{}: {}", out_.files[entry.file].path(), in_quotes(other.name))));
    }
    out_.content.others.push_back(std::move(entry));
    return {};
  }

  std::string folder_;
  std::map<std::string, std::size_t> files_;
  std::vector<Dims> orders_;
  Folder out_;
};

}  // namespace

Result<Folder> open_folder(const std::string& metadata_path) {
  const MappedFile file = RESHARD_TRY(MappedFile::open(metadata_path));
  if (file.size() > kMaxMetadataBytes)
    return fail(Code::unsupported, fmt::format("{}: {} bytes, at most {} are read", metadata_path,
                                               file.size(), kMaxMetadataBytes));
  auto metadata = parse_metadata(file.bytes());
  RESHARD_TRY(file.unchanged());
  if (!metadata) return tl::unexpected(std::move(metadata).error().in(metadata_path));
  return Opener(fs::path(metadata_path).parent_path().string()).open(*metadata);
}

}  // namespace reshard::dcp
