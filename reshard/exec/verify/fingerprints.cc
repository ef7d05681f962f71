// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/verify/fingerprints.h"

#include <fmt/format.h>

#include <chrono>

#include "reshard/exec/direct/held_copies.h"

namespace reshard {
namespace {

/// Sums the first copy of each cell and compares the others with it.
ModelFingerprints::Tensor result(const HeldCopies& held, TensorId id) {
  ModelFingerprints::Tensor out;
  out.replicas = held.replicas(id);
  const HeldCopy* first = nullptr;
  for (const HeldCopy& c : held.of(id)) {
    const Cell& cell = held.cells(id)[static_cast<std::size_t>(c.cell)];
    if (first == nullptr || first->cell != c.cell) {
      out.print += c.print;
      first = &c;
    } else if (out.agree && !(c.print == first->print)) {
      out.agree = false;
      out.disagreement = disagreement(c.rank, first->rank, cell.box);
    }
  }
  return out;
}

}  // namespace

std::vector<StoredForm> forms_of(const ModelLayout& layout) {
  std::vector<StoredForm> forms;
  for (Index t = 0; t < layout.model().size(); ++t)
    forms.push_back(layout.form(TensorId(static_cast<TensorId::rep>(t))));
  return forms;
}

Result<ModelFingerprints> fingerprints(const RankBuffers& buffers, int threads,
                                       const Progress& progress,
                                       std::span<const StoredForm> forms) {
  const auto start = std::chrono::steady_clock::now();
  HeldCopies held(buffers.layout(), forms);
  RESHARD_TRY(held.find(&buffers, std::nullopt));
  RESHARD_TRY(held.read(threads, progress));
  ModelFingerprints prints;
  prints.bytes = held.bytes();
  for (Index t = 0; t < buffers.layout().model().size(); ++t)
    prints.tensors.push_back(result(held, TensorId(static_cast<TensorId::rep>(t))));
  prints.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return prints;
}

Result<> compare_fingerprints(const ModelSpec& model, const ModelFingerprints& source,
                              const ModelFingerprints& target) {
  for (Index t = 0; t < model.size(); ++t) {
    const auto i = static_cast<std::size_t>(t);
    const std::string& name = model.tensors()[i].name;
    for (const auto* side : {&source, &target})
      if (!side->tensors[i].agree)
        return fail(Code::corrupt, fmt::format("tensor '{}': {} replicas do not agree: {}", name,
                                               side == &source ? "source" : "target",
                                               side->tensors[i].disagreement));
    if (!(source.tensors[i].print == target.tensors[i].print))
      return fail(
          Code::corrupt,
          fmt::format("tensor '{}': fingerprint of the source is {}, of the target {}", name,
                      to_string(source.tensors[i].print), to_string(target.tensors[i].print)));
  }
  return {};
}

}  // namespace reshard
