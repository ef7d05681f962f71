// SPDX-License-Identifier: Apache-2.0
// Looks at a Python object's tensor in the fastest way that its type offers: a table of C functions
// (torch from 2.10 on), the buffer protocol (numpy, bytearray, mmap, array.array), __dlpack__ (JAX,
// older torch), numpy's __array_interface__ for dtypes that no buffer can have, and
// __cuda_array_interface__ (Numba and others).
#include "python/src/tensors/tensors.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "python/src/tensors/looks.h"

namespace reshard::python {

std::string take_exception() {
  if (PyErr_Occurred() == nullptr) return "";
  rethrow_fatal();
  const nb::python_error error;
  const std::string text = nb::str(error.value()).c_str();
  return text.substr(0, text.find('\n'));
}

nb::object attribute(nb::handle object, const char* name) {
  if (!object.is_valid()) return {};
  PyObject* found = PyObject_GetAttrString(object.ptr(), name);
  if (found == nullptr) clear_ordinary();
  return nb::steal(found);
}

std::string text_of(nb::handle object) {
  PyObject* text = PyObject_Str(object.ptr());
  if (text == nullptr) return take_exception();
  return nb::cast<std::string>(nb::steal(text));
}

[[noreturn]] void too_many_dims(int found) {
  throw Unseen{fmt::format("{} dimensions; at most {}", found, kMaxDims)};
}

TensorView view_of(const dlpack::Tensor& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > kMaxDims) too_many_dims(tensor.ndim);
  if (tensor.ndim > 0 && tensor.shape == nullptr) throw Unseen{"it exports no shape"};
  TensorView view;
  view.dtype = tensor.dtype;
  view.device = tensor.device;
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] < 0) throw Unseen{"a negative dimension"};
    view.shape.push_back(tensor.shape[i]);
  }
  if (tensor.strides == nullptr) {
    Index step = 1;
    view.strides = view.shape;
    for (int i = tensor.ndim - 1; i >= 0; --i) {
      view.strides[i] = step;
      if (__builtin_mul_overflow(step, tensor.shape[i], &step))
        throw Unseen{"a size that overflows"};
    }
  } else {
    for (int i = 0; i < tensor.ndim; ++i) view.strides.push_back(tensor.strides[i]);
  }
  Index elements = 1, total = 0;
  for (const Index d : view.shape)
    if (__builtin_mul_overflow(elements, d, &elements)) throw Unseen{"a size that overflows"};
  if (__builtin_mul_overflow(elements, Index{tensor.dtype.bits} * tensor.dtype.lanes, &total))
    throw Unseen{"a size that overflows"};
  if (tensor.data != nullptr) view.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  return view;
}

namespace {

using dlpack::DataType;

std::string type_text(nb::handle object) {
  return text_of(attribute(object.type(), "__module__")) + "." +
         text_of(attribute(object.type(), "__qualname__"));
}

bool type_has(PyObject* type, PyObject* name) {
  PyObject* found = PyObject_GetAttr(type, name);
  if (found == nullptr) clear_ordinary();
  return nb::steal(found).is_valid();
}

/// The table of a type, or null.
const dlpack::ExchangeTable* exchange_table(PyObject* type) {
  static PyObject* const kName = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  PyObject* found = PyObject_GetAttr(type, kName);
  if (found == nullptr) {
    clear_ordinary();
    return nullptr;
  }
  const nb::object capsule = nb::steal(found);
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  auto* table = static_cast<dlpack::ExchangeTable*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (table != nullptr && table->version.major != 1) table = table->previous;
  return table;
}

std::optional<TensorView> look_by_table(nb::handle object, const TypeFacts& facts) {
  const dlpack::ExchangeTable* const table = facts.table;
  if (table == nullptr || table->tensor_from_object == nullptr) return std::nullopt;
  dlpack::Tensor tensor;
  if (table->tensor_from_object(object.ptr(), &tensor) != 0) throw Unseen{take_exception()};
  return view_of(tensor);
}

/// The result of a method without arguments.
nb::object called(nb::handle object, PyObject* name) {
  PyObject* const result = PyObject_CallMethodObjArgs(object.ptr(), name, nullptr);
  if (result == nullptr) throw Unseen{take_exception()};
  return nb::steal(result);
}

std::uint64_t number_of(nb::handle object, PyObject* method) {
  const nb::object number = called(object, method);
  const std::uint64_t value = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) throw Unseen{take_exception()};
  return value;
}

