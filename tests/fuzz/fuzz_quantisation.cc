// SPDX-License-Identifier: Apache-2.0
// Protects: a quantization_config is refused in one line, or says a form that kernels have; that
// form written is read again as the same; and tensors that contradict it are refused, not misread.
#include <cstdint>
#include <string_view>

#include "reshard/base/check.h"
#include "reshard/io/checkpoint/stored_model.h"
#include "reshard/io/hf/code_form.h"
#include "reshard/io/hf/quantization.h"
#include "reshard/model/quant/codes.h"
#include "reshard/transform/quantise.h"

namespace {

using namespace reshard;

void check_error(const Error& error) {
  RESHARD_CHECK(!error.message.empty() && error.message.find('\n') == std::string::npos);
}

/// Parts of quantised weights in many forms, some of which fit none.
const ModelSpec& stored_tensors() {
  static const ModelSpec kStored = [] {
    ModelSpec model;
    const auto add = [&](const char* name, Dims shape, DType dtype) {
      RESHARD_CHECK(model.add(name, shape, dtype).has_value());
    };
    add("a.weight", {64, 128}, DType::f8_e4m3);
    add("a.weight_scale", {64, 1}, DType::f32);
    add("a.weight_scale_inv", {1, 1}, DType::bf16);
    add("b.weight_packed", {64, 16}, DType::i32);
    add("b.weight_scale", {64, 4}, DType::bf16);
    add("b.weight_shape", {2}, DType::i64);
    add("c.weight_packed", {64, 64}, DType::u8);
    add("c.weight_scale", {64, 8}, DType::f8_e4m3);
    add("c.weight_global_scale", {1}, DType::f32);
    add("d_blocks", {2, 64, 4, 16}, DType::u8);
    add("d_scales", {2, 64, 4}, DType::u8);
    add("e.weight", {64, 128}, DType::i8);
    add("e.weight_scale", {64, 1}, DType::bf16);
    add("norm.weight", {64}, DType::bf16);
    return model;
  }();
  return kStored;
}

void check_written(std::string_view text, const StoredWeights& weights) {
  const auto written = config_of_quantised_weights(text, weights, {"lm_head"});
  if (!written) return check_error(written.error());
  const auto again = stored_weights(*written);
  RESHARD_CHECK(again.has_value());
  RESHARD_CHECK(again->method == weights.method && again->format == weights.format);
  const auto plain = config_of_quantised_weights(*written, *again, {});
  RESHARD_CHECK(plain.has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto said = said_quantisation(text); !said) check_error(said.error());
  if (const auto codes = code_form(text); !codes) check_error(codes.error());
  const auto weights = stored_weights(text);
  const auto beside = stored_weights_beside(text, "hf_quant_config.json");
  if (!beside) check_error(beside.error());
  if (!weights) return check_error(weights.error()), 0;
  RESHARD_CHECK(check_quant_format(weights->format, 1024, 1024).has_value());
  check_written(text, *weights);
  const auto plain =
      plain_tensors(stored_tensors(), weights->formats(), weights->method, DType::bf16);
  if (!plain) return check_error(plain.error()), 0;
  for (const std::string& name : plain->stored.tensors)
    RESHARD_CHECK(plain->tensors.find(name).has_value());
  return 0;
}
