// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/base/result.h"

namespace reshard {

/// A library of NVIDIA's that is loaded at run time.
struct LibraryFile {
  const char* name;      ///< for messages: "NVSHMEM".
  const char* file;      ///< "libnvshmem_host.so.3".
  const char* variable;  ///< the environment variable with its path.
  const char* wheel;     ///< the folder in site-packages/nvidia that has lib/FILE.
};

struct LoadedLibrary {
  void* handle = nullptr;  ///< for dlsym().
  std::string file;        ///< as it was asked for.
};

/// Loads a library: the one that the process has loaded already (torch's), else the file that the
/// environment variable names, else the system's, else that of NVIDIA's wheel beside this package,
/// in $VIRTUAL_ENV or in $CONDA_PREFIX. Never unloads it: such libraries have threads of their own.
/// Errors: `unsupported` if there is none (says where it looked), or
/// the file that the variable names does not load.
Result<LoadedLibrary> load_library_file(const LibraryFile& library);

}  // namespace reshard