/// Checks what DLPack hides of a tensor of torch: that it is read in another way than it is
/// stored, and that its storage became smaller than it is (FSDP frees storages; resize_() shrinks
/// them). Throws Unseen for both.
void check_of_torch(nb::handle object, const TensorView& view) {
  static PyObject *const kNeg = PyUnicode_InternFromString("is_neg"),
                         *const kConj = PyUnicode_InternFromString("is_conj"),
                         *const kStorage = PyUnicode_InternFromString("untyped_storage"),
                         *const kBytes = PyUnicode_InternFromString("nbytes"),
                         *const kOffset = PyUnicode_InternFromString("storage_offset");
  const bool is_complex = view.dtype.code == static_cast<std::uint8_t>(dlpack::Code::Complex);
  if (is_complex && called(object, kConj).is(nb::bool_(true)))
    throw Unseen{"it is a conjugated view: its memory holds other values; pass its resolve_conj()"};
  if (called(object, kNeg).is(nb::bool_(true)))
    throw Unseen{"it is a negated view: its memory holds other values; pass its resolve_neg()"};
  if (view.data == nullptr || !view.contiguous()) return;  // refused, if it has elements
  const std::uint64_t bytes = static_cast<std::uint64_t>(view.bytes());
  if (bytes == 0) return;
  const std::uint64_t has = number_of(called(object, kStorage), kBytes);
  const std::uint64_t width = bytes / static_cast<std::uint64_t>(volume(view.shape));
  std::uint64_t end = 0;
  if (__builtin_mul_overflow(number_of(object, kOffset), width, &end) ||
      __builtin_add_overflow(end, bytes, &end) || end > has)
    throw Unseen{fmt::format("its storage was resized to {} bytes, and it needs {}", has, end)};
}

/// The dtype of a buffer's elements by their format (the struct module's letters).
std::optional<DataType> dtype_of_format(const char* format, Py_ssize_t size) {
  std::string_view text = format == nullptr ? "B" : format;
  const bool swapped = text.starts_with('>') || text.starts_with('!');
  if (!text.empty() && std::strchr("@=<>!", text.front()) != nullptr) text.remove_prefix(1);
  if (swapped && size > 1) return std::nullopt;
  const auto made = [&](dlpack::Code code) {
    return DataType{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(size * 8), 1};
  };
  if (size < 1 || size > 16) return std::nullopt;
  if (text == "Zf" || text == "Zd") return made(dlpack::Code::Complex);
  if (text.size() != 1) return std::nullopt;
  if (text == "?") return made(dlpack::Code::Bool);
  if (std::strchr("bhilqn", text.front()) != nullptr) return made(dlpack::Code::Int);
  if (std::strchr("BHILQNc", text.front()) != nullptr) return made(dlpack::Code::UInt);
  if (std::strchr("efd", text.front()) != nullptr) return made(dlpack::Code::Float);
  return std::nullopt;
}

TensorView view_of_buffer(const Py_buffer& buffer) {
  const auto dtype = dtype_of_format(buffer.format, buffer.itemsize);
  if (!dtype)
    throw Unseen{fmt::format("elements of format '{}'", buffer.format ? buffer.format : "")};
  std::array<Index, kMaxDims> shape{}, strides{};
  if (buffer.ndim > kMaxDims) too_many_dims(buffer.ndim);
  for (int i = 0; i < buffer.ndim; ++i) {
    const auto at = static_cast<std::size_t>(i);
    shape[at] = buffer.shape[i];
    // Arrays of ctypes have no strides, although they are asked for them.
    if (buffer.strides == nullptr) continue;
    // A stride that is no whole number of elements counts as a gap.
    strides[at] =
        buffer.strides[i] % buffer.itemsize == 0 ? buffer.strides[i] / buffer.itemsize : Index{-1};
  }
  TensorView view =
      view_of(dlpack::Tensor{.data = buffer.buf,
                             .device = {dlpack::kCpu, 0},
                             .ndim = buffer.ndim,
                             .dtype = *dtype,
                             .shape = shape.data(),
                             .strides = buffer.strides == nullptr ? nullptr : strides.data()});
  view.read_only = buffer.readonly != 0;
  return view;
}

