// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "reshard/base/dtype.h"
#include "reshard/io/pickle/unpickle.h"

/// The classes and functions of Python that pickles of torch's distributed checkpoints name.
namespace reshard::dcp {

inline constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
inline constexpr std::string_view kFilesystemModule = "torch.distributed.checkpoint.filesystem";

/// The globals that a `.metadata` file may name.
std::span<const pickle::Name> metadata_classes();
/// The enums among metadata_classes().
std::span<const pickle::Name> metadata_enums();
/// The globals that the pickle of one tensor may name, as torch.save writes it.
std::span<const pickle::Name> tensor_classes();

/// torch's name of a dtype, such as "bfloat16"; empty if torch has none.
std::string_view torch_name(DType dtype);

}  // namespace reshard::dcp
