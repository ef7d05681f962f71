// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/whole_tensor_layout.h"

#include "reshard/model/layout_builder.h"

namespace reshard {

Result<std::shared_ptr<const ModelLayout>> whole_tensor_layout(const ModelLayout& target,
                                                               const std::vector<bool>& tensors) {
  const ModelSpec& model = target.model();
  LayoutBuilder builder("between (" + target.name() + ")", target.shared_model());
  const std::vector<Rank> ranks = target.ranks().members();
  const Rank first = ranks.front(), last = ranks.back();
  const MeshId mesh = builder.add_mesh(
      RESHARD_TRY(Mesh::make({{"rank", Index{last.value()} - first.value() + 1}}, first)));
  std::size_t next = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i]) continue;
    const TensorId id(static_cast<TensorId::rep>(i));
    const Rank owner = ranks[next++ % ranks.size()];
    const StoredForm form = target.form(id);
    builder.add(Slot{
        .name = model[id].name,
        .dtype = form.dtype,
        .mesh = mesh,
        .ranks = builder.ranks_where(mesh, {{0, Index{owner.value()} - first.value()}}),
        .sections = {whole_tensor(model, id)},
        .map = form.map,
        .casts = form.dtype != model[id].dtype,
    });
  }
  return std::make_shared<const ModelLayout>(RESHARD_TRY(std::move(builder).finish()));
}

}  // namespace reshard
