// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/copies.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/identify/same_content.h"
#include "reshard/io/identify/tensor_lists.h"
#include "reshard/model/names.h"

namespace reshard::identify {
namespace {

/// Some writers store a tensor again under another name. Checks that the copy is equal; the error
/// ends with `advice`. @return whether the copy exists
Result<bool> check_copy(const Checkpoint& checkpoint, const std::string& copy,
                        const std::string& original, const std::string& advice) {
  const auto is_stored = [&](const std::string& name) {
    return !stored_as(checkpoint, name).empty();
  };
  if (!is_stored(copy) || !is_stored(original)) return is_stored(copy);
  if (same_content(checkpoint, copy, original)) return true;
  return fail(Code::corrupt,
              fmt::format("'{}' is stored and differs from '{}'; {}", copy, original, advice));
}

}  // namespace

Result<> take_copies(const Model& model, ModelConfig& config, ModelSpec& stored) {
  if (!model.weights) return {};
  const Checkpoint& checkpoint = *model.weights;
  if (checkpoint.kind() == Checkpoint::Kind::ranks) return {};
  const HfNames names(config);
  std::vector<std::string> copies;
  if (config.tie_word_embeddings && model.storage->decoded.contains(names.lm_head()))
    return fail(Code::unsupported,
                fmt::format("{}: tie_word_embeddings is true, but '{}' is stored by itself, as {}; "
                            "set it to false",
                            model.config_path, names.lm_head(), model.storage->decoded_from));
  if (config.tie_word_embeddings && stored.find(names.lm_head())) {
    auto head = check_copy(checkpoint, names.lm_head(), names.embedding(),
                           "tie_word_embeddings is true: set it to false or remove the tensor");
    if (!head) return tl::unexpected(std::move(head).error().in(model.config_path));
    copies.push_back(names.lm_head());
  }
  for (const auto& [alias, name] : names.aliases()) {
    auto there =
        check_copy(checkpoint, alias, name,
                   "modules for multi-token prediction share that tensor: remove the copy, "
                   "or the config.json, without which rules:FILE reads all tensors");
    if (!there) return tl::unexpected(std::move(there).error().in(model.name));
    if (*there) copies.push_back(alias);
    if (!*there) config.mtp_copies = false;
  }
  if (!copies.empty()) stored = without(stored, copies);
  return {};
}

}  // namespace reshard::identify
