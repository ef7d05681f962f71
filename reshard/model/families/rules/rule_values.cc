// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/rules/rule_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "reshard/base/closest_name.h"
#include "reshard/base/value_map.h"
#include "reshard/model/config.h"
#include "reshard/model/config_values.h"

namespace reshard::families {
namespace {

Index count(const std::vector<LayerKind>& kinds, Mixer mixer) {
  return std::ranges::count(kinds, mixer, &LayerKind::mixer);
}

Index count(const std::vector<LayerKind>& kinds, Ffn ffn) {
  return std::ranges::count(kinds, ffn, &LayerKind::ffn);
}

/// The numbers of layers of each kind: "layers.experts".
void add_kinds(const std::vector<LayerKind>& kinds, Index times, const std::string& front,
               std::map<std::string, Index, std::less<>>& out) {
  out[front + "attention"] = times * count(kinds, Mixer::attention);
  out[front + "mla"] = times * count(kinds, Mixer::mla);
  out[front + "mamba2"] = times * count(kinds, Mixer::mamba2);
  out[front + "gated_delta"] = times * count(kinds, Mixer::gated_delta);
  out[front + "dense"] = times * count(kinds, Ffn::dense);
  out[front + "experts"] = times * count(kinds, Ffn::experts);
}

}  // namespace

Result<std::string> filled(std::string_view text,
                           const std::function<Result<std::string>(std::string_view)>& value) {
  std::string out;
  while (!text.empty()) {
    const std::size_t open = std::min(text.find('{'), text.size());
    out += text.substr(0, open);
    text.remove_prefix(open);
    if (text.empty()) break;
    const std::size_t close = text.find('}');
    if (close == text.npos)
      return fail(Code::corrupt, fmt::format("'{}' lacks a closing brace", text));
    out += RESHARD_TRY(value(text.substr(1, close - 1)));
    text.remove_prefix(close + 1);
  }
  return out;
}

RuleValues::RuleValues(const LayoutSpec& spec, const FamilyInput& input, const RuleSet& rules)
    : spec_(spec), input_(input), rules_(rules) {
  if (input.values != nullptr) config_dtype_ = input.values->dtype;
  if (rules.card && input.config != nullptr) add_config();
}

void RuleValues::add_config() {
  const ModelConfig& c = *input_.config;
  config_dtype_ = c.has_dtype && is_convertible(c.dtype) ? std::optional(c.dtype) : std::nullopt;
  numbers_ = {{"hidden_size", c.hidden_size},
              {"intermediate_size", c.intermediate_size},
              {"num_hidden_layers", c.num_hidden_layers},
              {"num_attention_heads", c.num_attention_heads},
              {"num_key_value_heads", c.num_key_value_heads},
              {"head_dim", c.head_dim},
              {"vocab_size", c.vocab_size},
              {"tie_word_embeddings", c.tie_word_embeddings},
              {"num_experts", c.num_experts},
              {"moe_intermediate_size", c.moe_intermediate_size},
              {"shared_expert_size", c.shared_expert_size},
              {"q_lora_rank", c.mla.q_rank},
              {"mamba_num_heads", c.mamba2.heads},
              {"mamba_head_dim", c.mamba2.head_dim},
              {"n_groups", c.mamba2.groups},
              {"ssm_state_size", c.mamba2.state},
              {"linear_num_key_heads", c.gated_delta.key_heads},
              {"linear_num_value_heads", c.gated_delta.value_heads},
              {"linear_key_head_dim", c.gated_delta.key_dim},
              {"linear_value_head_dim", c.gated_delta.value_dim},
              {"num_mtp", c.num_mtp},
              {"is_bare", c.is_bare}};
  add_kinds(c.layers, 1, "layers.", numbers_);
  add_kinds(c.mtp_block, c.num_mtp, "mtp_layers.", numbers_);
}

void RuleValues::read_keys(ErrorList& wrong) {
  std::set<std::string> known{"offset", "dtype"};
  for (const RuleSet::MeshAxis& axis : rules_.axes)
    if (!axis.of) known.insert(axis.name);
  for (const RuleSet::Key& key : rules_.keys) known.insert(key.name);
  wrong.add(spec_.check_keys(known));
  for (const RuleSet::MeshAxis& axis : rules_.axes)
    if (!axis.of && !has(axis.name))
      set(axis.name, wrong.take(spec_.integer(axis.name, axis.size), axis.size));
  for (const RuleSet::Key& key : rules_.keys) read_key(key, wrong);
  for (const RuleSet::Text& text : rules_.texts) texts_.emplace(text.name, text.is);
  const auto dtype = spec_.dtype();
  const bool other = dtype && *dtype && config_dtype_ && **dtype != *config_dtype_;
  set("said.other_dtype", other ? 1 : 0);
  set("expert_block", input_.expert_block);
}

void RuleValues::read_key(const RuleSet::Key& key, ErrorList& wrong) {
  const auto said = spec_.keys.find(key.name);
  set("said." + key.name, said != spec_.keys.end() ? 1 : 0);
  if (key.file) return set(key.name, said != spec_.keys.end() ? 1 : 0);
  // Cards divide by their keys.
  const Index least = rules_.card ? std::min<Index>(key.otherwise, 1) : 0;
  if (key.words.empty())
    return set(key.name, wrong.take(spec_.integer(key.name, key.otherwise, least), key.otherwise));
  std::size_t chosen = 0;
  if (said != spec_.keys.end()) {
    const auto at = std::ranges::find(key.words, said->second);
    const std::vector<std::string_view> words(key.words.begin(), key.words.end());
    if (at == key.words.end())
      wrong.refuse(fmt::format("{}={} must be one of {}{}", key.name, said->second,
                               fmt::join(key.words, ", "), did_you_mean(said->second, words)));
    else
      chosen = static_cast<std::size_t>(at - key.words.begin());
  }
  set(key.name, static_cast<Index>(chosen));
  for (std::size_t i = 0; i < key.words.size(); ++i)
    set(key.name + "." + key.words[i], i == chosen ? 1 : 0);
  if (!key.texts.empty()) texts_.emplace(key.name, key.texts[chosen]);
}

Result<> RuleValues::read_let() {
  for (const RuleSet::Number& number : rules_.let)
    if (!has(number.name))
      set(number.name, RESHARD_TRY(number.is.value(
                           [this](std::string_view name) { return this->number(name); })));
  return {};
}

void RuleValues::check(ErrorList& wrong) const {
  const auto lookup = [this](std::string_view name) { return number(name); };
  for (const bool unsupported : {true, false})  // the code is that of the first
    for (const RuleSet::Requirement& required : rules_.require) {
      if (required.unsupported != unsupported) continue;
      const auto holds = required.that.value(lookup);
      if (!holds) wrong.add(holds);
      if (!holds || *holds != 0) continue;
      auto says = message(required.says);
      if (!says)
        wrong.add(says);
      else
        wrong.add(fail(unsupported ? Code::unsupported : Code::invalid_argument, *std::move(says)));
    }
}

std::optional<std::int64_t> RuleValues::number(std::string_view name) const {
  if (const auto own = numbers_.find(name); own != numbers_.end()) return own->second;
  if (input_.values == nullptr) return std::nullopt;
  const auto found = input_.values->numbers.find(name);
  return found == input_.values->numbers.end() ? std::nullopt : std::optional(found->second);
}

Result<std::string> RuleValues::named(std::string_view text) const {
  return filled(text, [this](std::string_view name) -> Result<std::string> {
    if (const auto found = texts_.find(name); found != texts_.end()) return found->second;
    return fail(Code::invalid_argument, fmt::format("the file has no text '{}'", name));
  });
}

Result<std::string> RuleValues::message(std::string_view text) const {
  return filled(text, [this](std::string_view what) -> Result<std::string> {
    if (what == "architecture" && input_.config != nullptr) return input_.config->architecture;
    if (what == "dtype") {
      const auto said = spec_.keys.find("dtype");
      return said == spec_.keys.end() ? "the default" : said->second;
    }
    if (what == "config_dtype" && config_dtype_) return std::string(name(*config_dtype_));
    const Expression number = RESHARD_TRY(Expression::parse(what));
    return fmt::to_string(
        RESHARD_TRY(number.value([this](std::string_view n) { return this->number(n); })));
  });
}

}  // namespace reshard::families
