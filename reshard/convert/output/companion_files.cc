// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/output/companion_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>

#include "reshard/io/checkpoint/index.h"
#include "reshard/io/files/json.h"
#include "reshard/io/files/mapped_file.h"

namespace reshard::output {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
constexpr std::string_view kTemplates = "additional_chat_templates";

constexpr const char* kLink = "links to files outside the checkpoint; copy what belongs to it";
constexpr const char* kOtherWeights = "other weights, or the state of a training";
constexpr const char* kOtherForm = "describes weights in another form than they have here";
constexpr const char* kFolder = "folders; copy what belongs to the model";
constexpr const char* kNoFile = "no regular files";
constexpr const char* kTooLarge = "larger than 64 MiB; copy what belongs to the model";
constexpr const char* kUnknown =
    "not known to belong to a model; copy what the engine or its tokenizer reads";

/// A name in lower case belongs to a kind of files by its end, its beginning, or words in it.
constexpr std::array<std::string_view, 13> kCopiedEnds = {
    ".py",    ".jinja", ".txt", ".model", ".tiktoken", ".vocab",    ".bpe",
    ".codes", ".spm",   ".j2",  ".tok",   ".tokens",   ".wordpiece"};
constexpr std::array<std::string_view, 9> kCopiedBeginnings = {
    "tokenizer", "chat_template", "license",    "licence",     "copying",
    "notice",    "readme",        "use_policy", "usage_policy"};
constexpr std::array<std::string_view, 9> kWordsOfJson = {"config",     "token",    "vocab",
                                                          "processor",  "template", "merges",
                                                          "normalizer", "tekken",   "modules"};
constexpr std::array<std::string_view, 24> kWeightsEnds = {
    ".safetensors", ".bin",    ".pt",      ".pth",       ".ckpt",      ".gguf",
    ".ggml",        ".h5",     ".msgpack", ".onnx",      ".onnx_data", ".ot",
    ".tflite",      ".npz",    ".npy",     ".distcp",    ".engine",    ".index.json",
    ".pkl",         ".pickle", ".mlmodel", ".llamafile", ".index",     ".data"};
constexpr std::array<std::string_view, 5> kOfOtherWeights = {
    "params.json", "adapter_config.json", "trainer_state.json", "latest", "latest_checkpointed"};
constexpr std::array<std::string_view, 4> kQuantisation = {
    "hf_quant_config.json", "quantize_config.json", "quant_config.json",
    "quantization_config.json"};

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}
bool ends(std::string_view name, std::span<const std::string_view> all) {
  return std::ranges::any_of(all, [&](std::string_view text) { return name.ends_with(text); });
}
bool begins(std::string_view name, std::span<const std::string_view> all) {
  return std::ranges::any_of(all, [&](std::string_view text) { return name.starts_with(text); });
}

