// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <tuple>
#include <utility>

#include "reshard/base/check.h"
#include "reshard/io/checkpoint/index.h"
#include "reshard/io/checkpoint/pieces.h"
#include "reshard/io/checkpoint/safetensors.h"
#include "reshard/io/dcp/open_folder.h"
#include "reshard/io/dcp/sharded_files.h"
#include "reshard/io/files/json.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxIndexBytes = 100'000'000;

std::string folder_of(const std::string& path) {
  const auto parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

std::string in_folder(const std::string& folder, std::string_view name) {
  return (fs::path(folder) / name).string();
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// Names a file in the folder that may explain why no checkpoint was found, or "".
std::string hint(const std::string& folder) {
  std::error_code error;
  std::string first_safetensors, first_other;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const auto name = it->path().filename().string();
    auto& first = name.ends_with(".safetensors") ? first_safetensors : first_other;
    const bool weights = name.ends_with(".safetensors") || name.ends_with(".bin") ||
                         name.ends_with(".pt") || name.ends_with(".pth") ||
                         name.ends_with(".distcp");
    if (weights && (first.empty() || name < first)) first = name;
  }
  if (!first_safetensors.empty())
    return fmt::format("; it has {}, but no index that lists it", in_quotes(first_safetensors));
  if (first_other.ends_with(".distcp"))
    return fmt::format("; it has {}, but no .metadata that lists it", in_quotes(first_other));
  if (!first_other.empty())
    return fmt::format("; it has {}, but only safetensors files are read", in_quotes(first_other));
  return "";
}

/// The paths of the folder's indexes and single files.
std::vector<std::string> entries_in(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto name : {kRankIndexFile, kHfIndexFile, kHfFile, kDcpFile})
    if (exists(in_folder(folder, name))) found.push_back(in_folder(folder, name));
  return found;
}

/// The path of the folder's index or only file.
Result<std::string> find_entry(const std::string& folder) {
  const std::vector<std::string> found = entries_in(folder);
  if (found.empty())
    return fail(Code::not_found,
                fmt::format("{}: holds no checkpoint: looked for {}, {}, {} and {}{}", folder,
                            kRankIndexFile, kHfIndexFile, kHfFile, kDcpFile, hint(folder)));
  if (found.size() > 1)
    return fail(
        Code::invalid_argument,
        fmt::format("{}: holds two checkpoints; name one of {} and {} instead of the folder",
                    folder, found[0], found[1]));
  return found[0];
}

/// Opens each file once, in name order, and stores its index in the result in `names`.
Result<std::vector<SafetensorsFile>> open_files(const std::string& index_path,
                                                std::map<std::string, std::size_t>& names) {
  std::vector<SafetensorsFile> files;
  for (auto& [name, place] : names) {
    const auto path = in_folder(folder_of(index_path), name);
    auto file = SafetensorsFile::open(path);
    if (!file && file.error().code == Code::not_found)
      return fail(Code::not_found, fmt::format("{}: lists file {}, which does not exist beside it",
                                               index_path, in_quotes(name)));
    if (!file) return tl::unexpected(std::move(file).error());
    place = files.size();
    files.push_back(*std::move(file));
  }
  return files;
}

void sort_by_name(std::vector<CheckpointTensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.name, a.file) < std::tie(b.name, b.file);
  });
}

/// `path` is for errors: a piece that is there twice.
Result<> sort_pieces(const std::string& path, std::vector<CheckpointTensor>& list) {
  sort_by_name(list);
  for (std::size_t i = 1; i < list.size(); ++i)
    if (list[i].name == list[i - 1].name)
      return fail(Code::corrupt,
                  fmt::format("{}: holds piece {} twice", path, in_quotes(list[i].name)));
  return {};
}

