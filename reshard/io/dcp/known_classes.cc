// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/dcp/known_classes.h"

#include <array>
#include <vector>

namespace reshard::dcp {
namespace {

constexpr std::array kDTypes = {
    "bool",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float4_e2m1fn_x2",
};

constexpr std::array kStorages = {
    "BoolStorage",  "ByteStorage",   "CharStorage",         "ShortStorage",
    "IntStorage",   "LongStorage",   "HalfStorage",         "BFloat16Storage",
    "FloatStorage", "DoubleStorage", "ComplexFloatStorage", "ComplexDoubleStorage",
};

std::vector<pickle::Name> dtypes_and(std::initializer_list<pickle::Name> others) {
  std::vector<pickle::Name> names(others);
  for (const char* dtype : kDTypes) names.push_back({"torch", dtype});
  return names;
}

}  // namespace

std::span<const pickle::Name> metadata_classes() {
  static const std::vector<pickle::Name> kNames = dtypes_and({
      {kMetadataModule, "Metadata"},
      {kMetadataModule, "MetadataIndex"},
      {kMetadataModule, "BytesStorageMetadata"},
      {kMetadataModule, "TensorStorageMetadata"},
      {kMetadataModule, "TensorProperties"},
      {kMetadataModule, "ChunkStorageMetadata"},
      {kMetadataModule, "_MEM_FORMAT_ENCODING"},
      {kMetadataModule, "StorageMeta"},
      {kFilesystemModule, "_StorageInfo"},
      {"torch", "Size"},
      {"torch", "device"},
      {"torch.serialization", "_get_layout"},
      {"collections", "OrderedDict"},
      // The folder, in StorageMeta.
      {"pathlib", "PosixPath"},
      {"pathlib._local", "PosixPath"},
      // The plans that Megatron's dist_checkpointing keeps there.
      {"torch.distributed.checkpoint.planner", "SavePlan"},
      {"torch.distributed.checkpoint.planner", "WriteItem"},
      {"torch.distributed.checkpoint.planner", "WriteItemType"},
      {"torch.distributed.checkpoint.planner", "TensorWriteData"},
      {"megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata"},
      {"megatron.core.dist_checkpointing.strategies.torch", "MCoreSavePlan"},
  });
  return kNames;
}

std::span<const pickle::Name> metadata_enums() {
  static constexpr std::array<pickle::Name, 2> kNames = {{
      {kMetadataModule, "_MEM_FORMAT_ENCODING"},
      {"torch.distributed.checkpoint.planner", "WriteItemType"},
  }};
  return kNames;
}

std::span<const pickle::Name> tensor_classes() {
  static const std::vector<pickle::Name> kNames = [] {
    auto names = dtypes_and({
        {"torch._utils", "_rebuild_tensor_v2"},
        {"torch._utils", "_rebuild_tensor_v3"},
        {"torch._utils", "_rebuild_parameter"},
        {"torch.storage", "UntypedStorage"},
        {"torch", "Size"},
        {"collections", "OrderedDict"},
    });
    for (const char* storage : kStorages) names.push_back({"torch", storage});
    return names;
  }();
  return kNames;
}

std::string_view torch_name(DType dtype) {
  for (const std::string_view name : kDTypes)
    if (dtype_from_torch_name(name) == dtype) return name;
  return "";
}

}  // namespace reshard::dcp