std::string in_lower_case(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

/// Why a file of this name is not copied; null if it is.
const char* why_not(const std::string& name, bool as_stored) {
  const std::string lower = in_lower_case(name);
  if (is_one_of(lower, kQuantisation)) return as_stored ? nullptr : kOtherForm;
  if (is_one_of(lower, kOfOtherWeights) || ends(lower, kWeightsEnds)) return kOtherWeights;
  if (ends(lower, kCopiedEnds) || begins(lower, kCopiedBeginnings)) return nullptr;
  const bool json = lower.ends_with(".json");
  const bool known = std::ranges::any_of(
      kWordsOfJson, [&](std::string_view word) { return lower.find(word) != std::string::npos; });
  return json && known ? nullptr : kUnknown;
}

/// True for what belongs to the input's weights alone.
bool is_of_input(const std::string& name) {
  return name.starts_with('.') || name == kHfIndexFile || name == kRankIndexFile;
}

/// The names of the entries of a folder: those that are copied, and those that are left out.
struct Companions {
  std::vector<std::string> copied;
  std::vector<FileLeftOut> left_out;
};

/// Why an entry of the checkpoint's folder is not copied; null if it is.
const char* why_not_entry(const std::string& folder, const std::string& name, bool as_stored) {
  std::error_code error;
  const fs::path path = fs::path(folder) / name;
  if (fs::is_symlink(path, error) && !is_of_checkpoint(folder, name)) return kLink;
  if (!fs::is_regular_file(path, error)) return kNoFile;
  if (const char* why = why_not(fs::path(name).filename().string(), as_stored)) return why;
  const auto bytes = fs::file_size(path, error);
  return error || bytes > kMaxBytes ? kTooLarge : nullptr;
}

/// Adds what is in `below`, a folder in that of the checkpoint, or "" for the latter.
Result<> list(const std::string& folder, const std::string& below, const CompanionChoice& choice,
              Companions& out) {
  std::error_code error;
  const fs::path at = fs::path(folder) / below;
  for (fs::directory_iterator it(at, error), end; !error && it != end; it.increment(error)) {
    const std::string name = (fs::path(below) / it->path().filename()).string();
    if (choice.done.contains(name) || is_of_input(name)) continue;
    std::error_code unreadable;
    const bool is_folder = is_of_checkpoint(folder, name) && it->is_directory(unreadable);
    if (is_folder && name == kTemplates) {
      RESHARD_TRY(list(folder, name, choice, out));
    } else if (is_folder) {
      out.left_out.push_back({name + "/", kFolder});
    } else if (const char* why = why_not_entry(folder, name, choice.as_stored)) {
      out.left_out.push_back({name, why});
    } else {
      out.copied.push_back(name);
    }
  }
  if (error)
    return fail(Code::io,
                fmt::format("{}: cannot list the folder: {}", at.string(), error.message()));
  return {};
}

}  // namespace

Result<> copy_file_into(const std::string& path, std::string_view name, const std::string& folder) {
  struct stat status{};
  const bool empty =
      ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_size == 0;
  const auto text = empty ? std::string() : RESHARD_TRY(read_text_file(path, kMaxBytes));
  return write_new_text_file((fs::path(folder) / name).string(), text);
}

bool is_of_checkpoint(const std::string& folder, std::string_view name) {
  std::error_code error;
  const fs::path home = fs::canonical(folder, error);
  if (error) return false;
  const fs::path file = fs::canonical(home / name, error);
  if (error) return false;
  if (const auto inside = file.lexically_relative(home); *inside.begin() != "..") return true;
  // models--NAME/snapshots/REVISION/config.json -> ../../blobs/HASH
  return home.parent_path().filename() == "snapshots" &&
         file.parent_path() == home.parent_path().parent_path() / "blobs";
}

std::set<std::string> weight_files(const Checkpoint& weights) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < weights.num_files(); ++i)
    names.insert(fs::path(weights.mapping(i).path()).filename().string());
  // Of Megatron's dist_checkpointing: how the pieces are stored, and the state of the training.
  if (weights.kind() == Checkpoint::Kind::dcp) names.insert({"metadata.json", "common.pt"});
  return names;
}

Result<std::vector<FileLeftOut>> copy_companion_files(const std::string& from,
                                                      const std::string& to,
                                                      const CompanionChoice& choice) {
  Companions found;
  RESHARD_TRY(list(from, "", choice, found));
  std::ranges::sort(found.copied);
  std::ranges::sort(found.left_out, {}, &FileLeftOut::name);
  for (const std::string& name : found.copied) {
    std::error_code error;
    const fs::path folder = (fs::path(to) / name).parent_path();
    if (fs::create_directory(folder, error); error)
      return fail(Code::io, fmt::format("{}: cannot create the folder: {}", folder.string(),
                                        error.message()));
    RESHARD_TRY(copy_file_into((fs::path(from) / name).string(), name, to));
  }
  return found.left_out;
}

}  // namespace reshard::output
