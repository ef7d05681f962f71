// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/verify/fingerprints.h"

#include <fmt/format.h>

#include <chrono>

#include "reshard/exec/verify/cell_replicas.h"

namespace reshard {
namespace {

/// Sums the first replica of each cell and compares the others with it.
ModelFingerprints::Tensor result(const CellReplicas& replicas, TensorId id) {
  ModelFingerprints::Tensor out;
  out.replicas = replicas.replicas(id);
  const CellReplica* first = nullptr;
  for (const CellReplica& c : replicas.of(id)) {
    const Cell& cell = replicas.cells(id)[static_cast<std::size_t>(c.cell)];
    if (first == nullptr || first->cell != c.cell) {
      out.fingerprint += c.fingerprint;
      first = &c;
    } else if (out.agree && !(c.fingerprint == first->fingerprint)) {
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
  CellReplicas replicas(buffers.layout(), forms);
  RESHARD_TRY(replicas.find(&buffers, std::nullopt));
  RESHARD_TRY(replicas.read(threads, progress));
  ModelFingerprints out;
  out.bytes = replicas.bytes();
  for (Index t = 0; t < buffers.layout().model().size(); ++t)
    out.tensors.push_back(result(replicas, TensorId(static_cast<TensorId::rep>(t))));
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
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
    if (!(source.tensors[i].fingerprint == target.tensors[i].fingerprint))
      return fail(Code::corrupt,
                  fmt::format("tensor '{}': fingerprint of the source is {}, of the target {}",
                              name, to_string(source.tensors[i].fingerprint),
                              to_string(target.tensors[i].fingerprint)));
  }
  return {};
}

}  // namespace reshard