/// Checks that the index lists exactly these tensors, sorted by name, each in the file that has it.
Result<> check_weight_map(const std::string& index_path, const WeightMap& weight_map,
                          const std::map<std::string, std::size_t>& names,
                          const std::vector<CheckpointTensor>& tensors,
                          const std::vector<SafetensorsFile>& files) {
  const auto wrong = [&](const std::string& message) {
    return fail(Code::corrupt, fmt::format("{}: {}", index_path, message));
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    const auto quoted_name = in_quotes(tensor.name);
    if (i > 0 && tensors[i - 1].name == tensor.name)
      return wrong(fmt::format("tensor {} is in two files, {} and {}", quoted_name,
                               files[tensors[i - 1].file].path(), files[tensor.file].path()));
    const auto listed = weight_map.find(tensor.name);
    if (listed == weight_map.end())
      return wrong(fmt::format("tensor {} is in {} but is not listed", quoted_name,
                               files[tensor.file].path()));
    if (names.at(listed->second) != tensor.file)
      return wrong(fmt::format("tensor {} is listed for {} but is in {}", quoted_name,
                               in_quotes(listed->second), files[tensor.file].path()));
  }
  for (const auto& [name, file] : weight_map)
    if (find_tensor(tensors, name) == nullptr)
      return wrong(fmt::format("tensor {} is listed for {} but is not in it", in_quotes(name),
                               in_quotes(file)));
  return {};
}

std::vector<CheckpointTensor> list_of(const std::vector<dcp::PlacedPiece>& places) {
  std::vector<CheckpointTensor> list;
  for (const dcp::PlacedPiece& piece : places) list.push_back({piece, piece.file});
  return list;
}

/// Refuses a file of pieces. One of a checkpoint's first rank is known by its name only.
Result<> check_whole(const SafetensorsFile& file) {
  const SafetensorsHeader header{file.tensors(), file.metadata(), 0};
  if (!dcp::is_sharded(header)) return {};
  auto offsets = dcp::saved_offsets(header);
  if (!offsets) return tl::unexpected(std::move(offsets).error().in(file.path()));
  bool pieces = fs::path(file.path()).filename().string().starts_with("shard-");
  for (const Dims& at : *offsets)
    pieces |= std::any_of(at.begin(), at.end(), [](Index i) { return i != 0; });
  if (!pieces) return {};
  return fail(Code::invalid_argument,
              fmt::format("{}: holds pieces of tensors; name its folder", file.path()));
}

}  // namespace

class Checkpoint::State {
 public:
  using List = std::vector<CheckpointTensor>;

  static Result<std::unique_ptr<State>> open_file(const std::string& path);
  static Result<std::unique_ptr<State>> open_hf_index(const std::string& path);
  static Result<std::unique_ptr<State>> open_rank_index(const std::string& path);
  static Result<std::unique_ptr<State>> open_dcp(const std::string& path);
  static Result<std::unique_ptr<State>> open_sharded(const std::string& folder,
                                                     const std::vector<std::string>& paths);
  const MappedFile& mapping(std::size_t file) const {
    return files.empty() ? mapped[file] : files[file].mapping();
  }

  Kind kind = Kind::hf;
  std::string folder;
  std::string layout;
  std::vector<SafetensorsFile> files;
  std::vector<MappedFile> mapped;  ///< instead of `files` if kind is dcp.
  TensorPieces pieces;
  std::vector<List> lists;
  std::vector<std::size_t> list_of_rank;

 private:
  static Result<std::unique_ptr<State>> of_pieces(const std::string& path,
                                                  std::vector<MappedFile> files,
                                                  TensorPieces pieces, List list);
  List list_file(std::size_t file) const;
};

Checkpoint::State::List Checkpoint::State::list_file(std::size_t file) const {
  List tensors;
  for (const auto& tensor : files[file].tensors()) tensors.push_back({tensor, file});
  sort_by_name(tensors);
  return tensors;
}

Result<std::unique_ptr<Checkpoint::State>> Checkpoint::State::open_file(const std::string& path) {
  auto made = std::make_unique<State>();
  State& checkpoint = *made;
  checkpoint.folder = folder_of(path);
  checkpoint.files.push_back(RESHARD_TRY(SafetensorsFile::open(path)));
  RESHARD_TRY(check_whole(checkpoint.files[0]));
  checkpoint.lists.push_back(checkpoint.list_file(0));
  checkpoint.list_of_rank = {0};
  return made;
}

