// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/stored_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "reshard/base/value_map.h"
#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/checkpoint/stored_model.h"
#include "reshard/io/files/json.h"
#include "reshard/io/hf/code_form.h"
#include "reshard/io/hf/config.h"
#include "reshard/io/hf/config_values.h"
#include "reshard/io/hf/quantization.h"
#include "reshard/io/identify/codes/decodings.h"
#include "reshard/io/identify/opaque.h"
#include "reshard/io/identify/tensor_lists.h"
#include "reshard/model/quant/notation.h"

namespace reshard::identify {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxModelConfigBytes = std::size_t{16} << 20;

/// Compares the shapes that are stored beside packed integers with those of their words. Errors: a
/// shape that differs.
Result<> check_packed_shapes(const Model& model, const PlainTensors& plain) {
  for (const std::string& tensor : plain.stored.tensors) {
    if (!has_packed_integers(plain.stored.format_of(tensor))) continue;
    const std::string name = name_of_packed_shape(tensor);
    const auto* const stored = find_tensor(model.weights->tensors(), name);
    if (stored == nullptr) continue;
    const Dims& shape = plain.tensors[*plain.tensors.find(tensor)].shape;
    const auto said = stored_sizes(*model.weights, *stored);
    if (!said || *said != std::array<std::int64_t, 2>{shape[0], shape[1]})
      return fail(Code::unsupported,
                  fmt::format("'{}' does not say {}, the shape of the words of '{}'; rows that do "
                              "not fill their last word cannot be quantised",
                              name, to_string(shape), tensor));
  }
  return {};
}

Result<StoredWeights> read_stored_weights(const Model& model) {
  const auto text = RESHARD_TRY(read_text_file(model.config_path, kMaxModelConfigBytes));
  const std::string beside = config_beside(model);
  if (beside.empty() || !RESHARD_TRY(said_quantisation(text, model.config_path)).method.empty())
    return stored_weights(text, model.config_path);
  const auto other = RESHARD_TRY(read_text_file(beside, kMaxModelConfigBytes));
  return stored_weights_beside(other, beside);
}

/// Formats that are also written.
Result<> take_formats(const std::string& method, DType values, ModelSpec& stored, Model& model) {
  auto weights = read_stored_weights(model);
  if (!weights)
    return fail(weights.error().code,
                fmt::format("{}; describe the tensors in a layout rules:FILE, or remove the key "
                            "where the weights are plain",
                            weights.error().message));
  if (weights->method == QuantMethod::fp8 && has_deepseek_scales(stored)) {
    weights->method = QuantMethod::deepseek_v4;
    weights->others.push_back(*quant_format_from_name("mxfp4"));
  }
  auto plain = plain_tensors(stored, weights->formats(), weights->method, values);
  if (!plain) return tl::unexpected(std::move(plain).error().in(model.name));
  if (auto same = check_packed_shapes(model, *plain); !same)
    return tl::unexpected(std::move(same).error().in(model.name));
  if (plain->stored.tensors.empty())
    return fail(
        Code::unsupported,
        fmt::format("{}: quantization_config says {}, but no tensor is stored as {}; remove "
                    "the key where the weights are plain",
                    model.config_path, in_quotes(method), to_string(weights->format)));
  stored = std::move(plain->tensors);
  model.stored = std::move(plain->stored);
  model.stored_method = weights->method;
  return {};
}

/// True if the codes can be moved: they are words of their own name, which say the weight's shape.
bool has_full_words(const std::pair<const std::string, CodedWeight>& named) {
  const CodedWeight& weight = named.second;
  return weight.word_bytes > 1 && weight.cols % weight.per_word() == 0;
}

/// Forms that are only read.
Result<> take_codes(DType values, ModelSpec& stored, Model& model) {
  const auto text = RESHARD_TRY(read_text_file(model.config_path, kMaxModelConfigBytes));
  const CodeForm form = RESHARD_TRY(code_form(text, model.config_path));
  auto decoded = decoded_tensors(stored, form, *model.weights, values);
  if (!decoded) return tl::unexpected(std::move(decoded).error().in(model.name));
  if (decoded->codes.empty())
    return fail(Code::unsupported,
                fmt::format("{}: quantization_config says {}, but no tensor is stored so; remove "
                            "the key where the weights are plain",
                            model.config_path, in_quotes(form.text)));
  stored = std::move(decoded->tensors);
  model.storage->decoded = std::move(decoded->codes);
  model.storage->decoded_from = form.text;
  if (is_code_form(form.name()) && std::ranges::all_of(decoded->weights, has_full_words))
    model.storage->codes =
        ModelCodes{std::string(form.name()), form.text, std::move(decoded->weights), {}};
  return {};
}

/// The codes of a checkpoint in ranks. The config beside it describes them.
Result<> take_codes_of_ranks(const LayoutSpec& spec, ModelSpec& stored, Model& model) {
  const std::string& quant = spec.keys.at("quant");
  const auto config_path = model.weights->config_path();
  const auto text = config_path ? RESHARD_TRY(read_text_file(*config_path, kMaxModelConfigBytes))
                                : std::string("{}");
  const CodeForm form =
      RESHARD_TRY(code_form(text, config_path.value_or(model.weights->folder() + "/config.json")));
  if (form.name() != quant)
    return fail(Code::corrupt,
                fmt::format("{}/reshard.json: layout '{}': the config beside it describes {}",
                            model.name, model.weights->layout(), form.text));
  const auto config = hf::read_config_values(*config_path);
  const DType values = config && config->dtype ? *config->dtype : DType::bf16;
  auto coded = coded_tensors(stored, form, values);
  if (!coded) return tl::unexpected(std::move(coded).error().in(model.name));
  if (!std::ranges::all_of(coded->weights, has_full_words))
    return fail(Code::corrupt,
                fmt::format("{}/reshard.json: lists codes in bytes, as {}", model.name, form.text));
  // vLLM's ranks hold no orders of columns: they were in order when the checkpoint was written.
  if (spec.family == "vllm")
    for (auto& [name, weight] : coded->weights) weight.in_order = true;
  stored = std::move(coded->tensors);
  model.storage->codes = ModelCodes{quant, form.text, std::move(coded->weights), {}};
  return {};
}

}  // namespace

