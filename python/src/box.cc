// SPDX-License-Identifier: Apache-2.0
#include "python/src/box.h"

#include <fmt/format.h>

namespace reshard::python {

Box box_of(const nb::handle& value) {
  if (nb::isinstance<Box>(value)) return nb::cast<Box>(value);
  std::vector<Interval> dims;
  std::vector<std::pair<Index, Index>> pairs;
  if (!nb::try_cast(value, pairs))
    throw nb::type_error(
        fmt::format("box must be a reshard.Box or pairs (begin, end) of int, not {}",
                    nb::type_name(value.type()).c_str())
            .c_str());
  for (const auto& [begin, end] : pairs) {
    if (begin < 0 || end < begin)
      raise(Code::invalid_argument,
            fmt::format("box: [{},{}) is no interval of indices", begin, end));
    dims.emplace_back(begin, end);
  }
  if (dims.size() > kMaxDims)
    raise(Code::invalid_argument,
          fmt::format("box: {} dimensions; at most {} are possible", dims.size(), kMaxDims));
  return Box(std::span<const Interval>(dims));
}

namespace {

int dimension_of(const Box& box, Index i) {
  if (i < 0) i += box.rank();
  if (i < 0 || i >= box.rank()) throw nb::index_error("a box has no such dimension");
  return static_cast<int>(i);
}

nb::tuple slices_of(const Box& box) {
  nb::list slices;
  for (int i = 0; i < box.rank(); ++i)
    slices.append(nb::slice(nb::cast(box[i].begin()), nb::cast(box[i].end()), nb::none()));
  return nb::tuple(slices);
}

nb::list dims_of(const Box& box) {
  nb::list dims;
  for (int i = 0; i < box.rank(); ++i) dims.append(nb::make_tuple(box[i].begin(), box[i].end()));
  return dims;
}

}  // namespace

void bind_box(nb::module_& m) {
  nb::class_<Box>(m, "Box", R"(A box of a tensor's indices: an interval [begin, end) per dimension.

`Box([(0, 4), (8, 16)])` has rows 0 to 3 and columns 8 to 15. Indexing, len() and iteration give its
(begin, end) pairs. Immutable, and equal to a box with the same indices.)")
      .def(
          "__init__", [](Box* self, const nb::object& dims) { new (self) Box(box_of(dims)); },
          nb::arg("dims"),
          nb::sig("def __init__(self, dims: collections.abc.Iterable[tuple[int, int]]) -> None"),
          "A box with these (begin, end) pairs. Raises InvalidArgumentError for a negative begin "
          "or "
          "an end before it.")
      .def_prop_ro(
          "shape", [](const Box& x) { return x.shape(); }, "Its number of indices per dimension.")
      .def_prop_ro(
          "origin", [](const Box& x) { return x.origin(); }, "Its first index.")
      .def_prop_ro(
          "volume", [](const Box& x) { return x.volume(); },
          "Its number of elements; 1 for a scalar.")
      .def_prop_ro("slices", &slices_of, nb::sig("def slices(self) -> tuple[slice, ...]"),
                   "Its dimensions as slices: `tensor[box.slices]` is the box of a tensor.")
      .def("__len__", &Box::rank)
      .def("__getitem__",
           [](const Box& x, Index i) {
             const Interval dim = x[dimension_of(x, i)];
             return std::pair(dim.begin(), dim.end());
           })
      .def(
          "__iter__", [](const Box& x) { return nb::iter(dims_of(x)); },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[tuple[int, int]]"))
      .def(
          "__eq__",
          [](const Box& a, const nb::handle& b) {
            return nb::isinstance<Box>(b) && a == nb::cast<Box>(b);
          },
          nb::arg().none())
      .def("__hash__", [](const Box& x) { return nb::hash(nb::tuple(dims_of(x))); })
      .def("__str__", [](const Box& x) { return to_string(x); })
      .def("__repr__", [](const Box& x) {
        return fmt::format("Box({})", nb::cast<std::string>(nb::repr(dims_of(x))));
      });
}

}  // namespace reshard::python
