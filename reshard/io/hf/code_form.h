// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/index/interval.h"

namespace reshard {

/// A form of weights that is read, but not written, as a quantization_config describes it.
struct CodeForm {
  enum class Method {
    awq,                 ///< X.qweight I32 [in, out / 8], X.qzeros, X.scales [groups, out].
    awq_gemv,            ///< X.qweight I32 [out, in / 8], X.qzeros, X.scales [out, groups], padded.
    gptq,                ///< X.qweight I32 [in / 8, out], X.qzeros, X.scales, X.g_idx I32 [in].
    compressed_tensors,  ///< X.weight_packed or X.weight I8, X.weight_scale, X.weight_zero_point,
                         ///< X.weight_g_idx, X.weight_shape.
    bitsandbytes,        ///< X.weight U8 and X.weight.*, or X.weight I8 and X.SCB.
    hqq,                 ///< X.W_q U8 or I32, X.scale, X.zero, X.shape and others.
    torchao,             ///< X._weight_qdata, X._weight_scale and others, by the files' metadata.
  };
  Method method = Method::awq;
  int bits = 4;          ///< of integers: 2, 3, 4 or 8.
  Index group_cols = 0;  ///< of AWQ and GPTQ, columns; 0: all of a row. Else the files say it.
  /// Bits and columns of groups of some modules, where a config says them by patterns.
  struct Integers {
    int bits = 4;
    Index group_cols = 0;
    friend bool operator==(const Integers&, const Integers&) = default;
  };
  std::vector<Integers> others = {};  ///< GPTQ's `dynamic`: each once, none that `bits` has.
  bool zeros_less_1 = false;          ///< GPTQ's first format: files hold zero points minus one.
  std::string text = {};              ///< for messages: "gptq, 4 bits in groups of 128".
  /// quant_method.
  std::string_view name() const;
};

/// Reads the quantization_config of a config.json. By quant_method:
///   awq                 version gemm or gemv, of 4 bits
///   gptq                2, 3, 4 or 8 bits, checkpoint_format gptq or gptq_v2; `dynamic` gives
///                       some modules other bits and groups, and its patterns are not read
///   compressed-tensors  integers of 4 or 8 bits, the same in all config_groups, pack-quantized or
///                       int-quantized
///   bitsandbytes        load_in_4bit (NF4, FP4) and load_in_8bit
///   hqq                 any whose scales and zero points are plain; the files say more
///   torchao             any; the metadata of the files say more
///
/// Errors begin with `source`: Code::unsupported for everything else; Code::corrupt for a value of
/// the wrong type.
Result<CodeForm> code_form(std::string_view text, std::string_view source = "config.json");

}  // namespace reshard
