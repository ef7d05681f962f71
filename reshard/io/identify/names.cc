// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "reshard/io/checkpoint/pieces.h"
#include "reshard/io/files/json.h"
#include "reshard/io/hf/config.h"
#include "reshard/io/identify/prefixes.h"
#include "reshard/io/identify/same_content.h"
#include "reshard/io/identify/tensor_lists.h"
#include "reshard/io/identify/trainer_state.h"
#include "reshard/model/names.h"
#include "reshard/model/naming/parameter_names.h"

namespace reshard::identify {
namespace {

/// A count that trainers keep as a tensor.
bool is_counter(const TensorSpec& tensor) {
  constexpr std::array<std::string_view, 4> kCounters = {"step", "global_step", "iteration",
                                                         "epoch"};
  const std::string_view name = tensor.name;
  const std::size_t dot = name.rfind('.');
  const std::string_view word = dot == std::string_view::npos ? name : name.substr(dot + 1);
  return volume(tensor.shape) == 1 && std::ranges::find(kCounters, word) != kCounters.end();
}

/// The names that the tensors of a checkpoint get.
class Namer {
 public:
  Namer(const Checkpoint& weights, const std::set<std::string>& ignore)
      : weights_(weights), tensors_(weights.pieces().tensors), out_(tensors_.size()) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      plain_.push_back(without_wrappers(tensors_[i].name));
      ignored_.push_back(matches_any(ignore, tensors_[i].name));
      if (is_trainer_state(plain_[i]) || is_counter(tensors_[i]))
        out_[i].kind = EntryKind::trainer_state;
    }
  }

  Result<std::string> find_prefix(const ModelConfig& config) const {
    auto found = model_prefixes(plain_names(true), config);
    if (found.size() > 1)
      if (auto asked = model_prefixes(plain_names(false), config); asked.size() == 1) found = asked;
    if (found.size() > 1) return wrong(Code::invalid_argument, ambiguous_prefixes(found));
    return found.empty() ? "" : found[0];
  }

  /// Names what is below the prefix.
  void take(const std::string& prefix) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (is_state(i)) continue;
      const std::string_view raw = tensors_[i].name, plain = plain_[i];
      if (raw.starts_with(prefix)) {
        out_[i].name = without_wrappers(raw.substr(prefix.size()));
      } else if (plain.starts_with(prefix)) {
        out_[i].name = plain.substr(prefix.size());
      }
    }
  }

  /// Refuses tensors outside that look like one of those that were taken.
  Result<> check_outside(const std::string& prefix, const ModelConfig& config) const {
    std::map<std::string_view, const TensorSpec*> inside;
    const std::string decoder = HfNames(config).decoder();
    for (std::size_t i = 0; i < out_.size(); ++i) {
      const std::string_view name = out_[i].name;
      if (!name.empty()) inside.emplace(name, &tensors_[i]);
      if (name.starts_with(decoder)) inside.emplace(name.substr(decoder.size()), &tensors_[i]);
    }
    std::vector<std::string_view> alike;
    for (std::size_t i = 0; i < out_.size(); ++i)
      if (out_[i].name.empty() && !is_state(i) && !ignored_[i] && is_alike(inside, i))
        alike.push_back(tensors_[i].name);
    if (alike.empty()) return {};
    return wrong(Code::invalid_argument,
                 fmt::format("'{}'{} outside of '{}' could be of the model, too; choose with "
                             "--prefix {} (prefix= in Python), or leave out others with --ignore",
                             alike[0],
                             alike.size() == 1 ? "" : fmt::format(" and {} more", alike.size() - 1),
                             prefix, prefix));
  }

  /// Keeps the first of the tensors with one name; the others must be equal, or to be ignored.
  Result<> settle_twice() {
    std::map<std::string, std::size_t> first;
    for (std::size_t i = 0; i < out_.size(); ++i) {
      if (out_[i].name.empty()) continue;
      const auto [at, fresh] = first.emplace(out_[i].name, i);
      if (fresh) continue;
      std::size_t kept = at->second, other = i;
      if (ignored_[kept]) std::swap(kept, other);
      at->second = kept;
      out_[other].name.clear();
      if (ignored_[other]) continue;
      out_[other].kind = EntryKind::copy;
      if (!same_content(weights_, tensors_[kept].name, tensors_[other].name))
        return wrong(Code::corrupt,
                     fmt::format("{} and {} are both '{}' without the names of wrappers, and "
                                 "differ; --ignore leaves one out",
                                 in_quotes(tensors_[kept].name), in_quotes(tensors_[other].name),
                                 out_[kept].name));
    }
    return {};
  }

  bool took_any() const {
    return std::ranges::any_of(out_, [](const auto& renamed) { return !renamed.name.empty(); });
  }
  const std::vector<Checkpoint::Renaming>& names() const { return out_; }
  tl::unexpected<Error> wrong(Code code, const std::string& message) const {
    return fail(code, fmt::format("{}: {}", weights_.folder(), message));
  }

 private:
  std::set<std::string> plain_names(bool with_ignored) const {
    std::set<std::string> names;
    for (std::size_t i = 0; i < plain_.size(); ++i)
      if (!is_state(i) && (with_ignored || !ignored_[i])) names.insert(plain_[i]);
    return names;
  }
  bool is_state(std::size_t i) const { return out_[i].kind == EntryKind::trainer_state; }

  /// True if the end of the tensor's name is the name of one inside, of the same shape.
  bool is_alike(const std::map<std::string_view, const TensorSpec*>& inside, std::size_t i) const {
    std::string_view end = plain_[i];
    while (true) {
      const auto found = inside.find(end);
      if (found != inside.end() && found->second->shape == tensors_[i].shape) return true;
      const std::size_t dot = end.find('.');
      if (dot == std::string_view::npos) return false;
      end.remove_prefix(dot + 1);
    }
  }

  const Checkpoint& weights_;
  const std::vector<TensorSpec>& tensors_;
  std::vector<std::string> plain_;  ///< their names without wrappers.
  std::vector<bool> ignored_;
  std::vector<Checkpoint::Renaming> out_;
};

