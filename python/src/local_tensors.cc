// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "python/src/layout.h"
#include "reshard/base/number_text.h"
#include "reshard/convert/slot_files.h"

namespace reshard::python {
namespace {

/// reshard.Fragment
struct NamedFragment {
  std::string tensor;
  Box box;
  Strided where;
};

/// reshard.LocalTensor
struct NamedLocalTensor {
  std::string name;
  DType dtype;
  Dims shape;  ///< as the framework's module reports it
  Dims index_shape;
  ValueMap map;
  FileTensor in_file;
  std::vector<NamedFragment> fragments;

  Index bytes() const { return bytes_of(dtype, volume(shape)).value_or(0); }
  Index padding() const {
    Index covered = 0;
    for (const NamedFragment& f : fragments) covered += f.box.volume();
    return volume(shape) - covered;
  }
};

NamedLocalTensor local_tensor(const ModelLayout& layout, const SlotFiles& files, SlotId id,
                              Rank rank) {
  const Slot& slot = layout.slot(id);
  const LocalTensor local = layout.local(id, rank);
  NamedLocalTensor out{slot.name,   slot.dtype, layout.stored_shape(id, rank),
                       local.shape, slot.map,   files.file_tensor(id, rank),
                       {}};
  for (const Fragment& f : local.fragments)
    out.fragments.push_back({layout.model()[f.tensor].name, f.box, f.where});
  return out;
}

void bind_fragment(nb::module_& m) {
  nb::class_<NamedFragment>(m, "Fragment", R"(One box of one canonical tensor inside a local tensor.

The element at position p of the box is element `offset + sum(p[i] * strides[i])` of the local
tensor, counted in elements of its flat memory.)")
      .def_ro("tensor", &NamedFragment::tensor, "The name of the canonical tensor.")
      .def_ro("box", &NamedFragment::box, "Of the canonical tensor.")
      .def_prop_ro(
          "offset", [](const NamedFragment& x) { return x.where.offset; },
          "Of the box's first element in the local tensor. Elements.")
      .def_prop_ro(
          "strides", [](const NamedFragment& x) { return x.where.strides; },
          "In the local tensor, for each dimension of the box. Elements.")
      .def(
          "__eq__",
          [](const NamedFragment& a, const nb::handle& other) {
            if (!nb::isinstance<NamedFragment>(other)) return false;
            const auto& b = nb::cast<const NamedFragment&>(other);
            return a.tensor == b.tensor && a.box == b.box && a.where == b.where;
          },
          nb::arg().none())
      .def(
          "__hash__",
          [](const NamedFragment& x) { return nb::hash(nb::make_tuple(x.tensor, x.where.offset)); })
      .def("__repr__", [](const NamedFragment& x) {
        return fmt::format("<Fragment '{}' {} at {}, strides {}>", x.tensor, to_string(x.box),
                           x.where.offset, to_string(x.where.strides));
      });
}

void bind_local_tensor(nb::module_& m) {
  nb::class_<NamedLocalTensor>(m, "LocalTensor", R"(A tensor that one rank holds in a layout.

Elements that no fragment covers are padding.)")
      .def_ro("name", &NamedLocalTensor::name, "The parameter's name in the framework's module.")
      .def_ro("dtype", &NamedLocalTensor::dtype, "Of the elements that it stores.")
      .def_ro("shape", &NamedLocalTensor::shape, "As the framework's module reports it.")
      .def_ro(
          "index_shape", &NamedLocalTensor::index_shape,
          "The shape that the layout counts in: `shape`, or one of more dimensions and the same "
          "elements.")
      .def_prop_ro("bytes", &NamedLocalTensor::bytes, "Its size in bytes.")
      .def_prop_ro("padding", &NamedLocalTensor::padding,
                   "Its number of elements that belong to no canonical tensor.")
      .def_prop_ro(
          "map", [](const NamedLocalTensor& x) { return name(x.map); },
          "What is done to canonical values before they are stored: \"identity\", "
          "\"negated_exp\", \"plus_one\" or \"minus_one\".")
      .def_ro("fragments", &NamedLocalTensor::fragments,
              "The boxes of canonical tensors that are in it, as Fragment; no two overlap.")
      .def_prop_ro(
          "file_name", [](const NamedLocalTensor& x) { return x.in_file.name; },
          "Its name in files and modules, where quantised tensors may have another one.")
      .def_prop_ro(
          "file_dtype", [](const NamedLocalTensor& x) { return x.in_file.dtype; },
          "Its dtype there: two elements of 4 bits are one byte, for example.")
      .def_prop_ro(
          "file_shape", [](const NamedLocalTensor& x) { return x.in_file.shape; },
          "Its shape there; the bytes are the same.")
      .def("__repr__", [](const NamedLocalTensor& x) {
        return fmt::format("<LocalTensor '{}' {} {}, {}, {}>", x.name, name(x.dtype),
                           to_string(x.shape), human_bytes(x.bytes()),
                           plural(static_cast<Index>(x.fragments.size()), "fragment"));
      });
}

}  // namespace

nb::list local_tensors_of(const Layout& layout, RankArgument argument) {
  const Rank rank = rank_in(layout, argument);
  std::vector<NamedLocalTensor> tensors = without_gil([&] {
    const SlotFiles files = unwrap(SlotFiles::of(layout.side));
    std::vector<NamedLocalTensor> out;
    for (const SlotId id : layout.stored().slots_of(rank))
      out.push_back(local_tensor(layout.stored(), files, id, rank));
    return out;
  });
  nb::list list;
  for (NamedLocalTensor& tensor : tensors) list.append(nb::cast(std::move(tensor)));
  return list;
}

void bind_local_tensors(nb::module_& m) {
  bind_fragment(m);
  bind_local_tensor(m);
}

}  // namespace reshard::python
