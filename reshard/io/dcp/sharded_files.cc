// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/dcp/sharded_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "reshard/io/files/json.h"

namespace reshard::dcp {
namespace {

namespace fs = std::filesystem;

/// `entry`: what the metadata says of the tensor, or null.
Result<Dims> parse_offsets(const Json* entry, const StoredTensor& tensor) {
  const auto wrong = [&](const std::string& message) {
    return fail(Code::corrupt,
                fmt::format("{}: tensor {}: {}", kShardingInfo, in_quotes(tensor.name), message));
  };
  if (entry == nullptr) return wrong("is missing");
  const Json* offsets = entry->find("saved_offsets");
  const auto* numbers = offsets == nullptr ? nullptr : offsets->array();
  if (numbers == nullptr || !std::cmp_equal(numbers->size(), tensor.shape.size()))
    return wrong(fmt::format("saved_offsets {}, must be a list of {} numbers", is_what(offsets),
                             tensor.shape.size()));
  Dims out;
  for (const Json& number : *numbers) {
    const auto at = number.integer();
    Index end = 0;
    if (!at || *at < 0 || __builtin_add_overflow(*at, tensor.shape[out.size()], &end))
      return wrong(fmt::format("an offset is {}", number.describe()));
    out.push_back(*at);
  }
  return out;
}

/// Collects the pieces of several files.
class Collector {
 public:
  Result<> add(const std::string& path) {
    out_.files.push_back(RESHARD_TRY(MappedFile::open(path)));
    auto added = add_pieces();
    RESHARD_TRY(out_.files.back().unchanged());
    if (!added) return tl::unexpected(std::move(added).error().in(path));
    return {};
  }

  Result<Folder> finish() && {
    std::vector<Index> held(out_.content.tensors.size());
    for (TensorPiece& piece : out_.content.pieces) {
      const TensorSpec& tensor = out_.content.tensors[piece.tensor];
      piece.local = piece_name(tensor, piece.box);
      held[piece.tensor] += volume(piece.box.shape());
    }
    for (std::size_t i = 0; i < held.size(); ++i) {
      const TensorSpec& tensor = out_.content.tensors[i];
      const auto bytes = stored_bytes(tensor.dtype, tensor.shape);
      if (!bytes || volume(tensor.shape) != held[i])
        return fail(Code::corrupt,
                    fmt::format("tensor {} reaches to {}, but its pieces have {} elements; files "
                                "are missing, or are of two checkpoints",
                                in_quotes(tensor.name), to_string(tensor.shape), held[i]));
    }
    for (std::size_t i = 0; i < out_.places.size(); ++i)
      out_.places[i].name = out_.content.pieces[i].local;
    return std::move(out_);
  }

 private:
  /// Those of the last file.
  Result<> add_pieces() {
    const auto header = RESHARD_TRY(parse_safetensors(out_.files.back().bytes()));
    const auto offsets = RESHARD_TRY(saved_offsets(header));
    for (std::size_t i = 0; i < offsets.size(); ++i)
      RESHARD_TRY(add_piece(header.tensors[i], offsets[i]));
    return {};
  }

  Result<> add_piece(const StoredTensor& stored, const Dims& offsets) {
    auto& tensors = out_.content.tensors;
    const auto [known, fresh] = ids_.emplace(stored.name, tensors.size());
    if (fresh) tensors.push_back({stored.name, stored.dtype, stored.shape});
    TensorSpec& tensor = tensors[known->second];
    if (tensor.dtype != stored.dtype || tensor.shape.size() != stored.shape.size())
      return fail(Code::corrupt,
                  fmt::format("tensor {} is {} {}, in another file it is {} {}",
                              in_quotes(stored.name), name(stored.dtype), to_string(stored.shape),
                              name(tensor.dtype), to_string(tensor.shape)));
    Dims order = offsets;
    for (int i = 0; i < offsets.size(); ++i) {
      tensor.shape[i] = std::max(tensor.shape[i], offsets[i] + stored.shape[i]);
      order[i] = i;
    }
    if (volume(stored.shape) == 0) return {};  // of a rank that held nothing
    out_.content.pieces.push_back(
        {"", known->second, shift(Box::whole(stored.shape), offsets), order});
    PlacedPiece place;
    static_cast<StoredTensor&>(place) = stored;
    place.file = out_.files.size() - 1;
    out_.places.push_back(std::move(place));
    return {};
  }

  std::map<std::string, std::size_t> ids_;
  Folder out_;
};

}  // namespace

bool is_sharded(const SafetensorsHeader& header) { return header.metadata.contains(kShardingInfo); }

Result<std::vector<Dims>> saved_offsets(const SafetensorsHeader& header) {
  std::vector<Dims> out;
  const auto text = header.metadata.find(kShardingInfo);
  if (text == header.metadata.end()) {
    for (const StoredTensor& tensor : header.tensors)
      out.push_back(Dims::filled(tensor.shape.size(), 0));
    return out;
  }
  auto info = parse_json(text->second);
  if (!info) return tl::unexpected(std::move(info).error().in(kShardingInfo));
  if (info->object() == nullptr)
    return fail(Code::corrupt,
                fmt::format("{}: must be an object, is {}", kShardingInfo, info->describe()));
  std::map<std::string_view, const Json*> entries;
  for (const auto& [name, entry] : *info->object()) entries.emplace(name, &entry);
  for (const StoredTensor& tensor : header.tensors) {
    const auto entry = entries.find(tensor.name);
    out.push_back(
        RESHARD_TRY(parse_offsets(entry == entries.end() ? nullptr : entry->second, tensor)));
  }
  return out;
}

std::vector<std::string> sharded_files(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".safetensors") paths.push_back(it->path().string());
  std::sort(paths.begin(), paths.end());
  if (paths.empty()) return {};
  const auto file = MappedFile::open(paths.front());
  const auto header = file ? parse_safetensors(file->bytes()) : fail(Code::not_found, "");
  return header && is_sharded(*header) ? paths : std::vector<std::string>();
}

Result<Folder> open_sharded_files(const std::vector<std::string>& paths) {
  Collector collector;
  for (const std::string& path : paths) RESHARD_TRY(collector.add(path));
  auto folder = std::move(collector).finish();
  if (!folder)
    return tl::unexpected(
        std::move(folder).error().in(fs::path(paths.front()).parent_path().string()));
  return folder;
}

}  // namespace reshard::dcp
