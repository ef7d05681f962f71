// SPDX-License-Identifier: Apache-2.0
// The classes RankBuffers and Tensor.
#include <fmt/format.h>

#include "python/src/collectable.h"
#include "python/src/tensors/buffers.h"
#include "python/src/tensors/exported.h"
#include "reshard/base/number_text.h"

namespace reshard::python {
namespace {

using SharedLayout = std::shared_ptr<const Layout>;

std::vector<TensorBuffers::RankTensors> rank_tensors(const nb::object& tensors,
                                                     const Layout& layout) {
  if (PyMapping_Check(tensors.ptr()) == 0 || !nb::hasattr(tensors, "keys"))
    throw nb::type_error(fmt::format("tensors must be a mapping from ranks to mappings from names "
                                     "to tensors, not {}",
                                     nb::type_name(tensors.type()).c_str())
                             .c_str());
  std::vector<TensorBuffers::RankTensors> out;
  for (const nb::handle rank : nb::borrow<nb::iterable>(tensors)) {
    RankArgument argument;
    if (!nb::try_cast(rank, argument))
      throw nb::type_error(fmt::format("tensors: the keys must be ranks (int), not {}",
                                       nb::type_name(rank.type()).c_str())
                               .c_str());
    out.push_back({rank_in(layout, argument), nb::object(tensors[rank])});
  }
  return out;
}

RankSet ranks_of(const nb::object& ranks, const Layout& layout) {
  if (ranks.is_none()) return layout.stored().ranks();
  PyObject* const found = PyObject_GetIter(ranks.ptr());
  if (found == nullptr) {
    clear_ordinary();
    throw nb::type_error(fmt::format("ranks must be an iterable of int or None, not {}",
                                     nb::type_name(ranks.type()).c_str())
                             .c_str());
  }
  return rank_set_of(nb::borrow<nb::iterable>(nb::steal(found)));
}

std::string text_of_buffers(const TensorBuffers& buffers) {
  std::vector<Rank> ranks = buffers.memory().ranks();
  return fmt::format("<RankBuffers of '{}': {}, {}{}{}>", buffers.layout()->stored().name(),
                     plural(static_cast<Index>(ranks.size()), "rank"), human_bytes(buffers.bytes()),
                     buffers.owns_memory() ? ", own memory" : "",
                     buffers.device() == nullptr ? "" : ", " + buffers.place());
}

void bind_tensor(nb::module_& m) {
  nb::class_<ExportedTensor>(
      m, "Tensor", collectable<ExportedTensor>(),
      R"(Memory of reshard's, of the host or of a GPU, for torch, numpy and others without a copy.

Exports DLPack: torch.from_dlpack(tensor), numpy.from_dlpack(tensor), jax.dlpack.from_dlpack(tensor).
What is made of it keeps the memory alive. Of a GPU's memory, the stream that DLPack's consumer names
waits for the refits that were given before. 4-bit elements are exported in pairs, as torch's
float4_e2m1fn_x2 has them: the last dimension is half as long, and JAX does not take them.)")
      .def_prop_ro("shape", &ExportedTensor::shape, "In elements.")
      .def_prop_ro("dtype", &ExportedTensor::dtype, "A reshard.DType.")
      .def_prop_ro("nbytes", &ExportedTensor::bytes, "Its size in bytes.")
      .def(
          "data_ptr",
          [](const ExportedTensor& x) { return reinterpret_cast<std::uintptr_t>(x.data()); },
          "The address of the first byte.")
      .def("__dlpack__", &ExportedTensor::capsule, nb::arg("arguments"),
           nb::sig("def __dlpack__(self, **arguments: typing.Any) -> typing.Any"))
      .def(
          "__dlpack_device__",
          [](const ExportedTensor& x) {
            return std::pair(x.device().device_type, x.device().device_id);
          },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def_prop_ro("device", &ExportedTensor::place, "\"cpu\" or \"cuda:0\".")
      .def("numpy", &ExportedTensor::numpy, nb::sig("def numpy(self) -> typing.Any"),
           "A numpy array on this memory. Dtypes that numpy lacks are those of ml_dtypes; "
           "UnsupportedError if it is not installed, and for memory of a GPU.")
      .def(
          "torch",
          [](nb::handle self) { return nb::cast<const ExportedTensor&>(self).torch(self); },
          nb::sig("def torch(self) -> typing.Any"), "A torch tensor on this memory.")
      .def("raw", &ExportedTensor::raw, nb::sig("def raw(self) -> memoryview"),
           "A writable memoryview of its bytes. UnsupportedError for memory of a GPU.")
      .def("__repr__", &ExportedTensor::text);
}

constexpr const char* kBuffersText = R"(The memory of ranks' local tensors in this process.

    RankBuffers(layout, {rank: {name: tensor}})    memory of your own tensors; nothing is copied
    RankBuffers.allocate(layout, ranks)            zeroed memory of reshard's

stream  of a GPU, on which your work on the tensors is: its handle, a torch.cuda.Stream, or an object
        with __cuda_stream__. Refits read and write the tensors after what it has when they begin.
        None: torch's current stream then, for torch's tensors; else the legacy default stream. No
        meaning for tensors of the host

A tensor is anything that exports DLPack (torch, JAX, reshard.Tensor), a buffer (numpy, bytearray,
memoryview, mmap, array.array) or __cuda_array_interface__, in the memory of the host or of a GPU,
row-major without gaps, with the dtype and shape that `layout.local(rank)` lists. All tensors are on
the host, or all are on one GPU. Three other forms are taken as the bits of the same elements:
unsigned integers of the same width (uint16 for bfloat16, uint8 for 8-bit floats and for pairs of
4-bit ones), and a row of all its bytes in uint8. A tensor that requires a gradient is taken without
it; a DTensor, by its local tensor. In place of a dict, a rank may have a callable that returns one.

The tensors are held. A session looks at each of them again before every refit, through the dict or
callable: one that has moved since, or was freed or resized, is found then, and named.

Raises InvalidArgumentError for a tensor that is not what the layout has (sparse, meta, another dtype
or shape, not contiguous, another place than the others) or that it does not have; NotFoundError for
one that is missing; UnsupportedError for a tensor of another device, and without a driver or kernels
for that of a GPU. Not thread-safe.)";

void bind_allocate(nb::class_<TensorBuffers>& bound) {
  bound.def_static(
      "allocate",
      [](const SharedLayout& layout, const nb::object& ranks, const nb::object& device,
         nb::object stream, int prefault_threads, bool shared) {
        const RankSet of = ranks_of(ranks, *layout);
        if (const auto ordinal = gpu_argument(device))
          return TensorBuffers::allocate(layout, of, *ordinal, std::move(stream));
        return TensorBuffers::allocate(layout, of,
                                       {.prefault_threads = prefault_threads, .shared = shared});
      },
      nb::arg("layout"), nb::arg("ranks") = nb::none(), nb::kw_only(),
      nb::arg("device") = nb::none(), nb::arg("stream") = nb::none(),
      nb::arg("prefault_threads") = 0, nb::arg("shared") = false,
      nb::sig("def allocate(layout: Layout, ranks: collections.abc.Iterable[int] | None = "
              "None, *, device: typing.Any = None, stream: typing.Any = None, "
              "prefault_threads: int = 0, shared: bool = False) -> RankBuffers"),
      R"(Allocates zeroed memory for the local tensors of these ranks; None: of all.

device            "cpu" (as None), or a GPU: "cuda" (the first), "cuda:1", a torch.device
stream            of the GPU, as for RankBuffers()
prefault_threads  that touch all pages now; 0: the first writer does, which is slower for it
shared            other processes of this host can map it: the transport shm then reads and writes
                  it in place

The last two are of the host's memory. Raises IoError if memory is short; it says how many bytes were
needed. UnsupportedError without a driver.)");
}

void bind_why_no_gpu(nb::module_& m) {
  m.def(
      "why_no_gpu",
      [](int ordinal) -> std::optional<std::string> {
        std::string why = without_gil([&] { return why_no_gpu(ordinal); });
        return why.empty() ? std::nullopt : std::optional(std::move(why));
      },
      nb::arg("ordinal") = 0, nb::sig("def why_no_gpu(ordinal: int = 0) -> str | None"),
      "Why refits cannot use tensors of this GPU (no driver, no such GPU, no kernels for it in "
      "this "
      "build), or None if they can. The first call opens it.");
}

}  // namespace

void bind_buffers(nb::module_& m) {
  bind_tensor(m);
  bind_why_no_gpu(m);
  nb::class_<TensorBuffers> bound(m, "RankBuffers", collectable<TensorBuffers>(), kBuffersText);
  bound.def(
      "__init__",
      [](TensorBuffers* self, const SharedLayout& layout, const nb::object& tensors,
         nb::object stream) {
        new (self) TensorBuffers(layout, rank_tensors(tensors, *layout), "", std::move(stream));
      },
      nb::arg("layout"), nb::arg("tensors"), nb::kw_only(), nb::arg("stream") = nb::none(),
      nb::sig("def __init__(self, layout: Layout, tensors: collections.abc.Mapping[int, "
              "collections.abc.Mapping[str, typing.Any] | collections.abc.Callable[[], "
              "collections.abc.Mapping[str, typing.Any]]], *, stream: typing.Any = None) -> None"));
  bind_allocate(bound);
  bound.def_prop_ro("layout", &TensorBuffers::layout, "Whose local tensors these are.")
      .def_prop_ro(
          "ranks", [](const TensorBuffers& x) { return x.memory().ranks(); },
          "The ranks with memory here, ascending.")
      .def_prop_ro("device", &TensorBuffers::place,
                   "Where they are: \"cpu\", or \"cuda:0\" for the first GPU.")
      .def_prop_ro("nbytes", &TensorBuffers::bytes, "The size of all local tensors in bytes.")
      .def(
          "tensor",
          [](nb::handle self, RankArgument rank, const std::string& name) {
            const auto& x = nb::cast<const TensorBuffers&>(self);
            return x.tensor(self, rank_in(*x.layout(), rank), name);
          },
          nb::arg("rank"), nb::arg("name"),
          nb::sig("def tensor(self, rank: int, name: str) -> typing.Any"),
          "A local tensor: the object that was given, or a reshard.Tensor. NotFoundError for a "
          "name that the rank lacks.")
      .def(
          "tensors",
          [](nb::handle self, RankArgument rank) {
            const auto& x = nb::cast<const TensorBuffers&>(self);
            return x.tensors_of(self, rank_in(*x.layout(), rank));
          },
          nb::arg("rank"), nb::sig("def tensors(self, rank: int) -> dict[str, typing.Any]"),
          "{name: tensor} of a rank, as tensor() returns them.")
      .def(
          "on_host",
          [](nb::object self) {
            auto& x = nb::cast<TensorBuffers&>(self);
            x.refresh("");
            return x.device() == nullptr ? self : nb::cast(x.on_host());
          },
          nb::sig("def on_host(self) -> RankBuffers"),
          "These, if they are on the host; else copies of all tensors in memory of reshard's "
          "there, "
          "as they are after the work of their stream. Waits for it.")
      .def(
          "refresh", [](TensorBuffers& x) { x.refresh(""); },
          "Looks at all tensors again, as a session does before a refit: notes where they are now. "
          "Raises InvalidArgumentError for one that is no longer what the layout has.")
      .def("__repr__", &text_of_buffers);
}

}  // namespace reshard::python