/// Without a config: what begins with the prefix, as it is.
Result<> keep_prefix(Checkpoint& weights, const std::string& prefix) {
  std::vector<Checkpoint::Renaming> names;
  for (const TensorSpec& tensor : weights.pieces().tensors) {
    const bool kept = tensor.name.starts_with(prefix);
    names.push_back({kept ? tensor.name.substr(prefix.size()) : ""});
  }
  return weights.rename(names);
}

}  // namespace

Result<> take_names(Checkpoint& weights, const ModelOptions& options) {
  if (options.prefix && options.prefix->empty()) return {};
  const auto& tensors = weights.pieces().tensors;
  if (options.prefix && !tensors.empty() && std::ranges::none_of(tensors, [&](const TensorSpec& t) {
        return t.name.starts_with(*options.prefix) ||
               without_wrappers(t.name).starts_with(*options.prefix);
      }))
    return fail(Code::not_found,
                fmt::format("{}: no tensor's name begins with '{}'; the first is {}",
                            weights.folder(), *options.prefix, in_quotes(tensors[0].name)));
  const auto path = weights.config_path();
  const auto config = path ? read_config(*path) : fail(Code::not_found, "");
  if (!config) return options.prefix ? keep_prefix(weights, *options.prefix) : Result<>();
  Namer namer(weights, options.ignore);
  const std::string prefix =
      options.prefix ? *options.prefix : RESHARD_TRY(namer.find_prefix(*config));
  namer.take(prefix);
  if (!options.prefix && !prefix.empty()) RESHARD_TRY(namer.check_outside(prefix, *config));
  RESHARD_TRY(namer.settle_twice());
  if (!tensors.empty() && !namer.took_any())
    return namer.wrong(Code::not_found,
                       fmt::format("holds no weights, only what an optimizer or a trainer keeps, "
                                   "such as {}; open the folder of the model",
                                   in_quotes(tensors[0].name)));
  return weights.rename(namer.names());
}

Result<> check_unread(const Checkpoint& weights, const std::set<std::string>& ignore) {
  for (const CheckpointEntry& entry : weights.pieces().others)
    if (entry.kind == EntryKind::unread && !is_trainer_state(entry.name) &&
        !matches_any(ignore, entry.name))
      return fail(Code::invalid_argument,
                  fmt::format("{}: tensor {} is {}, which is not read; --ignore leaves it out",
                              weights.folder(), in_quotes(entry.name), entry.why));
  return {};
}

}  // namespace reshard::identify
