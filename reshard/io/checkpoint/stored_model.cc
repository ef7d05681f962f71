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

/// MXFP4 of DeepSeek-V4: bytes of two elements as I8.
std::optional<Found> found_deepseek_v4(const CanonicalTensor& t) {
  if (t.dtype != DType::i8 || t.shape.size() != 2 || !t.name.ends_with(kWeight))
    return std::nullopt;
  const Dims shape{t.shape[0], t.shape[1] * 2};  // as many bits as before: it fits
  return Found{t.name, shape, shape};
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
  if (method == QuantMethod::deepseek_v4 && format.data == DType::f4) return found_deepseek_v4(t);
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
  Separator(const ModelSpec& stored, const StoredFormats& formats,
            std::optional<QuantMethod> method)
      : stored_(stored), formats_(formats), method_(method) {
    choice_.grid = BlockGrid::tensor;
  }

  Result<PlainTensors> run(DType values) {
    std::vector<std::optional<Found>> data;
    for (const CanonicalTensor& t : stored_.tensors()) data.push_back(RESHARD_TRY(add(t)));
    PlainTensors out;
    for (std::size_t i = 0; i < data.size(); ++i) {
      const CanonicalTensor& t = stored_.tensors()[i];
      if (beside_.contains(t.name)) continue;
      RESHARD_TRY(data[i] ? out.tensors.add(data[i]->tensor, data[i]->plain, values)
                          : out.tensors.add(t.name, t.shape, t.dtype, t.merged));
    }
    choose_usual();
    out.stored = std::move(choice_);
    return out;
  }

 private:
  /// The tensors beside data in one format.
  struct Fit {
    QuantFormat format;
    Found found;
    std::vector<std::string> beside;
  };

  /// Takes out what belongs to the tensor, if it is quantised data.
  Result<std::optional<Found>> add(const CanonicalTensor& t) {
    std::optional<Fit> fit;
    std::optional<Error> why;
    for (const QuantFormat& format : formats_of(t.name)) {
      const auto data = found(stored_, t, format, method_);
      if (!data) continue;
      auto one = fit_of(*data, format);
      if (!one) {
        if (!why) why = std::move(one).error();
      } else if (!fit) {
        fit = std::move(*one);
      } else {
        RESHARD_TRY(check_alike(*fit, *one));
      }
    }
    if (!fit && why) return tl::unexpected(*std::move(why));
    if (!fit) return std::optional<Found>();
    beside_.insert(fit->beside.begin(), fit->beside.end());
    choice_.tensors.insert(fit->found.tensor);
    choice_.others[fit->found.tensor] = fit->format;
    if (fit->found.input_first) choice_.input_first.insert(fit->found.tensor);
    return std::optional(std::move(fit->found));
  }

  std::vector<QuantFormat> formats_of(const std::string& tensor) const {
    const auto said = formats_.of_module.find(tensor.substr(0, tensor.rfind('.')));
    if (said != formats_.of_module.end()) return {said->second};
    return formats_.all;
  }

  Result<Fit> fit_of(const Found& found, QuantFormat f) const {
    Fit fit{f, found, {}};
    RESHARD_TRY(take(fit, QuantPart::scales, scale_suffix(f), f.scale,
                     blocks_of(found, f.block_rows, f.block_cols)));
    if (f.tensor_factor)
      RESHARD_TRY(
          take(fit, QuantPart::factor, std::string(kFactor), DType::f32, blocks_of(found, 0, 0)));
    if (has_packed_integers(f)) RESHARD_TRY(take_shape(fit));
    return fit;
  }

  /// Blocks of two formats may have equally many scales.
  static Result<> check_alike(const Fit& a, const Fit& b) {
    const auto block = [](const Fit& fit) {
      const Dims& shape = fit.found.stored;
      const int n = shape.size();
      const auto along = [&](Index size, Index whole) {
        return size == 0 ? whole : std::min<Index>(size, whole);
      };
      return std::pair(along(fit.format.block_rows, shape[n - 2]),
                       along(fit.format.block_cols, shape[n - 1]));
    };
    if (block(a) == block(b) && a.format.data == b.format.data) return {};
    return fail(
        Code::unsupported,
        fmt::format("'{}' may be stored as {} or as {}: its scales fit both, and the config "
                    "does not say which it is",
                    a.found.tensor, to_string(a.format), to_string(b.format)));
  }

  /// The format of most tensors is the usual one; of several, the first by name of tensor.
  void choose_usual() {
    std::vector<std::pair<QuantFormat, Index>> counts;
    for (const auto& [tensor, format] : choice_.others) {
      const auto of = std::ranges::find(counts, format, &std::pair<QuantFormat, Index>::first);
      if (of == counts.end())
        counts.emplace_back(format, 1);
      else
        ++of->second;
    }
    const auto most = std::ranges::max_element(counts, {}, &std::pair<QuantFormat, Index>::second);
    choice_.format = most == counts.end() ? formats_.all.front() : most->first;
    std::erase_if(choice_.others,
                  [&](const auto& other) { return other.second == choice_.format; });
  }

  /// Takes out the tensor that says the shape of packed integers, if there is one. Errors: a zero
  /// point or a table of the order of columns, which are not read.
  Result<> take_shape(Fit& fit) const {
    const Found& found = fit.found;
    for (const char* end : {"_zero_point", "_g_idx"})
      if (stored_.find(found.tensor + end))
        return fail(Code::unsupported,
                    fmt::format("'{}{}' is not read: weights must be symmetric, with groups in the "
                                "order of their columns",
                                found.tensor, end));
    const std::string name = name_of_packed_shape(found.tensor);
    if (const auto id = stored_.find(name); id && volume(stored_[*id].shape) == 2)
      fit.beside.push_back(name);
    return {};
  }

  Result<> take(Fit& fit, QuantPart part, const std::string& suffix, DType dtype,
                const Dims& shape) const {
    const std::string& tensor = fit.found.tensor;
    FileTensor want{tensor + suffix, dtype, shape};
    if (method_) want = RESHARD_TRY(in_files(*method_, fit.format, part, tensor, dtype, shape));
    if (part == QuantPart::scales && has_integers(fit.format)) {
      // No config says the dtype of integers' scales.
      const auto id = stored_.find(want.name);
      if (id && is_convertible(stored_[*id].dtype))
        fit.format.scale = want.dtype = stored_[*id].dtype;
    }
    RESHARD_TRY(check_beside(stored_, tensor, fit.format, want));
    fit.beside.push_back(want.name);
    return {};
  }

  const ModelSpec& stored_;
  const StoredFormats& formats_;
  std::optional<QuantMethod> method_;
  QuantChoice choice_;
  std::set<std::string> beside_;
};

}  // namespace

Result<PlainTensors> plain_tensors(const ModelSpec& stored, const StoredFormats& formats,
                                   std::optional<QuantMethod> method, DType values) {
  return Separator(stored, formats, method).run(values);
}

bool has_deepseek_scales(const ModelSpec& stored) {
  return std::ranges::any_of(stored.tensors(), [&](const CanonicalTensor& t) {
    const bool is_code = t.dtype == DType::f8_e4m3 || t.dtype == DType::i8;
    return is_code && t.name.ends_with(kWeight) && stored.find(name_of_deepseek_scale(t.name));
  });
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
