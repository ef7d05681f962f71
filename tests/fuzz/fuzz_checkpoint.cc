// SPDX-License-Identifier: Apache-2.0
// Protects: a checkpoint with an adapter is refused in one line, or its weights that are made of
// several tensors (codes of all forms that are read, low-rank changes) have values: no byte is read
// beyond those tensors.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/check.h"
#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/files/json.h"
#include "reshard/io/open_model.h"

namespace {

using namespace reshard;
namespace fs = std::filesystem;

constexpr Index kMaxData = 1 << 16, kMaxElements = 1 << 18;

/// A folder of this process for the checkpoint and the adapter.
const fs::path& folder() {
  static const fs::path kFolder = [] {
    std::string name = (fs::temp_directory_path() / "fuzz-checkpoint-XXXXXX").string();
    RESHARD_CHECK(::mkdtemp(name.data()) != nullptr);
    return fs::path(name);
  }();
  return kFolder;
}

void write(const char* name, std::string_view text) {
  std::ofstream(folder() / name, std::ios::binary) << text;
}

/// The bytes of data that a header asks for; 0 if it is none.
Index data_bytes(std::string_view header) {
  const auto json = parse_json(header);
  Index most = 0;
  if (!json || json->object() == nullptr) return most;
  for (const auto& [name, tensor] : *json->object())
    if (const Json* at = tensor.find("data_offsets"); at != nullptr && at->array() != nullptr)
      for (const Json& offset : *at->array()) most = std::max(most, offset.integer().value_or(0));
  return std::min(most, kMaxData);
}

void write_tensors(const char* name, std::string_view header, std::string_view pattern) {
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  file += header;
  if (pattern.empty()) pattern = "\1";
  for (auto left = static_cast<std::size_t>(data_bytes(header)); left > 0;) {
    file += pattern.substr(0, left);
    left -= std::min(left, pattern.size());
  }
  write(name, file);
}

void check_error(const Error& error) {
  RESHARD_CHECK(!error.message.empty() && error.message.find('\n') == std::string::npos);
}

void compute(const CanonicalTensor& t, const MergedTensor& values) {
  const Index count = volume(t.shape);
  if (count == 0 || count > kMaxElements) return;
  std::vector<std::byte> out(static_cast<std::size_t>(t.bytes()));
  merge(values, 0, count, t.dtype, out.data());
}

void compute_all(const Model& model) {
  for (const auto& [name, codes] : model.storage->decoded) {
    const auto id = model.tensors->find(name);
    const auto checked = check_codes(name, codes);
    if (!checked) check_error(checked.error());
    if (id && checked) compute((*model.tensors)[*id], {.base = codes});
  }
  for (const auto& [name, weight] : model.storage->merged) {
    const auto* codes = std::get_if<CodedTensor>(&weight.values.base);
    if (codes == nullptr || check_codes(name, *codes))
      compute((*model.tensors)[*model.tensors->find(name)], weight.values);
  }
}

}  // namespace

/// The input has five parts, one after another, with a line of "%" between them: config.json,
/// adapter_config.json, the headers of the checkpoint's and of the adapter's tensors, and bytes
/// that are repeated as the data of both.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::string_view parts[5];
  for (std::string_view& part : parts) {
    const auto end = rest.find("\n%\n");
    part = rest.substr(0, end);
    rest = end == std::string_view::npos ? "" : rest.substr(end + 3);
  }
  write("config.json", parts[0]);
  write("adapter_config.json", parts[1]);
  write_tensors("model.safetensors", parts[2], parts[4]);
  write_tensors("adapter_model.safetensors", parts[3], parts[4]);
  for (const bool merges : {false, true}) {
    ModelOptions options{.exact = false};
    if (merges) options.merge = {folder().string()};
    const auto model = open_checkpoint(folder().string(), options);
    if (!model)
      check_error(model.error());
    else
      compute_all(*model);
  }
  return 0;
}
