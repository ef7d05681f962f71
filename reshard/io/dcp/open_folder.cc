// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/dcp/open_folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <map>

#include "reshard/io/dcp/metadata.h"
#include "reshard/io/dcp/sharded_files.h"
#include "reshard/io/dcp/torch_item.h"
#include "reshard/io/files/json.h"

namespace reshard::dcp {
namespace {

namespace fs = std::filesystem;

/// Whether a safetensors file begins here. What torch.save writes begins with the signature of an
/// archive, which no safetensors file can have for the size of its header.
bool begins_safetensors(std::span<const std::byte> bytes) {
  if (bytes.size() < 8) return false;
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) length |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return length <= std::uint64_t{kMaxSafetensorsHeader};
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
        placed->name = piece_name(out_.content.tensors[id], box_of(chunk));
        out_.content.pieces.push_back({placed->name, id, box_of(chunk), placed->order});
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
    const auto rest = out_.files[file].bytes().subspan(static_cast<std::size_t>(chunk.item.offset));
    auto read = begins_safetensors(rest) ? find_in_safetensors(tensor, chunk, file)
                                         : read_torch_item(bytes);
    const StoredItem item = RESHARD_TRY(std::move(read));
    if (item.dtype != tensor.dtype || !(item.shape == chunk.sizes))
      return fail(Code::corrupt, fmt::format("is {} {}, by .metadata it is {} {}",
                                             reshard::name(item.dtype), to_string(item.shape),
                                             reshard::name(tensor.dtype), to_string(chunk.sizes)));
    Dims in_memory = item.shape;
    for (int i = 0; i < in_memory.size(); ++i)
      in_memory[i] = item.shape[static_cast<int>(item.order[i])];
    PlacedPiece piece;
    piece.dtype = item.dtype;
    piece.shape = in_memory;
    piece.offset = chunk.item.offset + item.offset;
    piece.bytes = item.bytes;
    piece.file = file;
    piece.order = item.order;
    return piece;
  }

  /// torch's FileSystemWriter with SerializationFormat.SAFETENSORS writes a file's objects, then
  /// all its tensors as one safetensors file, to whose first byte every entry points.
  Result<StoredItem> find_in_safetensors(const Tensor& tensor, const Chunk& chunk,
                                         std::size_t file) {
    const Tail& tail = RESHARD_TRY(tail_of(file, chunk.item.offset));
    const auto at = tail.places.find(tensor.name);
    if (at == tail.places.end()) return fail(Code::corrupt, "is not in its file");
    const StoredTensor& stored = tail.header.tensors[at->second];
    if (!(tail.offsets[at->second] == chunk.offsets))
      return fail(Code::corrupt,
                  fmt::format("its piece at {} is missing: its file has that at {}",
                              to_string(chunk.offsets), to_string(tail.offsets[at->second])));
    StoredItem item{stored.dtype, stored.shape, stored.shape, stored.offset, stored.bytes};
    for (int i = 0; i < item.order.size(); ++i) item.order[i] = i;
    return item;
  }

  /// The safetensors file that begins at a byte of a file and ends with it.
  struct Tail {
    SafetensorsHeader header;
    std::vector<Dims> offsets;
    std::map<std::string, std::size_t> places;  ///< of each name among them.
  };
  Result<std::reference_wrapper<const Tail>> tail_of(std::size_t file, std::int64_t offset) {
    const auto known = tails_.find({file, offset});
    if (known != tails_.end()) return std::cref(known->second);
    Tail tail;
    tail.header = RESHARD_TRY(
        parse_safetensors(out_.files[file].bytes().subspan(static_cast<std::size_t>(offset))));
    tail.offsets = RESHARD_TRY(saved_offsets(tail.header));
    for (std::size_t i = 0; i < tail.header.tensors.size(); ++i)
      tail.places.emplace(tail.header.tensors[i].name, i);
    return std::cref(tails_.emplace(std::pair(file, offset), std::move(tail)).first->second);
  }

  Result<> add_other(const Other& other) {
    const EntryKind kind = other.why.empty() ? EntryKind::object : EntryKind::unread;
    CheckpointEntry entry{other.name, kind, other.why, 0, other.item.offset, other.item.bytes};
    if (kind == EntryKind::object) {
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
  std::map<std::pair<std::size_t, std::int64_t>, Tail> tails_;
  Folder out_;
};

}  // namespace

std::string piece_name(const TensorSpec& tensor, const Box& box) {
  std::string name = tensor.name;
  if (box == Box::whole(tensor.shape)) return name;
  char sign = '[';
  for (int i = 0; i < box.rank(); ++i) {
    name += fmt::format("{}{}:{}", sign, box[i].begin(), box[i].end());
    sign = ',';
  }
  return name + "]";
}

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
