// SPDX-License-Identifier: Apache-2.0
// reshard.Tensor: memory of reshard's that torch, numpy and others take without a copy.
#pragma once

#include "python/src/support.h"
#include "python/src/tensors/dlpack.h"
#include "reshard/base/dtype.h"
#include "reshard/cuda/driver.h"
#include "reshard/index/box.h"

namespace reshard::python {

/// The class reshard.Tensor: row-major memory that another Python object owns, of the host or of a
/// GPU. Needs the GIL.
class ExportedTensor {
 public:
  /// `gpu`: its number, for memory of a GPU.
  ExportedTensor(nb::object owner, std::byte* data, DType dtype, Dims shape, int gpu = -1)
      : owner_(std::move(owner)), data_(data), dtype_(dtype), shape_(shape), gpu_(gpu) {}
  /// Zeroed host memory of its own. Errors: `io` if there is none.
  static std::unique_ptr<ExportedTensor> allocate(DType dtype, const Dims& shape);
  /// Memory of a GPU, not initialised. Errors: as gpu(); `io` if there is none.
  static std::unique_ptr<ExportedTensor> allocate(DType dtype, const Dims& shape, int gpu);

  std::byte* data() const { return data_; }
  DType dtype() const { return dtype_; }
  const Dims& shape() const { return shape_; }
  Index bytes() const { return volume(shape_) * bits(dtype_) / 8; }

  /// As DLPack names it.
  dlpack::Device device() const;
  /// "cpu" or "cuda:0".
  std::string place() const;

  /// A DLPack capsule; the arguments are those of the protocol. The consumer's `stream` then waits
  /// for the refits that this memory's stream has. Errors: `unsupported` for a dtype that DLPack
  /// lacks.
  nb::object capsule(nb::kwargs arguments) const;
  /// A numpy array on the memory; dtypes that numpy lacks are those of ml_dtypes. Errors:
  /// `unsupported` if it is not installed, or for memory of a GPU.
  nb::object numpy() const;
  /// A torch tensor on the memory.
  nb::object torch(nb::handle self) const;
  /// A writable memoryview of the bytes. Errors: `unsupported` for memory of a GPU.
  nb::object raw() const;
  std::string text() const;

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(owner_.ptr());
    return 0;
  }
  void clear() { const auto owner = std::exchange(owner_, {}); }

 private:
  void expect_on_host(const char* call) const;
  static std::optional<cuda::StreamHandle> consumer_of(const nb::kwargs& arguments);

  nb::object owner_;
  std::byte* data_;
  DType dtype_;
  Dims shape_;
  int gpu_;
};

}  // namespace reshard::python