std::string config_beside(const Model& model) {
  if (!model.weights || model.weights->kind() != Checkpoint::Kind::hf) return "";
  const auto path = fs::path(model.weights->folder()) / "hf_quant_config.json";
  std::error_code ignored;
  return fs::exists(path, ignored) ? path.string() : "";
}

Result<> take_scales(const std::string& method, DType values, ModelSpec& stored, Model& model) {
  if (model.stored || model.storage->codes) return {};  // its layout says it
  if (!model.weights || model.weights->kind() != Checkpoint::Kind::hf)
    return fail(Code::unsupported,
                fmt::format("{}: quantization_config says {}, which is read in files of Hugging "
                            "Face's layout only",
                            model.config_path, in_quotes(method)));
  auto taken = take_formats(method, values, stored, model);
  if (taken || taken.error().code != Code::unsupported) return taken;
  auto codes = take_codes(values, stored, model);
  // A form that is neither: the error is that of the reader for its method.
  const bool neither = !codes && codes.error().code == Code::unsupported;
  constexpr std::array<std::string_view, 5> kOnlyRead = {"awq", "gptq", "bitsandbytes", "hqq",
                                                         "torchao"};
  const bool only_read = std::ranges::find(kOnlyRead, method) != kOnlyRead.end();
  return neither && !only_read ? taken : codes;
}

void take_scales_of_unknown_class(Model& model) {
  const SaidQuantisation said = said_of(model);
  if (said.method.empty() || is_left_over(*model.tensors, said)) return;
  const auto config = hf::read_config_values(model.config_path);
  if (!config) return;
  const auto as_stored = model.tensors;
  ModelSpec plain = *as_stored;
  if (take_scales(said.method, config->dtype.value_or(DType::bf16), plain, model)) {
    model.tensors = std::make_shared<ModelSpec>(std::move(plain));
    note_opaque(model);
    if (model.opaque.empty()) return;
  }
  model.tensors = as_stored;
  model.forget_stored();
}

std::vector<CanonicalTensor> take_activation_scales(ModelSpec& stored) {
  std::vector<CanonicalTensor> scales;
  std::vector<std::string> names;
  for (const CanonicalTensor& t : stored.tensors()) {
    if (!is_activation_scale(t, stored)) continue;
    scales.push_back(t);
    names.push_back(t.name);
  }
  if (!names.empty()) stored = without(stored, names);
  return scales;
}

Result<> take_scales_of_ranks(ModelSpec& stored, Model& model) {
  auto spec = parse_layout(model.weights->layout());
  if (!spec) return {};  // own_layout() says what is wrong with it
  if (const auto quant = spec->keys.find("quant");
      quant != spec->keys.end() && is_code_form(quant->second))
    return take_codes_of_ranks(*spec, stored, model);
  const auto notation = take_quant(*spec);
  if (!notation || !*notation) return {};
  if ((*notation)->as_stored)
    return fail(Code::corrupt, fmt::format("{}/reshard.json: layout '{}': quant=stored names no "
                                           "format; a checkpoint in ranks says which it is",
                                           model.name, model.weights->layout()));
  const auto config_path = model.weights->config_path();
  const auto config = config_path ? read_config(*config_path) : fail(Code::not_found, "");
  const StoredFormats formats{{(*notation)->format}, {}};
  auto plain = plain_tensors(stored, formats, std::nullopt, config ? config->dtype : DType::bf16);
  if (!plain) return tl::unexpected(std::move(plain).error().in(model.name));
  stored = std::move(plain->tensors);
  model.stored = std::move(plain->stored);
  return {};
}

}  // namespace reshard::identify