Result<std::unique_ptr<Checkpoint::State>> Checkpoint::State::open_hf_index(
    const std::string& path) {
  const auto text = RESHARD_TRY(read_text_file(path, kMaxIndexBytes));
  auto weight_map = parse_hf_index(text);
  if (!weight_map) return tl::unexpected(std::move(weight_map).error().in(path));
  std::map<std::string, std::size_t> names;
  for (const auto& [tensor, file] : *weight_map) names.emplace(file, 0);
  auto made = std::make_unique<State>();
  State& checkpoint = *made;
  checkpoint.folder = folder_of(path);
  checkpoint.files = RESHARD_TRY(open_files(path, names));
  List all;
  for (std::size_t i = 0; i < checkpoint.files.size(); ++i) {
    auto list = checkpoint.list_file(i);
    std::move(list.begin(), list.end(), std::back_inserter(all));
  }
  sort_by_name(all);
  for (const SafetensorsFile& file : checkpoint.files) RESHARD_TRY(check_whole(file));
  RESHARD_TRY(check_weight_map(path, *weight_map, names, all, checkpoint.files));
  checkpoint.lists.push_back(std::move(all));
  checkpoint.list_of_rank = {0};
  return made;
}

Result<std::unique_ptr<Checkpoint::State>> Checkpoint::State::open_rank_index(
    const std::string& path) {
  const auto text = RESHARD_TRY(read_text_file(path, kMaxIndexBytes));
  auto index = parse_rank_index(text);
  if (!index) return tl::unexpected(std::move(index).error().in(path));
  std::map<std::string, std::size_t> names;
  for (const auto& file : index->files) names.emplace(file, 0);
  auto made = std::make_unique<State>();
  State& checkpoint = *made;
  checkpoint.kind = Kind::ranks;
  checkpoint.folder = folder_of(path);
  checkpoint.layout = index->layout;
  checkpoint.files = RESHARD_TRY(open_files(path, names));
  for (std::size_t i = 0; i < checkpoint.files.size(); ++i)
    checkpoint.lists.push_back(checkpoint.list_file(i));
  for (const auto& file : index->files) checkpoint.list_of_rank.push_back(names.at(file));
  return made;
}

Result<std::unique_ptr<Checkpoint::State>> Checkpoint::State::open_dcp(const std::string& path) {
  auto folder = RESHARD_TRY(dcp::open_folder(path));
  List list = list_of(folder.places);
  auto made = RESHARD_TRY(
      of_pieces(path, std::move(folder.files), std::move(folder.content), std::move(list)));
  made->folder = folder_of(path);
  return made;
}

Result<std::unique_ptr<Checkpoint::State>> Checkpoint::State::open_sharded(
    const std::string& folder, const std::vector<std::string>& paths) {
  auto opened = RESHARD_TRY(dcp::open_sharded_files(paths));
  List list = list_of(opened.places);
  auto made = RESHARD_TRY(
      of_pieces(folder, std::move(opened.files), std::move(opened.content), std::move(list)));
  made->folder = folder;
  return made;
}

/// `path` is for errors.
Result<std::unique_ptr<Checkpoint::State>> Checkpoint::State::of_pieces(
    const std::string& path, std::vector<MappedFile> files, TensorPieces pieces, List list) {
  auto made = std::make_unique<State>();
  State& checkpoint = *made;
  checkpoint.kind = Kind::dcp;
  checkpoint.layout = "dcp";
  checkpoint.mapped = std::move(files);
  checkpoint.pieces = std::move(pieces);
  RESHARD_TRY(sort_pieces(path, list));
  checkpoint.lists.push_back(std::move(list));
  checkpoint.list_of_rank = {0};
  return made;
}

bool Checkpoint::is_in(const std::string& folder) {
  return !entries_in(folder).empty() || !dcp::sharded_files(folder).empty();
}

Result<Checkpoint> Checkpoint::open(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored) && entries_in(path).empty())
    if (const auto files = dcp::sharded_files(path); !files.empty())
      return Checkpoint(RESHARD_TRY(State::open_sharded(path, files)));
  const auto entry = fs::is_directory(path, ignored) ? RESHARD_TRY(find_entry(path)) : path;
  if (entry.ends_with(".index.json")) return Checkpoint(RESHARD_TRY(State::open_hf_index(entry)));
  if (entry.ends_with(".json")) return Checkpoint(RESHARD_TRY(State::open_rank_index(entry)));
  if (fs::path(entry).filename() == kDcpFile)
    return Checkpoint(RESHARD_TRY(State::open_dcp(entry)));
  return Checkpoint(RESHARD_TRY(State::open_file(entry)));
}

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Checkpoint::Kind Checkpoint::kind() const { return state_->kind; }
const std::string& Checkpoint::folder() const { return state_->folder; }
const std::vector<SafetensorsFile>& Checkpoint::files() const { return state_->files; }
std::size_t Checkpoint::num_files() const { return state_->files.size() + state_->mapped.size(); }
const MappedFile& Checkpoint::mapping(std::size_t file) const { return state_->mapping(file); }
const TensorPieces& Checkpoint::pieces() const { return state_->pieces; }
const std::string& Checkpoint::layout() const { return state_->layout; }
int Checkpoint::world_size() const { return static_cast<int>(state_->list_of_rank.size()); }

