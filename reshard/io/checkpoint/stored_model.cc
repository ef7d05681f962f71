// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/checkpoint/stored_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "reshard/model/quant/notation.h"

namespace reshard {
namespace {

constexpr std::string_view kFactor = "_scale_2", kWeight = ".weight";

/// The quantised data of one tensor, as a checkpoint stores it.
struct Found {
  std::string tensor;  ///< its name if it were plain.
  Dims stored;         ///< shape of the stored data, in elements.
  Dims plain;          ///< shape of the plain tensor in a checkpoint.
  bool input_first = false;
};

/// gpt-oss' X_blocks [matrices, out, in / 32, 16], two elements per byte.
std::optional<Found> found_mxfp4(const CanonicalTensor& t) {
  constexpr std::string_view kBlocks = "_blocks";
  constexpr Index kBytes = 16;
  if (t.dtype != DType::u8 || t.shape.size() != 4 || t.shape[3] != kBytes ||
      !t.name.ends_with(kBlocks))
    return std::nullopt;
  const Index cols = t.shape[2] * kBytes * 2;  // as many bits as before: it fits
  return Found{t.name.substr(0, t.name.size() - kBlocks.size()),
               {t.shape[0], t.shape[1], cols},
               {t.shape[0], cols, t.shape[1]},
               true};
}

/// Several elements per byte or word, under the method's name.
std::optional<Found> found_packed(const CanonicalTensor& t, const QuantFormat& format,
                                  QuantMethod method) {
  const std::string_view end = method == QuantMethod::compressed_tensors ? "_packed" : "";
  const DType dtype = has_packed_integers(format) ? DType::i32 : DType::u8;
  if (t.dtype != dtype || t.shape.size() != 2 ||
      !t.name.ends_with(std::string(kWeight).append(end)))
    return std::nullopt;
  Found found{t.name.substr(0, t.name.size() - end.size()), t.shape, t.shape};
  // As many bits as before, or fewer: it fits.
  found.stored[1] = found.plain[1] = t.shape[1] * packed_together(format);
  return found;
}

/// A checkpoint of local tensors lists them as the layout stores them: input dimension last.
std::optional<Found> found_as_it_is(const ModelSpec& stored, const CanonicalTensor& t,
                                    const QuantFormat& format) {
  if (t.dtype != format.data || t.shape.size() < 2) return std::nullopt;
  Found found{t.name, t.shape, t.shape, input_first_tensors(stored).contains(t.name)};
  const int n = t.shape.size();
  if (found.input_first) std::swap(found.plain[n - 2], found.plain[n - 1]);
  return found;
}

std::optional<Found> found(const ModelSpec& stored, const CanonicalTensor& t,
                           const QuantFormat& format, std::optional<QuantMethod> method) {
  if (method == QuantMethod::mxfp4) return found_mxfp4(t);
  if (method && packed_together(format) > 1) return found_packed(t, format, *method);
  return found_as_it_is(stored, t, format);
}

Dims blocks_of(const Found& found, Index rows, Index cols) {
  const auto up = [](Index n, Index block) {
    return block == 0 ? Index{1} : (n + block - 1) / block;
  };
  Dims shape = found.stored;
  const int n = shape.size();
  shape[n - 2] = up(shape[n - 2], rows);
  shape[n - 1] = up(shape[n - 1], cols);
  return shape;
}

Result<> check_beside(const ModelSpec& stored, const std::string& tensor, const QuantFormat& format,
                      const FileTensor& want) {
  const auto id = stored.find(want.name);
  if (!id)
    return fail(Code::corrupt, fmt::format("'{}' is stored as {} without its scales '{}'", tensor,
                                           reshard::name(format.data), want.name));
  const CanonicalTensor& s = stored[*id];
  if (same_shape(s.shape, want.shape) && reads_as(s.dtype, want.dtype, format)) return {};
  return fail(Code::corrupt, fmt::format("'{}' is {} {}; the scales of '{}' must be {} {}",
                                         want.name, reshard::name(s.dtype), to_string(s.shape),
                                         tensor, reshard::name(want.dtype), to_string(want.shape)));
}

/// Separates quantised data from scales and factors.
class Separator {
 public:
  Separator(const ModelSpec& stored, const QuantFormat& format, std::optional<QuantMethod> method)
      : stored_(stored), method_(method) {
    choice_.format = format;
    choice_.grid = BlockGrid::tensor;
  }

