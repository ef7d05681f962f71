// SPDX-License-Identifier: Apache-2.0
// Tensors that belong to Python objects: of torch, numpy, JAX, or anything else that exports DLPack
// or a buffer. Nothing is copied. All functions need the GIL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "python/src/support.h"
#include "python/src/tensors/dlpack.h"
#include "reshard/base/dtype.h"
#include "reshard/index/box.h"

namespace reshard::python {

/// A tensor as its object describes it at one moment.
struct TensorView {
  std::byte* data = nullptr;
  dlpack::DataType dtype;
  dlpack::Device device;
  Dims shape, strides;  ///< in elements of `dtype`.
  bool read_only = false;
  /// The handle of a stream whose work the tensor may still need (`__cuda_array_interface__`).
  std::optional<std::uint64_t> producer;

  bool on_host() const;
  bool on_gpu() const { return device.device_type == dlpack::kCuda; }
  /// "the host", "cuda:0".
  std::string place() const;
  /// Row-major without gaps.
  bool contiguous() const;
  /// Bytes of a contiguous tensor.
  Index bytes() const;
  /// True if nothing that a look tells is different, but for the producer.
  bool same_as(const TensorView& other) const;
};

/// Names a tensor in messages; the text is made only when it is needed.
struct TensorName {
  const char* side = "";  ///< "source ", "target ", or "".
  int rank = -1;          ///< -1: no rank.
  std::string_view name;
  /// "rank 3: target tensor 'x'".
  std::string text() const;
};

/// Facts about the type of the tensor that was looked at last. Tensors that follow each other
/// mostly have one type, and to ask a type costs more than to look at a tensor.
class TypeFacts {
 public:
  /// Makes this the facts of an object's type.
  const TypeFacts& of(nb::handle object);

  bool has_local = false;    ///< a DTensor: `to_local()` has its memory.
  bool has_storage = false;  ///< torch's: its memory is part of `untyped_storage()`.
  const dlpack::ExchangeTable* table = nullptr;

 private:
  nb::object type_;
};

/// How a look is taken.
struct LookOptions {
  /// The stream of ours for which exporters of a GPU's memory complete their work on the tensor, as
  /// DLPack counts streams.
  std::int64_t stream = 1;
  TypeFacts* types = nullptr;  ///< used by looks that follow each other; null: none do.
  /// False: only where the memory is and what it holds, not whether it may be used. For whoever
  /// compares two looks; the look before each refit checks.
  bool checks = true;
};

/// A tensor that is kept alive for as long as its memory is used, and can be looked at again.
///
/// The object is held. A buffer or a DLPack capsule that it exports is held, too, so that exporters
/// which count their exports (bytearray, mmap) refuse to move the memory. Others (torch) may move
/// it: look() tells.
class PinnedTensor {
 public:
  /// Errors, which begin with `what`: not a tensor; a tensor without memory (meta), sparse,
  /// quantised, or a view that torch conjugates or negates whenever it is read; one that reaches
  /// beyond its storage; more than kMaxDims dimensions; a copy instead of memory. What is not an
  /// Exception (Ctrl-C, SystemExit), and MemoryError, is thrown as it is, here and by look().
  PinnedTensor(nb::handle object, const TensorName& what, const LookOptions& options = {});

  /// The tensor as it was when this was made.
  const TensorView& view() const { return view_; }
  /// Any tensor as it is now. Errors: as for the constructor.
  static TensorView look(nb::handle object, const TensorName& what,
                         const LookOptions& options = {});
  const nb::object& object() const { return object_; }
  /// For the garbage collector.
  int traverse(visitproc visit, void* arg) const;

 private:
  nb::object object_;
  nb::object export_;  ///< a memoryview or capsule; invalid if the object alone is held.
  TensorView view_;
};

/// The memory that a local tensor needs.
struct WantedTensor {
  DType dtype;
  Dims shape;   ///< in elements.
  Dims stored;  ///< the same with merged dimensions, as a module reports it.
  Index bytes() const { return volume(shape) * bits(dtype) / 8; }
};

/// Which memory will do for a tensor.
enum class Memory : std::uint8_t {
  host,
  host_or_gpu,  ///< that of the host, or of an NVIDIA GPU.
};

/// Checks that a tensor is in such memory. Errors: `unsupported`, beginning with `what`.
void check_place(const TensorView& view, Memory memory, const TensorName& what);

/// Checks that a tensor is in such memory, contiguous, and has the dtype and shape wanted. The bits
/// may also be those of an unsigned integer of the same width (two 4-bit elements in a byte), and
/// all of them a row of bytes. `what` as above; `whose` says who wants it: a layout's name. Errors:
/// as said, and those of check_place().
void check_tensor(const TensorView& view, const WantedTensor& wanted, const TensorName& what,
                  const std::string& whose, Memory memory = Memory::host);

/// The stream of a GPU on which the library of a tensor works now, as the table of its type tells;
/// none if it does not.
std::optional<std::uint64_t> stream_by_table(nb::handle tensor, int ordinal);
/// True for a tensor of torch, or of a class that derives from it.
bool is_of_torch(nb::handle tensor);

/// The DLPack dtype of `dtype`, in which torch and numpy know it, or none if DLPack lacks it. 4-bit
/// elements: in pairs, as torch's float4_e2m1fn_x2.
std::optional<dlpack::DataType> dlpack_dtype(DType dtype);
/// The dtype of one element, or none if reshard lacks it.
std::optional<DType> dtype_of_dlpack(dlpack::DataType dtype);
/// "BF16", or "float8_e3m4" for a dtype that reshard lacks.
std::string dtype_text(dlpack::DataType dtype);
/// "[4096, 128]".
std::string shape_text(const Dims& shape);

}  // namespace reshard::python