std::span<const std::byte> Checkpoint::data(const CheckpointTensor& tensor) const {
  return mapping(tensor.file)
      .bytes()
      .subspan(static_cast<std::size_t>(tensor.offset), static_cast<std::size_t>(tensor.bytes));
}

void Checkpoint::drop(const CheckpointTensor& tensor) const {
  mapping(tensor.file).drop(tensor.offset, tensor.bytes);
}

std::vector<TensorSpec> Checkpoint::whole_tensors() const {
  RESHARD_CHECK(state_->kind != Kind::ranks);
  if (state_->kind == Kind::dcp) return state_->pieces.tensors;
  std::vector<TensorSpec> all;
  for (const SafetensorsFile& file : state_->files)
    all.insert(all.end(), file.tensors().begin(), file.tensors().end());
  return all;
}

Result<> Checkpoint::rename(const std::vector<Renaming>& renamed) {
  RESHARD_CHECK(state_->kind == Kind::dcp && renamed.size() == state_->pieces.tensors.size());
  std::map<std::string, std::string> locals;
  for (TensorPiece& piece : state_->pieces.pieces) {
    const std::string& name = renamed[piece.tensor].name;
    if (name.empty()) continue;
    const std::size_t old = state_->pieces.tensors[piece.tensor].name.size();
    std::string local = name + piece.local.substr(old);
    locals.emplace(std::exchange(piece.local, local), local);
  }
  std::erase_if(state_->pieces.pieces,
                [&](const TensorPiece& piece) { return renamed[piece.tensor].name.empty(); });
  std::vector<std::size_t> place(renamed.size());
  std::vector<TensorSpec> tensors;
  for (std::size_t i = 0; i < renamed.size(); ++i) {
    TensorSpec& tensor = state_->pieces.tensors[i];
    place[i] = tensors.size();
    if (renamed[i].name.empty()) {
      state_->pieces.others.push_back({std::move(tensor.name), renamed[i].kind});
      continue;
    }
    tensor.name = renamed[i].name;
    tensors.push_back(std::move(tensor));
  }
  state_->pieces.tensors = std::move(tensors);
  for (TensorPiece& piece : state_->pieces.pieces) piece.tensor = place[piece.tensor];
  std::erase_if(state_->lists[0],
                [&](const CheckpointTensor& tensor) { return !locals.contains(tensor.name); });
  for (CheckpointTensor& tensor : state_->lists[0]) tensor.name = locals.at(tensor.name);
  return sort_pieces(state_->folder, state_->lists[0]);
}

const std::vector<CheckpointTensor>& Checkpoint::tensors() const {
  RESHARD_CHECK(state_->kind == Kind::hf);
  return state_->lists[0];
}

const std::vector<CheckpointTensor>& Checkpoint::tensors(Rank rank) const {
  RESHARD_CHECK(state_->kind != Kind::hf && rank.value() >= 0 && rank.value() < world_size());
  return state_->lists[state_->list_of_rank[rank.index()]];
}

Result<> Checkpoint::unchanged() const {
  for (std::size_t i = 0; i < num_files(); ++i) RESHARD_TRY(mapping(i).unchanged());
  return {};
}

std::optional<std::string> Checkpoint::config_path() const {
  const auto path = in_folder(state_->folder, kConfigFile);
  return exists(path) ? std::optional(path) : std::nullopt;
}

const CheckpointTensor* find_tensor(const std::vector<CheckpointTensor>& tensors,
                                    std::string_view name) {
  const auto at = std::lower_bound(tensors.begin(), tensors.end(), name,
                                   [](const auto& tensor, auto key) { return tensor.name < key; });
  return at != tensors.end() && at->name == name ? &*at : nullptr;
}

}  // namespace reshard