  Result<PlainTensors> run(DType values) {
    std::vector<std::optional<Found>> data;
    for (const CanonicalTensor& t : stored_.tensors()) {
      data.push_back(found(stored_, t, choice_.format, method_));
      if (data.back()) RESHARD_TRY(add(*data.back()));
    }
    PlainTensors out;
    for (std::size_t i = 0; i < data.size(); ++i) {
      const CanonicalTensor& t = stored_.tensors()[i];
      if (beside_.contains(t.name)) continue;
      RESHARD_TRY(data[i] ? out.tensors.add(data[i]->tensor, data[i]->plain, values)
                          : out.tensors.add(t.name, t.shape, t.dtype, t.merged));
    }
    out.stored = std::move(choice_);
    return out;
  }

 private:
  Result<> add(const Found& found) {
    const QuantFormat& f = choice_.format;
    RESHARD_TRY(take(found, QuantPart::scales, scale_suffix(f), f.scale,
                     blocks_of(found, f.block_rows, f.block_cols)));
    if (f.tensor_factor)
      RESHARD_TRY(
          take(found, QuantPart::factor, std::string(kFactor), DType::f32, blocks_of(found, 0, 0)));
    if (has_packed_integers(f)) RESHARD_TRY(check_integers(found));
    choice_.tensors.insert(found.tensor);
    if (found.input_first) choice_.input_first.insert(found.tensor);
    return {};
  }

  /// Takes out the tensor that says the shape of packed integers, if there is one. Errors: a zero
  /// point or a table of the order of columns, which are not read.
  Result<> check_integers(const Found& found) {
    for (const char* end : {"_zero_point", "_g_idx"})
      if (stored_.find(found.tensor + end))
        return fail(Code::unsupported,
                    fmt::format("'{}{}' is not read: weights must be symmetric, with groups in the "
                                "order of their columns",
                                found.tensor, end));
    const std::string name = name_of_packed_shape(found.tensor);
    if (const auto id = stored_.find(name); id && volume(stored_[*id].shape) == 2)
      beside_.insert(name);
    return {};
  }

  Result<> take(const Found& found, QuantPart part, const std::string& suffix, DType dtype,
                const Dims& shape) {
    FileTensor want{found.tensor + suffix, dtype, shape};
    if (method_)
      want = RESHARD_TRY(in_files(*method_, choice_.format, part, found.tensor, dtype, shape));
    RESHARD_TRY(check_beside(stored_, found.tensor, choice_.format, want));
    beside_.insert(want.name);
    return {};
  }

  const ModelSpec& stored_;
  std::optional<QuantMethod> method_;
  QuantChoice choice_;
  std::set<std::string> beside_;
};

}  // namespace

Result<PlainTensors> plain_tensors(const ModelSpec& stored, const QuantFormat& format,
                                   std::optional<QuantMethod> method, DType values) {
  return Separator(stored, format, method).run(values);
}

bool is_cache_scale(const CanonicalTensor& tensor) {
  return volume(tensor.shape) == 1 && names_cache_scale(tensor.name);
}

bool is_activation_scale(const CanonicalTensor& tensor, const ModelSpec& stored) {
  if (volume(tensor.shape) != 1) return false;
  if (is_input_scale(tensor.name)) {
    const auto module = tensor.name.substr(0, tensor.name.rfind('.'));
    return stored.find(module + std::string(kWeight)).has_value();
  }
  return is_cache_scale(tensor);
}

namespace {

/// @pre `weight` is "X.weight"
std::string input_scale_of(const std::string& weight) {
  return weight.substr(0, weight.rfind('.')) + ".input_scale";
}

}  // namespace

bool has_input_scales(const ModelSpec& tensors, const std::set<std::string>& weights) {
  return !weights.empty() && std::ranges::all_of(weights, [&](const std::string& weight) {
    return tensors.find(input_scale_of(weight)).has_value();
  });
}

bool has_input_scales(const ModelLayout& layout, const std::set<std::string>& weights) {
  return has_input_scales(layout.model(), weights) &&
         std::ranges::none_of(weights, [&](const std::string& weight) {
           return layout.omits(*layout.model().find(input_scale_of(weight)));
         });
}

std::vector<std::string> plain_modules(const ModelSpec& values, const QuantChoice& choice) {
  std::vector<std::string> names;
  for (const CanonicalTensor& t : values.tensors())
    if (t.shape.size() == 2 && t.name.ends_with(kWeight) && !choice.tensors.contains(t.name) &&
        t.name.find("embed") == std::string::npos)
      names.push_back(t.name.substr(0, t.name.size() - kWeight.size()));
  return names;
}

}  // namespace reshard
