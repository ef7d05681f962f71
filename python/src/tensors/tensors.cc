// SPDX-License-Identifier: Apache-2.0
// Looks at a Python object's tensor in the fastest way that its type offers: a table of C functions
// (torch from 2.10 on), the buffer protocol (numpy, bytearray, mmap, array.array), __dlpack__ (JAX,
// older torch), numpy's __array_interface__ for dtypes that no buffer can have, and
// __cuda_array_interface__ (Numba and others).
#include "python/src/tensors/tensors.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>

#include "python/src/tensors/gpus.h"

namespace reshard::python {
namespace {

using dlpack::DataType;

/// A look that failed: the object cannot be seen this way. The Python exception, if any, is
/// cleared.
struct Unseen {
  std::string why;
};

/// The text of the Python exception that is set, which is cleared; its first line only, because
/// some carry a C++ stack.
std::string take_exception() {
  if (PyErr_Occurred() == nullptr) return "";
  const nb::python_error error;
  const std::string text = nb::str(error.value()).c_str();
  return text.substr(0, text.find('\n'));
}

/// Invalid if there is none, or no object.
nb::object attribute(nb::handle object, const char* name) {
  if (!object.is_valid()) return {};
  PyObject* found = PyObject_GetAttrString(object.ptr(), name);
  if (found == nullptr) PyErr_Clear();
  return nb::steal(found);
}

std::string text_of(nb::handle object) {
  PyObject* text = PyObject_Str(object.ptr());
  if (text == nullptr) return take_exception();
  return nb::cast<std::string>(nb::steal(text));
}

std::string type_text(nb::handle object) {
  return text_of(attribute(object.type(), "__module__")) + "." +
         text_of(attribute(object.type(), "__qualname__"));
}

[[noreturn]] void too_many_dims(int found) {
  throw Unseen{fmt::format("{} dimensions; at most {}", found, kMaxDims)};
}

TensorView view_of(const dlpack::Tensor& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > kMaxDims) too_many_dims(tensor.ndim);
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

/// The table of the type, or null.
const dlpack::ExchangeTable* exchange_table(nb::handle object) {
  static PyObject* const kName = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  PyObject* found = PyObject_GetAttr(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())), kName);
  if (found == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  const nb::object capsule = nb::steal(found);
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  auto* table = static_cast<dlpack::ExchangeTable*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (table != nullptr && table->version.major != 1) table = table->previous;
  return table;
}

std::optional<TensorView> look_by_table(nb::handle object) {
  const dlpack::ExchangeTable* const table = exchange_table(object);
  if (table == nullptr || table->tensor_from_object == nullptr) return std::nullopt;
  dlpack::Tensor tensor;
  if (table->tensor_from_object(object.ptr(), &tensor) != 0) throw Unseen{take_exception()};
  return view_of(tensor);
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

TensorView view_of(const Py_buffer& buffer) {
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
    PyErr_Clear();
    return std::nullopt;
  }
  return view_of(*buffer);
}

/// True if `__dlpack_device__` names an NVIDIA GPU.
bool says_gpu(nb::handle object) {
  const nb::object method = attribute(object, "__dlpack_device__");
  if (!method.is_valid()) return false;
  const nb::object said = method();
  return nb::cast<int>(said[0]) == dlpack::kCuda;
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
    const std::string text = text_of(error.value());
    throw Unseen{text.substr(0, text.find('\n'))};
  } catch (const nb::cast_error&) {
    throw Unseen{"__dlpack_device__ did not return two numbers"};
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

/// numpy arrays with dtypes of ml_dtypes, which neither a buffer nor numpy's DLPack can express.
std::optional<TensorView> look_by_interface(nb::handle object) {
  const nb::object interface = attribute(object, "__array_interface__");
  const nb::object name = attribute(attribute(object, "dtype"), "name");
  if (!interface.is_valid() || !name.is_valid()) return std::nullopt;
  std::string text = text_of(name);
  const std::optional<DType> dtype =
      text == "float8_e8m0fnu" ? DType::f8_e8m0 : dtype_from_torch_name(text);
  const std::optional<DataType> known = dtype ? dlpack_dtype(*dtype) : std::nullopt;
  if (!known || known->lanes != 1)
    throw Unseen{
        fmt::format("numpy's dtype {} is none of reshard's; it can be taken as its bits, in "
                    "unsigned integers of the same width (4-bit elements in pairs)",
                    text)};
  if (nb::cast<std::string>(interface["typestr"]).starts_with('>'))
    throw Unseen{"its elements are big-endian"};
  const auto [address, read_only] = nb::cast<std::pair<std::uintptr_t, bool>>(interface["data"]);
  std::array<Index, kMaxDims> shape{}, strides{};
  const auto sizes = nb::cast<std::vector<Index>>(attribute(object, "shape"));
  const auto steps = nb::cast<std::vector<Index>>(attribute(object, "strides"));
  if (sizes.size() > kMaxDims) too_many_dims(static_cast<int>(sizes.size()));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    shape[i] = sizes[i];
    strides[i] = steps[i] % (known->bits / 8) == 0 ? steps[i] / (known->bits / 8) : -1;
  }
  TensorView view = view_of(dlpack::Tensor{.data = reinterpret_cast<void*>(address),
                                           .device = {dlpack::kCpu, 0},
                                           .ndim = static_cast<std::int32_t>(sizes.size()),
                                           .dtype = *known,
                                           .shape = shape.data(),
                                           .strides = strides.data()});
  view.read_only = read_only;
  return view;
}

/// The dtype of a `typestr` of the array interface, such as "<f4".
DataType dtype_of_typestr(const std::string& text) {
  int bytes = 0;
  const char* const end = text.data() + text.size();
  const bool has_size =
      text.size() > 2 && std::from_chars(text.data() + 2, end, bytes).ptr == end && bytes > 0;
  if (!has_size || bytes > 16) throw Unseen{fmt::format("elements of type '{}'", text)};
  if (text[0] == '>' && bytes > 1) throw Unseen{"its elements are big-endian"};
  const char kind = text[1];
  const auto code = kind == 'b'   ? dlpack::Code::Bool
                    : kind == 'i' ? dlpack::Code::Int
                    : kind == 'u' ? dlpack::Code::UInt
                    : kind == 'f' ? dlpack::Code::Float
                    : kind == 'c' ? dlpack::Code::Complex
                                  : throw Unseen{fmt::format("elements of type '{}'", text)};
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bytes * 8), 1};
}

