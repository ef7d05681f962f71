// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/output/written_config.h"

#include <fmt/format.h>

#include <utility>

#include "reshard/base/check.h"
#include "reshard/io/checkpoint/stored_model.h"
#include "reshard/io/files/json.h"
#include "reshard/io/hf/config.h"
#include "reshard/io/hf/quantization.h"
#include "reshard/io/layout_side.h"

namespace reshard::output {
namespace {

constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;

/// How the weights are stored, as the config says it; none: as the input's does.
Result<std::optional<std::string>> described_weights(const Model& model, const std::string& text,
                                                     bool is_hf, const LayoutSide& side,
                                                     bool as_stored) {
  if (!side.quantised && !model.is_dequantised() && model.left_over.empty())
    return std::optional<std::string>();
  // Weights that are copied as they are keep their config.
  const bool same = is_hf && as_stored && model.stored_method && side.method == model.stored_method;
  // Only quant=stored mixes formats. If the config has no section about them, a file beside it has
  // one, and `convert` copies that file.
  const bool mixed = side.quantised && !side.quantised->choice.others.empty();
  if (same && (mixed || stored_weights(text))) return std::optional<std::string>();
  RESHARD_CHECK(!mixed);
  if (!is_hf || !side.quantised)
    return RESHARD_TRY(config_of_plain_weights(text, model.config_path));
  const QuantChoice& choice = side.quantised->choice;
  const StoredWeights weights{*side.method, choice.format,
                              has_input_scales(*side.stored(), choice.tensors)};
  return RESHARD_TRY(config_of_quantised_weights(
      text, weights, plain_modules(*model.tensors, choice), model.config_path));
}

}  // namespace

Result<WrittenConfig> written_config(const Model& model, const std::string& family,
                                     const LayoutSide& side, bool as_stored) {
  WrittenConfig out;
  if (model.config_path.empty() || !model.opaque.empty() || side.as_codes) return out;
  const auto text = RESHARD_TRY(read_text_file(model.config_path, kMaxConfigBytes));
  const bool is_hf = family == "hf";
  out.text = RESHARD_TRY(described_weights(model, text, is_hf, side, as_stored));
  if (!model.left_over.empty())
    out.notes.push_back("config.json: left out its quantization_config: " + model.left_over);
  if (!is_hf && family != "dcp" && family != "torch_dist") return out;
  const auto dtype = usual_dtype(*side.values);
  if (!dtype) return out;
  auto named = RESHARD_TRY(config_of_dtype(out.text.value_or(text), *dtype, model.config_path));
  if (named.said.empty()) return out;
  out.notes.push_back(
      fmt::format("config.json: its dtype is {} now, as most values are stored; it was {}",
                  named.dtype, named.said));
  out.text = std::move(named.text);
  return out;
}

}  // namespace reshard::output
