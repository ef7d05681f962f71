// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/verify.h"

#include <fmt/format.h>

#include "reshard/convert/checkpoint_source.h"
#include "reshard/convert/hooks.h"
#include "reshard/convert/output/known_parts.h"
#include "reshard/exec/verify/fingerprints.h"
#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/layout_side.h"
#include "reshard/io/make_layout.h"

namespace reshard {
namespace {

/// One checkpoint and the fingerprints of its tensors.
struct FingerprintedSide {
  Model model;
  std::shared_ptr<const ModelSpec> tensors;  ///< as stored: data and scales.
  ModelFingerprints fingerprints;
  std::vector<StoredForm> forms;  ///< in which the values were fingerprinted.
  Index converted = 0;            ///< tensors stored in another form than fingerprinted.
  std::string layout;
  std::set<std::string> omitted_parts;
  std::vector<std::string>
      other_shapes;  ///< tensors of another shape than the layout's or the config's, a line each.
};

/// The forms of `like`'s tensors for those of `model` with the same names.
std::vector<StoredForm> forms_like(const ModelLayout& layout, const FingerprintedSide* like) {
  auto forms = forms_of(layout);
  if (like == nullptr) return forms;
  for (std::size_t i = 0; i < forms.size(); ++i) {
    const auto other = like->tensors->find(layout.model().tensors()[i].name);
    if (other && is_convertible(forms[i].dtype) &&
        is_convertible(like->forms[other->index()].dtype))
      forms[i] = like->forms[other->index()];
  }
  return forms;
}

Result<Model> open_side(const std::string& path, const std::vector<std::string>& adapters,
                        const VerifyOptions& a) {
  ModelOptions options{.exact = false, .ignore = a.ignore, .merge = adapters};
  if (a.prefix && RESHARD_TRY(Checkpoint::open(path)).kind() == Checkpoint::Kind::dcp)
    options.prefix = a.prefix;
  return open_checkpoint(path, options);
}

/// True if both hold codes of the same form, which are then compared as they are stored.
bool compares_codes(const Model& a, const Model& b) {
  return a.storage->codes && b.storage->codes && a.storage->codes->text == b.storage->codes->text &&
         a.storage->merged.empty();
}

/// Parts of codes that the layout omits because they are known without it.
std::set<std::string> omitted_parts(const Model& model, const ModelLayout& layout) {
  std::set<std::string> names;
  if (!holds_codes(model, layout)) return names;
  for (const std::string& name : output::known_parts(*model.storage->codes))
    if (layout.omits(*layout.model().find(name))) names.insert(name);
  return names;
}

/// Fingerprints a checkpoint's tensors in the forms of `like` if given.
Result<FingerprintedSide> fingerprint_side(Model model, bool as_codes, const VerifyOptions& a,
                                           const FingerprintedSide* like, const ConvertHook& hook) {
  FingerprintedSide side;
  side.model = std::move(model);
  const LayoutSide own_files = RESHARD_TRY(own_side(side.model, as_codes));
  const auto& layout = own_files.stored();
  side.tensors = layout->shared_model();
  const auto source = RESHARD_TRY(CheckpointSource::bind(side.model, own_files));
  side.other_shapes = source.other_shapes();
  if (!side.model.misshapen.empty()) side.other_shapes.push_back(side.model.misshapen);
  side.forms = forms_like(*layout, like);
  const auto own = forms_of(*layout);
  for (std::size_t i = 0; i < own.size(); ++i) side.converted += own[i] == side.forms[i] ? 0 : 1;
  if (hook) hook("start");
  auto computed = fingerprints(source.buffers(), a.threads, a.progress, side.forms);
  RESHARD_TRY(side.model.unchanged());
  side.fingerprints = RESHARD_TRY(std::move(computed));
  side.layout = layout->name();
  side.omitted_parts = omitted_parts(side.model, *layout);
  return side;
}

const ModelFingerprints::Tensor& fingerprint_of(const FingerprintedSide& side, TensorId id) {
  return side.fingerprints.tensors[id.index()];
}

/// A tensor's dtype, shape and fingerprint, or how its replicas disagree.
std::string described(const FingerprintedSide& side, TensorId id) {
  const CanonicalTensor& t = side.tensors->tensors()[id.index()];
  const auto& print = fingerprint_of(side, id);
  if (!print.agree) return print.disagreement;
  return fmt::format("{} {} {}", name(t.dtype), to_string(t.shape), to_string(print.fingerprint));
}

VerifiedCheckpoint summary_of(const FingerprintedSide& side) {
  return {side.model.name, side.layout, side.tensors->size(), side.fingerprints.bytes,
          side.fingerprints.seconds};
}

VerifyReport compare_sides(const FingerprintedSide& a, const FingerprintedSide& b,
                           const std::set<std::string>& ignore) {
  VerifyReport result;
  result.a = summary_of(a);
  result.b = summary_of(b);
  result.converted = a.converted;
  for (const FingerprintedSide* side : {&a, &b})
    for (const std::string& line : side->other_shapes)
      result.other_shapes.push_back(fmt::format("{}: {}", side->model.name, line));
  auto ignored = matching_names(*a.tensors, ignore);
  ignored.merge(matching_names(*b.tensors, ignore));
  for (const auto* side : {&a, &b})
    ignored.insert(side->model.left_out.begin(), side->model.left_out.end());
  result.ignored.assign(ignored.begin(), ignored.end());
  for (Index i = 0; i < a.tensors->size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    const CanonicalTensor& t = (*a.tensors)[id];
    const auto other = b.tensors->find(t.name);
    if (ignored.contains(t.name)) continue;
    if (!other) {
      is_input_scale(t.name) ? void(++result.left_out) : result.only_a.push_back(t.name);
      continue;
    }
    if (a.omitted_parts.contains(t.name) || b.omitted_parts.contains(t.name)) {
      ++result.left_out;
      continue;
    }
    const auto &x = fingerprint_of(a, id), &y = fingerprint_of(b, *other);
    if (t == (*b.tensors)[*other] && x.fingerprint == y.fingerprint && x.agree && y.agree) {
      ++result.same;
    } else {
      result.differing.push_back({t.name, described(a, id), described(b, *other)});
    }
  }
  for (const CanonicalTensor& t : b.tensors->tensors())
    if (!a.tensors->find(t.name) && !ignored.contains(t.name))
      is_input_scale(t.name) ? void(++result.left_out) : result.only_b.push_back(t.name);
  return result;
}

}  // namespace

Result<VerifyReport> verify_checkpoints(const VerifyOptions& options) {
  return verify_checkpoints(options, {});
}

Result<VerifyReport> verify_checkpoints(const VerifyOptions& options, const ConvertHook& hook) {
  // A tensor that A stores in another form is compared as a refit from A to B would leave it.
  Model of_b = RESHARD_TRY(open_side(options.b, {}, options));
  Model of_a = RESHARD_TRY(open_side(options.a, options.merge, options));
  const bool codes = compares_codes(of_a, of_b);
  const auto b = RESHARD_TRY(fingerprint_side(std::move(of_b), codes, options, nullptr, hook));
  const auto a = RESHARD_TRY(fingerprint_side(std::move(of_a), codes, options, &b, hook));
  RESHARD_TRY(check_ignored(a.model, &b.model));
  return compare_sides(a, b, options.ignore);
}

}  // namespace reshard
