// SPDX-License-Identifier: Apache-2.0
// quantise() and dequantise() of one matrix, in tensors of the caller's or new ones.
#include <fmt/format.h>

#include "python/src/collectable.h"
#include "python/src/tensors/exported.h"
#include "python/src/tensors/gpu_quantise.h"
#include "python/src/tensors/tensors.h"
#include "python/src/values.h"
#include "reshard/exec/matrix_threads.h"

namespace reshard::python {
namespace {

/// A quantised matrix: a format and the tensors of its parts.
struct QuantisedMatrix {
  QuantFormat format;
  Index rows = 0, cols = 0;
  nb::object data, scales, factor;  ///< factor: None if the format has none.

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(data.ptr());
    Py_VISIT(scales.ptr());
    Py_VISIT(factor.ptr());
    return 0;
  }
  void clear() {
    const auto parts =
        std::tuple(std::exchange(data, {}), std::exchange(scales, {}), std::exchange(factor, {}));
  }
};

QuantFormat format_of(const std::string& name) {
  const auto format = quant_format_from_name(name);
  if (!format)
    raise(Code::invalid_argument,
          fmt::format("no quantisation format '{}'; known: {}", name, known_quant_formats()));
  return *format;
}

Dims shape2(Index rows, Index cols) {
  Dims shape;
  shape.push_back(rows);
  shape.push_back(cols);
  return shape;
}

/// The dtype and shape of the scales: a matrix, or a row of bytes if they are swizzled.
WantedTensor wanted_scales(const QuantFormat& format, Index rows, Index cols) {
  const Dims shape = format.order == ScaleOrder::swizzled
                         ? Dims::filled(1, scale_bytes(format, rows, cols))
                         : shape2(scale_rows(format, rows), scale_cols(format, cols));
  return {format.scale, shape, shape};
}

LookOptions looks(const nb::object& stream) {
  return {stream.is_none() ? std::int64_t{1} : dlpack_stream(stream_handle(stream, -1))};
}

/// The place where a conversion runs: the stream of a GPU, if there is one, else here.
class Place {
 public:
  /// The place of a tensor. `stream` as Python gives it.
  Place(const PinnedTensor& tensor, const nb::object& stream) {
    const TensorView& view = tensor.view();
    if (view.on_host()) return;
    ordinal_ = view.device.device_id;
    const auto& device = gpu(ordinal_);
    CUstream_st* const handle = stream.is_none() ? current_stream(tensor.object(), ordinal_)
                                                 : stream_handle(stream, ordinal_);
    stream_.emplace(cuda::Stream::borrow(device, handle));
    follow(view);
  }
  /// Errors: a tensor that is elsewhere.
  void expect(const TensorView& view, const char* what) {
    if (view.bytes() > 0 &&
        (stream_ ? !view.on_gpu() || view.device.device_id != ordinal_ : !view.on_host()))
      raise(Code::invalid_argument,
            fmt::format("'{}': is on {}, but must be on {} as the others", what, view.place(),
                        stream_ ? gpu_text(ordinal_) : "the host"));
    if (stream_) follow(view);
  }
  /// New memory there.
  std::unique_ptr<ExportedTensor> allocate(DType dtype, const Dims& shape) const {
    return stream_ ? ExportedTensor::allocate(dtype, shape, ordinal_)
                   : ExportedTensor::allocate(dtype, shape);
  }
  const std::optional<cuda::Stream>& stream() const { return stream_; }

 private:
  void follow(const TensorView& view) {
    if (view.producer)
      order_.order(stream_->shared_device(), stream_of_number(*view.producer), stream_->handle());
  }

  int ordinal_ = -1;
  std::optional<cuda::Stream> stream_;
  StreamOrder order_;
};

/// A matrix of floats in a tensor whose rows may be apart.
class FloatTensor {
 public:
  FloatTensor(nb::handle tensor, const char* what, const LookOptions& options)
      : pinned_(tensor, {.name = what}, options) {
    const TensorView& view = pinned_.view();
    const auto dtype = dtype_of_dlpack(view.dtype);
    const bool floats = dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32;
    check_place(view, Memory::host_or_gpu, {.name = what});
    if (view.shape.size() != 2 || !floats || (view.shape[1] > 1 && view.strides[1] != 1) ||
        (view.shape[0] > 1 && view.strides[0] < view.shape[1]))
      raise(Code::invalid_argument,
            fmt::format(
                "{}: {} {} with strides {}; must be a matrix of BF16, F16 or F32 whose rows "
                "are contiguous",
                what, dtype_text(view.dtype), shape_text(view.shape), shape_text(view.strides)));
    if (view.data == nullptr && volume(view.shape) > 0)
      raise(Code::invalid_argument, fmt::format("{}: has no memory", what));
    matrix_ = {
        .data = view.data,
        .dtype = *dtype,
        .rows = view.shape[0],
        .cols = view.shape[1],
        .row_bytes = (view.shape[0] > 1 ? view.strides[0] : view.shape[1]) * bits(*dtype) / 8};
  }
  const FloatMatrix& matrix() const { return matrix_; }
  bool read_only() const { return pinned_.view().read_only; }
  const PinnedTensor& pinned() const { return pinned_; }

