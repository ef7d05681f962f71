// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <optional>

#include "reshard/model/families.h"
#include "reshard/model/families/buffers.h"
#include "reshard/model/families/transformers_modules.h"
#include "reshard/model/layout_builder.h"
#include "reshard/model/names.h"
#include "reshard/model/quant/files.h"

namespace reshard {
namespace {

/// The dtypes of the files: those of the checkpoint or, with the key dtype, those that a checkpoint
/// of a trainer has with it: in float32 what models hold so, whatever their dtype.
class FileDTypes {
 public:
  FileDTypes(const FamilyInput& input, std::optional<DType> chosen)
      : type_(input.config != nullptr ? input.config->model_type : input.model_type),
        chosen_(chosen) {}

  bool casts() const { return chosen_.has_value(); }
  DType of(const CanonicalTensor& t) const {
    if (!chosen_) return t.dtype;
    return families::stored_dtype(t, families::held_as(type_, t.name), chosen_).value_or(t.dtype);
  }

 private:
  std::string_view type_;
  std::optional<DType> chosen_;
};

/// Adds the copies that the checkpoint stores under a second name, on the shard of the last layers.
void add_aliases(LayoutBuilder& builder, const ModelConfig& config, MeshId mesh, Index shard,
                 const FileDTypes& dtypes) {
  const ModelSpec& model = builder.model();
  const RankSetId ranks = builder.ranks_where(mesh, {{0, shard}});
  for (const auto& [alias, name] : HfNames(config).aliases()) {
    const auto id = model.find(name);
    if (!id || model.find(alias)) continue;
    builder.add(Slot{.name = alias,
                     .dtype = dtypes.of(model[*id]),
                     .mesh = mesh,
                     .ranks = ranks,
                     .sections = {whole_tensor(model, *id)},
                     .casts = dtypes.casts()});
  }
}

/// The tensors of the files.
std::vector<ModuleTensor> file_form(const FamilyInput& input) {
  if (input.file_form != nullptr) return *input.file_form;
  return transformers_modules(*input.model, input.config, kCheckpointNames);
}

Slot slot_of(const ModelSpec& model, const ModuleTensor& t, MeshId mesh, RankSetId ranks,
             const FileDTypes& dtypes) {
  return Slot{.name = t.name,
              .dtype = dtypes.of(model[t.tensor]),
              .mesh = mesh,
              .ranks = ranks,
              .sections = {t.stack ? *t.stack : whole_tensor(model, t.tensor)},
              .merged = t.stack ? MergedDims{} : model[t.tensor].merged,
              .casts = dtypes.casts()};
}

}  // namespace

Result<ModelLayout> hf_layout(const LayoutSpec& spec, const FamilyInput& input) {
  RESHARD_TRY(spec.check_keys({"shards", "dtype", "offset"}));
  const ModelSpec& model = *input.model;
  const Index shards = RESHARD_TRY(spec.integer("shards", 1));
  const Index offset = RESHARD_TRY(spec.integer("offset", 0, 0));
  const FileDTypes dtypes(input, RESHARD_TRY(spec.dtype()));
  LayoutBuilder builder(to_string(spec), input.model);
  const MeshId mesh = builder.add_mesh(
      RESHARD_TRY(Mesh::make({{"shard", shards}}, Rank(static_cast<Rank::rep>(offset)))));
  // A tensor goes to the shard that contains its first byte, when all bytes are cut into equal
  // parts.
  const Index each = std::max<Index>(1, (model.bytes() + shards - 1) / shards);
  Index begin = 0;
  for (const ModuleTensor& t : file_form(input)) {
    if (input.plain && is_input_scale(t.name)) {
      builder.omit(t.tensor);
      continue;
    }
    const RankSetId ranks = builder.ranks_where(mesh, {{0, std::min(begin / each, shards - 1)}});
    builder.add(slot_of(model, t, mesh, ranks, dtypes));
    begin += volume(t.stored_shape(model)) * bits(model[t.tensor].dtype) / 8;
  }
  if (input.config != nullptr) add_aliases(builder, *input.config, mesh, shards - 1, dtypes);
  return std::move(builder).finish();
}

}  // namespace reshard
