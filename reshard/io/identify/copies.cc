// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "reshard/io/identify/tensor_lists.h"
#include "reshard/model/names.h"

namespace reshard::identify {
namespace {

/// A box of a tensor as it is stored.
struct StoredPiece {
  Box box;
  Dims order;  ///< of its dimensions in memory.
  const CheckpointTensor* tensor = nullptr;
};

/// The pieces of a tensor by where they lie in it; one if it is stored whole, none if it is not
/// stored.
std::vector<StoredPiece> stored_as(const Checkpoint& checkpoint, const std::string& name) {
  std::vector<StoredPiece> out;
  if (checkpoint.kind() == Checkpoint::Kind::hf) {
    const auto* whole = find_tensor(checkpoint.tensors(), name);
    if (whole != nullptr) out.push_back({Box::whole(whole->shape), whole->shape, whole});
    return out;
  }
  const TensorPieces& pieces = checkpoint.pieces();
  for (const TensorPiece& piece : pieces.pieces)
    if (pieces.tensors[piece.tensor].name == name)
      out.push_back(
          {piece.box, piece.order, find_tensor(checkpoint.tensors(Rank(0)), piece.local)});
  std::ranges::sort(out, [](const auto& x, const auto& y) { return before(x.box, y.box); });
  return out;
}

bool same_bytes(const Checkpoint& checkpoint, const StoredPiece& a, const StoredPiece& b) {
  const auto bytes = checkpoint.data(*a.tensor), other = checkpoint.data(*b.tensor);
  const bool same = a.tensor->dtype == b.tensor->dtype && a.box == b.box && a.order == b.order &&
                    std::memcmp(bytes.data(), other.data(), bytes.size()) == 0;
  checkpoint.drop(*a.tensor);
  checkpoint.drop(*b.tensor);
  return same;
}

/// Some writers store a tensor again under another name. Checks that the copy is equal; the error
/// ends with `advice`. @return whether the copy exists
Result<bool> check_copy(const Checkpoint& checkpoint, const std::string& copy,
                        const std::string& original, const std::string& advice) {
  const auto a = stored_as(checkpoint, copy), b = stored_as(checkpoint, original);
  if (a.empty() || b.empty()) return !a.empty();
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) same = same_bytes(checkpoint, a[i], b[i]);
  if (same) return true;
  return fail(Code::corrupt,
              fmt::format("'{}' is stored and differs from '{}'; {}", copy, original, advice));
}

}  // namespace

Result<> take_copies(const Model& model, ModelConfig& config, ModelSpec& stored) {
  const Checkpoint& checkpoint = *model.weights;
  if (checkpoint.kind() == Checkpoint::Kind::ranks) return {};
  const HfNames names(config);
  std::vector<std::string> copies;
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
