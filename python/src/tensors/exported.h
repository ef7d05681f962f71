// SPDX-License-Identifier: Apache-2.0
// reshard.Tensor: memory of reshard's that torch, numpy and others take without a copy.
#pragma once

#include "python/src/support.h"
#include "reshard/base/dtype.h"
#include "reshard/index/box.h"

namespace reshard::python {

/// The class reshard.Tensor: row-major host memory that another Python object owns. Needs the GIL.
class ExportedTensor {
 public:
  ExportedTensor(nb::object owner, std::byte* data, DType dtype, Dims shape)
      : owner_(std::move(owner)), data_(data), dtype_(dtype), shape_(shape) {}
  /// Zeroed memory of its own. Errors: `io` if there is none.
  static std::unique_ptr<ExportedTensor> allocate(DType dtype, const Dims& shape);

  std::byte* data() const { return data_; }
  DType dtype() const { return dtype_; }
  const Dims& shape() const { return shape_; }
  Index bytes() const { return volume(shape_) * bits(dtype_) / 8; }

  /// A DLPack capsule; the arguments are those of the protocol. Errors: `unsupported` for a dtype
  /// that DLPack lacks.
  nb::object capsule(nb::kwargs arguments) const;
  /// A numpy array on the memory; dtypes that numpy lacks are those of ml_dtypes. Errors:
  /// `unsupported` if it is not installed.
  nb::object numpy() const;
  /// A torch tensor on the memory.
  nb::object torch(nb::handle self) const;
  /// A writable memoryview of the bytes.
  nb::object raw() const;
  std::string text() const;

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(owner_.ptr());
    return 0;
  }
  void clear() { const auto owner = std::exchange(owner_, {}); }

 private:
  nb::object owner_;
  std::byte* data_;
  DType dtype_;
  Dims shape_;
};

}  // namespace reshard::python
