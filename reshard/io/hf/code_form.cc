// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/hf/code_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reshard/io/hf/compressed_tensors.h"
#include "reshard/io/hf/config_fields.h"

namespace reshard {
namespace {

using hf::ConfigFields;

constexpr Index kMaxSize = 1 << 20;

tl::unexpected<Error> unread_codes(std::string_view source, const std::string& what) {
  return fail(Code::unsupported,
              fmt::format("{}: quantization_config: {} is not supported", source, what));
}

/// Columns of a group, as transformers reads them: -1 is a whole row, the default 128.
Result<Index> columns_of_group(const ConfigFields& q, std::string_view name) {
  constexpr Index kDefault = 128;
  const Index said = RESHARD_TRY(q.integer(name)).value_or(kDefault);
  if (said == -1) return Index{0};
  return q.has(name) ? q.size(name, kMaxSize) : kDefault;
}

std::string described(Index bits, Index group) {
  return group == 0 ? fmt::format("{} bits", bits)
                    : fmt::format("{} bits in groups of {}", bits, group);
}

std::string in_lower_case(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return text;
}

Result<CodeForm> awq(const ConfigFields& q, std::string_view source) {
  CodeForm form{CodeForm::Method::awq};
  const auto bits = RESHARD_TRY(q.optional_size(q.has("w_bit") ? "w_bit" : "bits")).value_or(4);
  form.group_cols =
      RESHARD_TRY(columns_of_group(q, q.has("q_group_size") ? "q_group_size" : "group_size"));
  // GPTQModel says the version as `format`.
  const auto format = RESHARD_TRY(q.text("format"));
  const auto version =
      in_lower_case(RESHARD_TRY(q.text("version")).value_or(format.value_or("gemm")));
  if (format && in_lower_case(*format) != version)
    return unread_codes(source,
                        "awq, version " + as_word(version) + " and format " + as_word(*format));
  if (bits != 4) return unread_codes(source, fmt::format("awq of {} bits", bits));
  if (version != "gemm" && version != "gemv")
    return unread_codes(source, "awq, version " + as_word(version));
  if (version == "gemv") {
    form.method = CodeForm::Method::awq_gemv;
    if (form.group_cols != 0 && form.group_cols != 32 && form.group_cols != 64 &&
        form.group_cols < 128)
      return unread_codes(source,
                          fmt::format("awq, version gemv in groups of {}", form.group_cols));
  }
  form.text = version == "gemv" ? "awq gemv, " : "awq, ";
  form.text += described(bits, form.group_cols);
  return form;
}

bool is_gptq_bits(Index bits) { return bits == 2 || bits == 3 || bits == 4 || bits == 8; }

/// GPTQModel's rules for modules: "+:PATTERN" (or "PATTERN") changes what the config says,
/// "-:PATTERN" leaves modules plain. The files show which modules a rule is for.
Result<> take_dynamic(const ConfigFields& rules, std::string_view source, CodeForm& form) {
  // Most keys tell how codes were chosen, or what the files show as well.
  constexpr std::array<std::string_view, 14> kKnown = {
      "pack_dtype",      "bits",          "group_size", "sym",          "desc_act",
      "act_group_aware", "static_groups", "mse",        "damp_percent", "damp_auto_increment",
      "fallback",        "hessian",       "gptaq",      "foem"};
  const CodeForm::Integers usual{form.bits, form.group_cols};
  for (const std::string& pattern : rules.keys()) {
    if (pattern.starts_with("-:")) continue;
    const auto rule = RESHARD_TRY(rules.object(pattern));
    if (!rule) continue;
    const auto refuse = [&](const std::string& what) {
      return unread_codes(source, fmt::format("gptq, dynamic: {}: {}", in_quotes(pattern), what));
    };
    for (const std::string& key : rule->keys())
      if (std::ranges::find(kKnown, key) == kKnown.end()) return refuse(in_quotes(key));
    if (const auto words = RESHARD_TRY(rule->text("pack_dtype")).value_or("int32");
        words != "int32")
      return refuse("packed into " + as_word(words));
    CodeForm::Integers its = usual;
    if (const auto bits = RESHARD_TRY(rule->optional_size("bits", kMaxSize))) {
      if (!is_gptq_bits(*bits)) return refuse(fmt::format("{} bits", *bits));
      its.bits = static_cast<int>(*bits);
    }
    if (rule->has("group_size"))
      its.group_cols = RESHARD_TRY(columns_of_group(*rule, "group_size"));
    if (its != usual && std::ranges::find(form.others, its) == form.others.end())
      form.others.push_back(its);
  }
  return {};
}

Result<CodeForm> gptq(const ConfigFields& q, std::string_view source) {
  CodeForm form{CodeForm::Method::gptq};
  const Index bits = RESHARD_TRY(q.size("bits", kMaxSize));
  form.group_cols = RESHARD_TRY(columns_of_group(q, "group_size"));
  if (!is_gptq_bits(bits)) return unread_codes(source, fmt::format("gptq of {} bits", bits));
  if (const auto words = RESHARD_TRY(q.text("pack_dtype")).value_or("int32"); words != "int32")
    return unread_codes(source, "gptq packed into " + as_word(words));
  const auto format = RESHARD_TRY(q.text("format"));  // What newer programs call it.
  const auto layout = RESHARD_TRY(q.text("checkpoint_format")).value_or(format.value_or("gptq"));
  if ((layout != "gptq" && layout != "gptq_v2") || format.value_or(layout) != layout)
    return unread_codes(source, "gptq, checkpoint_format " + as_word(format.value_or(layout)));
  form.bits = static_cast<int>(bits);
  form.zeros_less_1 = layout == "gptq";
  form.text = layout + ", " + described(bits, form.group_cols);
  if (const auto rules = RESHARD_TRY(q.object("dynamic")))
    RESHARD_TRY(take_dynamic(*rules, source, form));
  for (const CodeForm::Integers& its : form.others)
    form.text += " or " + described(its.bits, its.group_cols);
  return form;
}

Result<CodeForm> compressed_tensors(const ConfigFields& q, std::string_view source) {
  RESHARD_TRY(hf::check_not_transformed(q, source));
  const auto groups = RESHARD_TRY(q.object("config_groups"));
  if (!groups || groups->empty())
    return unread_codes(source, "compressed-tensors without config_groups");
  const auto usual = RESHARD_TRY(q.text("format")).value_or("unknown");
  CodeForm form{CodeForm::Method::compressed_tensors, 0};
  std::string formats;
  for (const std::string& name : groups->keys()) {
    const auto found = groups->object(name);  // An error for presets, which are lists.
    const auto group = found ? *found : std::nullopt;
    const auto weights = group ? RESHARD_TRY(group->object("weights")) : std::nullopt;
    if (!weights)
      return unread_codes(source, fmt::format("group {} without weights", as_word(name)));
    const auto type = RESHARD_TRY(weights->text("type")).value_or("int");
    const auto format = RESHARD_TRY(group->text("format")).value_or(usual);
    if (type != "int" ||
        (format != "pack-quantized" && format != "int-quantized" && format != "naive-quantized"))
      return unread_codes(source, fmt::format("{} as {}", as_word(type), as_word(format)));
    const Index bits = RESHARD_TRY(weights->size("num_bits", kMaxSize));
    if ((bits != 4 && bits != 8) || (form.bits != 0 && form.bits != bits))
      return unread_codes(source, fmt::format("{} of {} bits", as_word(type), bits));
    form.bits = static_cast<int>(bits);
    if (formats.find(format) == std::string::npos)
      formats += (formats.empty() ? "" : " and ") + format;
  }
  form.text = fmt::format("compressed-tensors, {} of {} bits", formats, form.bits);
  return form;
}

Result<CodeForm> bitsandbytes(const ConfigFields& q, std::string_view source) {
  CodeForm form{CodeForm::Method::bitsandbytes};
  const bool of_4 = RESHARD_TRY(q.boolean("load_in_4bit", false));
  const bool of_8 = RESHARD_TRY(q.boolean("load_in_8bit", false));
  if (of_4 == of_8)
    return unread_codes(source, "bitsandbytes that says neither load_in_4bit nor load_in_8bit");
  form.text = of_4 ? "bitsandbytes, 4 bits" : "bitsandbytes, 8 bits";
  return form;
}

/// transformers' HqqConfig. Parameters by module, which have names of modules as keys, are in the
/// files too.
Result<CodeForm> hqq(const ConfigFields& q, std::string_view source) {
  CodeForm form{CodeForm::Method::hqq};
  form.text = "hqq";
  const auto how = RESHARD_TRY(q.object("quant_config"));
  if (!how) return form;
  for (const char* key : {"scale_quant_params", "zero_quant_params"})
    if (how->has(key)) return unread_codes(source, fmt::format("hqq with {}", key));
  const auto weights = RESHARD_TRY(how->object("weight_quant_params"));
  const auto bits = weights ? weights->integer("nbits") : std::optional<Index>();
  if (!bits || !*bits) return form;  // by module, or 1.58 bits
  const auto group = RESHARD_TRY(weights->optional_size("group_size", kMaxSize)).value_or(0);
  form.text += ", " + described(**bits, group);
  return form;
}

Result<CodeForm> torchao(const ConfigFields& q) {
  CodeForm form{CodeForm::Method::torchao};
  form.text = "torchao";
  if (q.text("quant_type")) return form;  // a name, as older configs have it
  const auto type = RESHARD_TRY(q.object("quant_type"));
  const auto usual = RESHARD_TRY(type->object("default"));
  const auto name = usual ? RESHARD_TRY(usual->text("_type")) : std::nullopt;
  if (name) form.text += ", " + as_word(*name);
  return form;
}

}  // namespace

std::string_view CodeForm::name() const {
  switch (method) {
    case Method::awq:
    case Method::awq_gemv: return "awq";
    case Method::gptq: return "gptq";
    case Method::compressed_tensors: return "compressed-tensors";
    case Method::bitsandbytes: return "bitsandbytes";
    case Method::hqq: return "hqq";
    case Method::torchao: return "torchao";
  }
  return "unknown";
}

Result<CodeForm> code_form(std::string_view text, std::string_view source) {
  const auto config = RESHARD_TRY(ConfigFields::parse(text, source));
  const auto q = RESHARD_TRY(config.object("quantization_config"));
  const auto method = q ? RESHARD_TRY(q->text("quant_method")).value_or("unknown") : "none";
  if (method == "awq") return awq(*q, source);
  if (method == "gptq") return gptq(*q, source);
  if (method == "compressed-tensors") return compressed_tensors(*q, source);
  if (method == "bitsandbytes") return bitsandbytes(*q, source);
  if (method == "hqq") return hqq(*q, source);
  if (method == "torchao") return torchao(*q);
  return unread_codes(source, "quant_method " + as_word(method));
}

}  // namespace reshard
