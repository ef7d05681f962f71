// SPDX-License-Identifier: Apache-2.0
#include "python/src/tensors/exported.h"

#include <fmt/format.h>

#include "python/src/tensors/buffers.h"
#include "python/src/tensors/gpus.h"
#include "python/src/tensors/tensors.h"
#include "python/src/values.h"

namespace reshard::python {
namespace {

/// Two 4-bit elements are one of DLPack's and numpy's.
Dims exported_shape(DType dtype, Dims shape) {
  if (bits(dtype) == 4 && shape.size() > 0) shape[shape.size() - 1] /= 2;
  return shape;
}

nb::ndarray<nb::array_api> array_of(const nb::object& owner, std::byte* data, const Dims& shape,
                                    dlpack::DataType dtype, dlpack::Device device) {
  std::array<std::size_t, kMaxDims> sizes{};
  for (int i = 0; i < shape.size(); ++i)
    sizes[static_cast<std::size_t>(i)] = static_cast<std::size_t>(shape[i]);
  // A consumer may refuse a null address although there are no bytes.
  alignas(64) static std::byte nothing[64];
  return nb::ndarray<nb::array_api>(data == nullptr ? nothing : data,
                                    static_cast<std::size_t>(shape.size()), sizes.data(), owner,
                                    nullptr, dtype, device.device_type, device.device_id);
}

/// numpy's dtype of this name, or that of ml_dtypes.
nb::object numpy_dtype(DType dtype) {
  switch (dtype) {
    case DType::boolean: return nb::str("bool");
    case DType::f4:
    case DType::i4: return nb::str("uint8");
    case DType::i8: return nb::str("int8");
    case DType::u8: return nb::str("uint8");
    case DType::i16: return nb::str("int16");
    case DType::u16: return nb::str("uint16");
    case DType::i32: return nb::str("int32");
    case DType::u32: return nb::str("uint32");
    case DType::i64: return nb::str("int64");
    case DType::u64: return nb::str("uint64");
    case DType::f16: return nb::str("float16");
    case DType::f32: return nb::str("float32");
    case DType::f64: return nb::str("float64");
    case DType::c64: return nb::str("complex64");
    default: break;
  }
  const char* of_ml_dtypes = dtype == DType::bf16          ? "bfloat16"
                             : dtype == DType::f8_e4m3     ? "float8_e4m3fn"
                             : dtype == DType::f8_e5m2     ? "float8_e5m2"
                             : dtype == DType::f8_e8m0     ? "float8_e8m0fnu"
                             : dtype == DType::f8_e4m3fnuz ? "float8_e4m3fnuz"
                             : dtype == DType::f8_e5m2fnuz ? "float8_e5m2fnuz"
                                                           : nullptr;
  if (of_ml_dtypes == nullptr)
    raise(Code::unsupported, fmt::format("numpy has no {}; take raw()", name(dtype)));
  try {
    return nb::module_::import_("ml_dtypes").attr(of_ml_dtypes);
  } catch (nb::python_error&) {
    raise(Code::unsupported, fmt::format("numpy has no {}: pip install ml_dtypes, or take raw() "
                                         "or torch()",
                                         name(dtype)));
  }
}

}  // namespace

std::unique_ptr<ExportedTensor> ExportedTensor::allocate(DType dtype, const Dims& shape) {
  auto buffer =
      std::make_unique<HostBuffer>(unwrap(HostBuffer::allocate(volume(shape) * bits(dtype) / 8)));
  std::byte* data = buffer->data();
  const nb::capsule owner(buffer.release(),
                          [](void* p) noexcept { delete static_cast<HostBuffer*>(p); });
  return std::make_unique<ExportedTensor>(nb::borrow(owner), data, dtype, shape);
}

std::unique_ptr<ExportedTensor> ExportedTensor::allocate(DType dtype, const Dims& shape, int gpu) {
  auto buffer = std::make_unique<cuda::Buffer>(
      unwrap(cuda::Buffer::on_device(reshard::python::gpu(gpu), volume(shape) * bits(dtype) / 8)));
  std::byte* data = buffer->data();
  const nb::capsule owner(buffer.release(),
                          [](void* p) noexcept { delete static_cast<cuda::Buffer*>(p); });
  return std::make_unique<ExportedTensor>(nb::borrow(owner), data, dtype, shape, gpu);
}

dlpack::Device ExportedTensor::device() const {
  return gpu_ < 0 ? dlpack::Device{dlpack::kCpu, 0} : dlpack::Device{dlpack::kCuda, gpu_};
}

std::string ExportedTensor::place() const { return gpu_ < 0 ? "cpu" : gpu_text(gpu_); }

void ExportedTensor::expect_on_host(const char* call) const {
  if (gpu_ >= 0)
    raise(Code::unsupported, fmt::format("{}: the memory is on {}, which the processor does not "
                                         "reach; take torch(), or torch().cpu() for a copy",
                                         call, place()));
}

/// The stream that a consumer of DLPack names: none for -1, which is not to wait.
std::optional<cuda::StreamHandle> ExportedTensor::consumer_of(const nb::kwargs& arguments) {
  if (!arguments.contains("stream") || nb::object(arguments["stream"]).is_none()) return nullptr;
  const nb::object given = arguments["stream"];
  if (given.equal(nb::int_(-1))) return std::nullopt;
  return stream_handle(given, -1);
}

nb::object ExportedTensor::capsule(nb::kwargs arguments) const {
  const auto known = dlpack_dtype(dtype_);
  if (!known) raise(Code::unsupported, fmt::format("DLPack has no {}; take raw()", name(dtype_)));
  if (gpu_ >= 0 && nb::isinstance<TensorBuffers>(owner_))
    if (const auto consumer = consumer_of(arguments))
      nb::cast<TensorBuffers&>(owner_).lend(*consumer);
  const nb::object array =
      nb::cast(array_of(owner_, data_, exported_shape(dtype_, shape_), *known, device()));
  return array.attr("__dlpack__")(**arguments);
}

nb::object ExportedTensor::raw() const {
  expect_on_host("raw()");
  const nb::object array = nb::cast(
      array_of(owner_, data_, Dims::filled(1, bytes()), *dlpack_dtype(DType::u8), device()));
  return nb::steal(PyMemoryView_FromObject(array.ptr()));
}

nb::object ExportedTensor::numpy() const {
  expect_on_host("numpy()");
  const nb::object dtype = numpy_dtype(dtype_);
  const nb::module_ numpy = nb::module_::import_("numpy");
  return numpy.attr("frombuffer")(raw(), nb::arg("dtype") = dtype)
      .attr("reshape")(to_tuple(exported_shape(dtype_, shape_)));
}

nb::object ExportedTensor::torch(nb::handle self) const {
  return nb::module_::import_("torch").attr("from_dlpack")(self);
}

std::string ExportedTensor::text() const {
  return fmt::format("reshard.Tensor({} {}, {} bytes{})", name(dtype_), shape_text(shape_), bytes(),
                     gpu_ < 0 ? "" : ", " + place());
}

}  // namespace reshard::python
