// SPDX-License-Identifier: Apache-2.0
// What the ways of looking at a tensor share.
#pragma once

#include "python/src/tensors/tensors.h"

namespace reshard::python {

/// A look that failed: the object cannot be seen this way. The Python exception, if any, is
/// cleared.
struct Unseen {
  std::string why;
};

/// The text of the Python exception that is set, which is cleared; its first line only, because
/// some carry a C++ stack. Throws what rethrow_fatal() does.
std::string take_exception();

/// Invalid if there is none, or no object. Throws what rethrow_fatal() does.
nb::object attribute(nb::handle object, const char* name);

/// str(object).
std::string text_of(nb::handle object);

[[noreturn]] void too_many_dims(int found);

/// Throws Unseen for what DLPack does not allow, and for sizes that overflow.
TensorView view_of(const dlpack::Tensor& tensor);

/// numpy arrays with dtypes of ml_dtypes, which neither a buffer nor numpy's DLPack can express.
/// None if the object has no such interface. Throws Unseen if it is wrong, as the next.
std::optional<TensorView> look_by_interface(nb::handle object);

/// Memory of a GPU by version 2 or 3 of the CUDA array interface. Its address says which GPU.
std::optional<TensorView> look_by_cuda_interface(nb::handle object);

}  // namespace reshard::python