/// The GPU that has the memory; any will do for none.
int gpu_with(std::uintptr_t address) {
  if (address == 0) return 0;
  try {
    return gpu_of_address(reinterpret_cast<const void*>(address));
  } catch (const Raised& raised) {
    throw Unseen{raised.error().message};
  }
}

/// Memory of a GPU by version 2 or 3 of the CUDA array interface. Its address says which GPU.
std::optional<TensorView> look_by_cuda_interface(nb::handle object) {
  const nb::object found = attribute(object, "__cuda_array_interface__");
  if (!found.is_valid()) return std::nullopt;
  try {
    const auto fields = nb::cast<nb::dict>(found);
    const DataType dtype = dtype_of_typestr(nb::cast<std::string>(fields["typestr"]));
    const auto [address, read_only] = nb::cast<std::pair<std::uintptr_t, bool>>(fields["data"]);
    const auto sizes = nb::cast<std::vector<Index>>(nb::list(fields["shape"]));
    const auto field = [&](const char* name) {
      return fields.contains(name) ? nb::object(fields[name]) : nb::object(nb::none());
    };
    if (!field("mask").is_none()) throw Unseen{"it has a mask"};
    std::vector<Index> steps;
    if (const nb::object given = field("strides"); !given.is_none())
      steps = nb::cast<std::vector<Index>>(nb::list(given));
    if (sizes.size() > kMaxDims) too_many_dims(static_cast<int>(sizes.size()));
    if (!steps.empty() && steps.size() != sizes.size())
      throw Unseen{fmt::format("{} strides of {} dimensions", steps.size(), sizes.size())};
    std::array<Index, kMaxDims> shape{}, strides{};
    std::ranges::copy(sizes, shape.begin());
    for (std::size_t i = 0; i < steps.size(); ++i)
      strides[i] = steps[i] % (dtype.bits / 8) == 0 ? steps[i] / (dtype.bits / 8) : -1;
    TensorView view = view_of(dlpack::Tensor{.data = reinterpret_cast<void*>(address),
                                             .device = {dlpack::kCuda, gpu_with(address)},
                                             .ndim = static_cast<std::int32_t>(sizes.size()),
                                             .dtype = dtype,
                                             .shape = shape.data(),
                                             .strides = steps.empty() ? nullptr : strides.data()});
    view.read_only = read_only;
    if (const nb::object stream = field("stream"); !stream.is_none())
      view.producer = nb::cast<std::uint64_t>(stream);
    return view;
  } catch (const nb::cast_error&) {
    throw Unseen{"its __cuda_array_interface__ is not what CUDA's array interface says"};
  } catch (nb::python_error& error) {
    throw Unseen{fmt::format("its __cuda_array_interface__ lacks {}", text_of(error.value()))};
  }
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

/// What a look found, and the export that keeps the memory in place, if any.
struct Look {
  TensorView view;
  nb::object kept;
};

Look look_at(nb::handle object, bool keep, const LookOptions& options) {
  if (auto view = look_by_table(object)) return {*view, {}};
  std::string why;
  try {
    if (auto view = look_by_buffer(object))
      return {*view, keep ? nb::steal(PyMemoryView_FromObject(object.ptr())) : nb::object()};
  } catch (Unseen& unseen) {  // numpy has formats of its own
    why = std::move(unseen.why);
  }
  try {
    if (const nb::object capsule = export_dlpack(object, options); capsule.is_valid())
      return {view_of_capsule(capsule, object), keep ? capsule : nb::object()};
  } catch (Unseen& unseen) {
    why = std::move(unseen.why);
  }
  if (auto view = look_by_interface(object)) return {*view, {}};
  if (auto view = look_by_cuda_interface(object)) return {*view, {}};
  throw Unseen{why};
}

/// The local tensor of a DTensor; a tensor that requires a gradient, without it.
nb::object plain(nb::handle object) {
  static PyObject* const kLocal = PyUnicode_InternFromString("to_local");
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
  if (PyObject_HasAttr(type, kLocal) != 0) return nb::borrow(object).attr("to_local")();
  return nb::borrow(object);
}

Look look_through(nb::handle object, const TensorName& what, bool keep,
                  const LookOptions& options) {
  const nb::object tensor = plain(object);
  std::string why;
  try {
    return look_at(tensor, keep, options);
  } catch (const Unseen& unseen) {
    why = unseen.why;
  }
  const nb::object grad = attribute(tensor, "requires_grad");
  const nb::object detach = attribute(tensor, "detach");
  if (grad.is_valid() && grad.is(nb::bool_(true)) && detach.is_valid()) {
    try {
      return look_at(detach(), keep, options);
    } catch (const Unseen& unseen) {
      why = unseen.why;
    }
  }
  raise(Code::invalid_argument, fmt::format("{}: {}", what.text(), explain(tensor, why)));
}

}  // namespace

PinnedTensor::PinnedTensor(nb::handle object, const TensorName& what, const LookOptions& options)
    : object_(nb::borrow(object)) {
  Look look = look_through(object, what, true, options);
  view_ = look.view;
  export_ = std::move(look.kept);
}

TensorView PinnedTensor::look(const TensorName& what, const LookOptions& options) const {
  return look_through(object_, what, false, options).view;
}

int PinnedTensor::traverse(visitproc visit, void* arg) const {
  Py_VISIT(object_.ptr());
  Py_VISIT(export_.ptr());
  return 0;
}

std::optional<std::uint64_t> stream_by_table(nb::handle tensor, int ordinal) {
  const nb::object local = plain(tensor);
  const dlpack::ExchangeTable* const table = exchange_table(local);
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