 private:
  PinnedTensor pinned_;
  FloatMatrix matrix_;
};

/// The memory of one part: the caller's tensor, or a new one.
struct Part {
  nb::object tensor;
  std::optional<PinnedTensor> pinned;
  std::byte* data = nullptr;
};

Part part_of(const nb::object& given, const WantedTensor& wanted, const char* name, Place& place,
             bool writes) {
  Part part;
  if (given.is_none()) {
    auto made = place.allocate(wanted.dtype, wanted.shape);
    part.data = made->data();
    part.tensor = nb::cast(std::move(made));
    return part;
  }
  part.tensor = given;
  part.pinned.emplace(given, TensorName{.name = name});
  const TensorView& view = part.pinned->view();
  check_tensor(view, wanted, {.name = name}, "this format", Memory::host_or_gpu);
  place.expect(view, name);
  if (writes && view.read_only)
    raise(Code::invalid_argument, fmt::format("'{}': is read-only, but is written", name));
  part.data = view.data;
  return part;
}

/// The parts of a quantised matrix, and as the kernels take them.
struct Parts {
  Part data, scales, factor;
  QuantMatrix matrix;
};

Parts parts_of(const QuantFormat& format, Index rows, Index cols, const nb::object& data,
               const nb::object& scales, const nb::object& factor, Place& place, bool writes) {
  unwrap(check_quant_format(format, rows, cols));
  const Dims shape = shape2(rows, cols), one = Dims::filled(1, 1);
  const WantedTensor wanted = wanted_scales(format, rows, cols);
  Parts out;
  out.data = part_of(data, {format.data, shape, shape}, "data", place, writes);
  out.scales = part_of(scales, wanted, "scales", place, writes);
  if (format.tensor_factor)
    out.factor = part_of(factor, {DType::f32, one, Dims()}, "factor", place, writes);
  else if (!factor.is_none())
    raise(Code::invalid_argument, fmt::format("'factor': {} has none", to_string(format)));
  out.matrix = {.format = format,
                .data = out.data.data,
                .rows = rows,
                .cols = cols,
                .row_bytes = cols * bits(format.data) / 8,
                .scales = out.scales.data,
                .scale_row_bytes = scale_cols(format, cols) * bits(format.scale) / 8,
                .factor = out.factor.data};
  return out;
}

std::unique_ptr<QuantisedMatrix> quantise_tensor(const nb::object& matrix,
                                                 const std::string& format, const nb::object& data,
                                                 const nb::object& scales, const nb::object& factor,
                                                 Index threads, const nb::object& stream) {
  const int workers = threads_of(threads);
  const FloatTensor source(matrix, "matrix", looks(stream));
  Place place(source.pinned(), stream);
  const QuantFormat how = format_of(format);
  const FloatMatrix& from = source.matrix();
  Parts parts = parts_of(how, from.rows, from.cols, data, scales, factor, place, true);
  without_gil([&] {
    if (!place.stream()) return quantise_in_threads(from, parts.matrix, workers);
    run_matrix(*place.stream(), cuda::MatrixWork::quantise, from, parts.matrix);
  });
  return std::make_unique<QuantisedMatrix>(
      QuantisedMatrix{how, from.rows, from.cols, parts.data.tensor, parts.scales.tensor,
                      how.tensor_factor ? parts.factor.tensor : nb::object(nb::none())});
}

nb::object dequantise_tensor(const nb::object& data, const nb::object& scales,
                             const nb::object& factor, const std::string& format,
                             const nb::object& dtype, const nb::object& out, Index threads,
                             const nb::object& stream) {
  const int workers = threads_of(threads);
  const QuantFormat how = format_of(format);
  const PinnedTensor pinned(data, {.name = "data"}, looks(stream));
  check_place(pinned.view(), Memory::host_or_gpu, {.name = "data"});
  Place place(pinned, stream);
  Dims shape = pinned.view().shape;
  if (shape.size() != 2)
    raise(Code::invalid_argument,
          fmt::format("'data': shape {}; must be a matrix", shape_text(shape)));
  const bool pairs = bits(how.data) == 4 && !(dtype_of_dlpack(pinned.view().dtype) == how.data &&
                                              pinned.view().dtype.lanes == 1);
  if (pairs && __builtin_mul_overflow(shape[1], Index{2}, &shape[1]))
    raise(Code::invalid_argument, "'data': too large");
  if (how.tensor_factor && factor.is_none())
    raise(Code::invalid_argument, fmt::format("{} needs the factor", format));
  if (scales.is_none()) raise(Code::invalid_argument, "dequantise() needs the scales");
  const Parts parts = parts_of(how, shape[0], shape[1], data, scales, factor, place, false);
  nb::object made = out;
  if (out.is_none()) made = nb::cast(place.allocate(dtype_of(dtype), shape));
  const FloatTensor to(made, "out", looks(stream));
  place.expect(to.pinned().view(), "out");
  if (to.matrix().rows != shape[0] || to.matrix().cols != shape[1] || to.read_only())
    raise(Code::invalid_argument,
          fmt::format("'out': must be a writable matrix {}", shape_text(shape)));
  without_gil([&] {
    if (!place.stream()) return dequantise_in_threads(parts.matrix, to.matrix(), workers);
    run_matrix(*place.stream(), cuda::MatrixWork::dequantise, to.matrix(), parts.matrix);
  });
  return made;
}

void bind_class(nb::module_& m) {
  nb::class_<QuantisedMatrix>(m, "QuantisedMatrix", collectable<QuantisedMatrix>(),
                              R"(A matrix as quantise() stores it.

data    its elements, in the dtype of the format
scales  [rows of blocks, columns of blocks]; swizzled scales are a row of bytes
factor  one F32 for formats with a factor for the whole matrix, else None)")
      .def_ro("data", &QuantisedMatrix::data,
              "Its elements as a Tensor, in the dtype of the format.")
      .def_ro("scales", &QuantisedMatrix::scales,
              "A Tensor [rows of blocks, columns of blocks]; a row of bytes if swizzled.")
      .def_ro("factor", &QuantisedMatrix::factor,
              "One F32 for the whole matrix, as a Tensor, or None.")
      .def_prop_ro(
          "format", [](const QuantisedMatrix& x) { return to_string(x.format); },
          "The name of the format, as quantise() takes it.")
      .def_prop_ro(
          "shape", [](const QuantisedMatrix& x) { return shape2(x.rows, x.cols); },
          "[rows, columns] of the matrix.")
      .def("__repr__", [](const QuantisedMatrix& x) {
        return fmt::format("<QuantisedMatrix {} {}>", to_string(x.format),
                           shape_text(shape2(x.rows, x.cols)));
      });
}

void bind_conversions(nb::module_& m) {
  m.def("quantise", &quantise_tensor, nb::arg("matrix"), nb::arg("format"), nb::kw_only(),
        nb::arg("data") = nb::none(), nb::arg("scales") = nb::none(),
        nb::arg("factor") = nb::none(), nb::arg("threads") = 0, nb::arg("stream") = nb::none(),
        nb::sig("def quantise(matrix: typing.Any, format: str, *, data: typing.Any = None, scales: "
                "typing.Any = None, factor: typing.Any = None, threads: int = 0, stream: "
                "typing.Any = None) -> QuantisedMatrix"),
        R"(Quantises a matrix: [rows, columns] of BF16, F16 or F32, rows contiguous.

`format` is a name such as "mxfp8", "fp8_block" or "nvfp4" (docs/quantisation.md). The result is in
`data`, `scales` and `factor` where they are given, else in new reshard.Tensors. Bits are those that
torch, torchao and compressed-tensors compute, whatever the number of `threads` (0: one per core;
a matrix of less than 2 MiB takes one). A matrix on a GPU is quantised there, with all parts,
after the work of `stream` (as for RankBuffers), and when the call returns. Raises InvalidArgumentError
for shapes, dtypes and places that do not fit.)");
  m.def(
      "dequantise", &dequantise_tensor, nb::arg("data"), nb::arg("scales"),
      nb::arg("factor") = nb::none(), nb::kw_only(), nb::arg("format"),
      nb::arg("dtype") = "bfloat16", nb::arg("out") = nb::none(), nb::arg("threads") = 0,
      nb::arg("stream") = nb::none(),
      nb::sig("def dequantise(data: typing.Any, scales: typing.Any, factor: typing.Any = None, *, "
              "format: str, dtype: typing.Any = 'bfloat16', out: typing.Any = None, threads: int = "
              "0, stream: typing.Any = None) -> typing.Any"),
      R"(The values of a quantised matrix, rounded to `dtype`: BF16, F16 or F32.

They are written to `out`, whose dtype then counts, or to a new reshard.Tensor. `threads` as for
quantise(). Parts on a GPU are dequantised there, after the work of `stream`, and when the call
returns. Raises InvalidArgumentError for parts that do not fit the format.)");
  m.def(
      "amax",
      [](const nb::object& matrix, Index threads, const nb::object& stream) {
        const int workers = threads_of(threads);
        const FloatTensor source(matrix, "matrix", looks(stream));
        const Place place(source.pinned(), stream);
        return without_gil([&] {
          return place.stream() ? amax_on_gpu(*place.stream(), source.matrix())
                                : amax_in_threads(source.matrix(), workers);
        });
      },
      nb::arg("matrix"), nb::kw_only(), nb::arg("threads") = 0, nb::arg("stream") = nb::none(),
      nb::sig("def amax(matrix: typing.Any, *, threads: int = 0, stream: typing.Any = None) -> "
              "float"),
      "The largest magnitude in a matrix of BF16, F16 or F32; 0 if it is empty, NaN if any element "
      "is NaN. `threads` and `stream` as for quantise().");
}

}  // namespace

void bind_quantise(nb::module_& m) {
  bind_class(m);
  bind_conversions(m);
}

}  // namespace reshard::python