/// A buffer that is released at the end of the scope.
class Buffer {
 public:
  /// None if the object has none.
  explicit Buffer(nb::handle object)
      : filled_(PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_STRIDES | PyBUF_FORMAT) == 0) {}
  ~Buffer() {
    if (filled_) PyBuffer_Release(&buffer_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  explicit operator bool() const { return filled_; }
  const Py_buffer& operator*() const { return buffer_; }

 private:
  Py_buffer buffer_{};
  bool filled_;
};

std::optional<TensorView> look_by_buffer(nb::handle object) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) return std::nullopt;
  const Buffer buffer(object);
  if (!buffer) {
    clear_ordinary();
    return std::nullopt;
  }
  return view_of_buffer(*buffer);
}

/// True if `__dlpack_device__` names an NVIDIA GPU.
bool says_gpu(nb::handle object) {
  const nb::object method = attribute(object, "__dlpack_device__");
  if (!method.is_valid()) return false;
  const nb::object said = method();
  int kind = 0;
  if (!nb::isinstance<nb::tuple>(said) || nb::len(said) != 2 || !nb::try_cast(said[0], kind))
    throw Unseen{"__dlpack_device__ did not return two numbers"};
  return kind == dlpack::kCuda;
}

/// The capsule of __dlpack__, or an invalid object if there is no such method.
nb::object export_dlpack(nb::handle object, const LookOptions& options) {
  const nb::object method = attribute(object, "__dlpack__");
  if (!method.is_valid()) return {};
  try {
    nb::dict arguments;
    // torch's current stream is the caller's own; a new dependency would be on the wrong one.
    if (says_gpu(object)) arguments["stream"] = is_of_torch(object) ? -1 : options.stream;
    try {
      nb::dict with_version = nb::steal<nb::dict>(PyDict_Copy(arguments.ptr()));
      with_version["max_version"] = nb::make_tuple(1, 3);
      return method(**with_version);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;
      return method(**arguments);  // from before DLPack 1.0
    }
  } catch (nb::python_error& error) {
    if (is_fatal(error)) throw;
    const std::string text = text_of(error.value());
    throw Unseen{text.substr(0, text.find('\n'))};
  }
}

TensorView view_of_capsule(const nb::object& capsule, nb::handle owner) {
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto* managed = static_cast<dlpack::VersionedManaged*>(
        PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->version.major != 1)
      throw Unseen{fmt::format("DLPack {}.{}", managed->version.major, managed->version.minor)};
    if ((managed->flags & dlpack::kIsCopied) != 0) throw Unseen{"it exports a copy of its memory"};
    TensorView view = view_of(managed->tensor);
    view.read_only = (managed->flags & dlpack::kReadOnly) != 0;
    return view;
  }
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor"))
    throw Unseen{"__dlpack__ did not return a DLPack capsule"};
  TensorView view = view_of(
      static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor);
  // Arrays of JAX never change, which this form of DLPack cannot say.
  view.read_only = type_text(owner).starts_with("jax");
  return view;
}

/// Why torch's own words for what cannot be seen, in terms of what to pass instead.
std::string explain(nb::handle object, const std::string& why) {
  const nb::object device = attribute(object, "device");
  if (device.is_valid() && text_of(device) == "meta")
    return "is on the meta device, which has no memory; pass a tensor that has";
  const nb::object layout = attribute(object, "layout");
  if (layout.is_valid() && text_of(layout) != "torch.strided" &&
      text_of(layout).starts_with("torch."))
    return fmt::format("is sparse ({}); pass a dense tensor", text_of(layout));
  const nb::object quantised = attribute(object, "is_quantized");
  if (quantised.is_valid() && quantised.is(nb::bool_(true)))
    return "is quantised by torch; pass its int_repr() and describe its scales in the layout";
  if (why.empty())
    return fmt::format("a {} is no tensor: it exports neither DLPack nor a buffer",
                       type_text(object));
  return fmt::format("cannot be used: {}", why);
}

/// The tensor that a look found, and the export that keeps the memory in place, if any.
struct Look {
  TensorView view;
  nb::object kept;
};

Look look_at(nb::handle object, bool keep, const LookOptions& options, const TypeFacts& facts) {
  if (auto view = look_by_table(object, facts)) {
    if (facts.has_storage && options.checks) check_of_torch(object, *view);
    return {*view, {}};
  }
  std::string why;
  try {
    if (auto view = look_by_buffer(object))
      return {*view, keep ? nb::steal(PyMemoryView_FromObject(object.ptr())) : nb::object()};
  } catch (Unseen& unseen) {  // numpy has formats of its own
    why = std::move(unseen.why);
  }
  try {
    if (const nb::object capsule = export_dlpack(object, options); capsule.is_valid()) {
      const TensorView view = view_of_capsule(capsule, object);
      if (facts.has_storage && options.checks) check_of_torch(object, view);
      return {view, keep ? capsule : nb::object()};
    }
  } catch (Unseen& unseen) {
    why = std::move(unseen.why);
  }
  if (auto view = look_by_interface(object)) return {*view, {}};
  if (auto view = look_by_cuda_interface(object)) return {*view, {}};
  throw Unseen{why};
}

Look look_through(nb::handle object, const TensorName& what, bool keep,
                  const LookOptions& options) {
  TypeFacts own;
  TypeFacts& types = options.types != nullptr ? *options.types : own;
  // The local tensor of a DTensor; a tensor that requires a gradient, without it.
  const nb::object tensor =
      types.of(object).has_local ? nb::borrow(object).attr("to_local")() : nb::borrow(object);
  std::string why;
  try {
    return look_at(tensor, keep, options, types.of(tensor));
  } catch (const Unseen& unseen) {
    why = unseen.why;
  }
  const nb::object grad = attribute(tensor, "requires_grad");
  const nb::object detach = attribute(tensor, "detach");
  if (grad.is_valid() && grad.is(nb::bool_(true)) && detach.is_valid()) {
    try {
      const nb::object plain = detach();
      return look_at(plain, keep, options, types.of(plain));
    } catch (const Unseen& unseen) {
      why = unseen.why;
    }
  }
  raise(Code::invalid_argument, fmt::format("{}: {}", what.text(), explain(tensor, why)));
}

}  // namespace

const TypeFacts& TypeFacts::of(nb::handle object) {
  static PyObject *const kLocal = PyUnicode_InternFromString("to_local"),
                         *const kStorage = PyUnicode_InternFromString("untyped_storage");
  const nb::handle type = object.type();
  if (type_.is_valid() && type.is(type_)) return *this;
  has_local = type_has(type.ptr(), kLocal);
  has_storage = type_has(type.ptr(), kStorage);
  table = exchange_table(type.ptr());
  type_ = nb::borrow(type);
  return *this;
}

PinnedTensor::PinnedTensor(nb::handle object, const TensorName& what, const LookOptions& options)
    : object_(nb::borrow(object)) {
  Look look = look_through(object, what, true, options);
  view_ = look.view;
  export_ = std::move(look.kept);
}

TensorView PinnedTensor::look(nb::handle object, const TensorName& what,
                              const LookOptions& options) {
  return look_through(object, what, false, options).view;
}

int PinnedTensor::traverse(visitproc visit, void* arg) const {
  Py_VISIT(object_.ptr());
  Py_VISIT(export_.ptr());
  return 0;
}

std::optional<std::uint64_t> stream_by_table(nb::handle tensor, int ordinal) {
  TypeFacts types;
  const nb::object local =
      types.of(tensor).has_local ? nb::borrow(tensor).attr("to_local")() : nb::borrow(tensor);
  const dlpack::ExchangeTable* const table = types.of(local).table;
  if (table == nullptr || table->current_stream == nullptr) return std::nullopt;
  void* stream = nullptr;
  if (table->current_stream(dlpack::kCuda, ordinal, &stream) != 0) throw nb::python_error();
  return reinterpret_cast<std::uintptr_t>(stream);
}

bool is_of_torch(nb::handle tensor) {
  const nb::dict modules = nb::module_::import_("sys").attr("modules");
  if (!modules.contains("torch")) return false;
  const nb::object type = attribute(modules["torch"], "Tensor");
  return type.is_valid() && PyObject_IsInstance(tensor.ptr(), type.ptr()) == 1;
}

}  // namespace reshard::python
