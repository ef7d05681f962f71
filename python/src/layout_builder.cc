// SPDX-License-Identifier: Apache-2.0
#include "python/src/layout_builder.h"

#include <fmt/format.h>

#include <algorithm>

#include "python/src/box.h"

namespace reshard::python {
namespace {

[[noreturn]] void wrong(const std::string& where, const std::string& why) {
  raise(Code::invalid_argument, fmt::format("{}: {}", where, why));
}

/// The dimension of the local tensor for each of the canonical tensor's.
std::array<std::int8_t, kMaxDims> dims_of(const NamedPlacedBox& part, int local_rank,
                                          const std::string& where) {
  std::array<std::int8_t, kMaxDims> dims{};
  std::array<bool, kMaxDims> used{};
  const int rank = part.box.rank();
  if (!part.dims.empty() && static_cast<int>(part.dims.size()) != rank)
    wrong(where,
          fmt::format("dims has {} entries for a box of {} dimensions", part.dims.size(), rank));
  for (int i = 0; i < rank; ++i) {
    const Index dim = part.dims.empty() ? i : part.dims[static_cast<std::size_t>(i)];
    if (dim < 0 || dim >= local_rank)
      wrong(where, fmt::format("dimension {} of the box would be dimension {} of a local tensor of "
                               "{} dimensions",
                               i, dim, local_rank));
    bool& taken = used[static_cast<std::size_t>(dim)];
    if (taken) wrong(where, fmt::format("two dimensions of the box would be dimension {}", dim));
    taken = true;
    dims[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(dim);
  }
  return dims;
}

std::array<std::int16_t, kMaxDims> gaps_of(const NamedPlacedBox& part, const std::string& where) {
  std::array<std::int16_t, kMaxDims> gaps{};
  if (!part.gaps.empty() && static_cast<int>(part.gaps.size()) != part.box.rank())
    wrong(where, fmt::format("gaps has {} entries for a box of {} dimensions", part.gaps.size(),
                             part.box.rank()));
  for (std::size_t i = 0; i < part.gaps.size(); ++i) {
    if (part.gaps[i] < 0 || part.gaps[i] > INT16_MAX)
      wrong(where, fmt::format("gap {} is not from 0 to {}", part.gaps[i], INT16_MAX));
    gaps[i] = static_cast<std::int16_t>(part.gaps[i]);
  }
  return gaps;
}

}  // namespace

CheckedLayoutBuilder::CheckedLayoutBuilder(std::string name, std::shared_ptr<const Model> model)
    : name_(std::move(name)), model_(std::move(model)), builder_(name_, model_->tensors) {}

void CheckedLayoutBuilder::check_open() const {
  if (finished_) wrong(name_, "the layout is finished; a builder makes one");
}

TensorId CheckedLayoutBuilder::tensor(const std::string& name) const {
  if (const auto id = model_->tensors->find(name)) return *id;
  raise(Code::not_found, fmt::format("{}: the model has no tensor '{}'", name_, name));
}

void CheckedLayoutBuilder::add_ranks(const RankSet& ranks) {
  check_open();
  slots_.add_ranks(ranks);
}

PlacedBox CheckedLayoutBuilder::placed(const NamedPlacedBox& part, const Dims& shape,
                                       const std::string& where) const {
  PlacedBox out{tensor(part.tensor), part.box, dims_from(part.at, where + ": at"), {}, {}};
  if (out.at.size() != shape.size())
    wrong(where, fmt::format("at {} has another number of dimensions than shape {}",
                             to_string(out.at), to_string(shape)));
  out.dims = dims_of(part, shape.size(), where);
  out.gaps = gaps_of(part, where);
  return out;
}

void CheckedLayoutBuilder::add(const RankSet& ranks, ExplicitTensor tensor,
                               const std::vector<NamedPlacedBox>& parts) {
  check_open();
  const std::string where = fmt::format("{}: local tensor '{}'", name_, tensor.name);
  if (ranks.empty()) wrong(where, "no ranks hold it");
  if (!bytes_of(tensor.dtype, volume(tensor.shape)))
    wrong(where, fmt::format("{} elements of {} are not whole bytes", volume(tensor.shape),
                             name(tensor.dtype)));
  for (const NamedPlacedBox& part : parts)
    tensor.parts.push_back(placed(part, tensor.shape, where));
  unwrap(check_explicit(tensor, *model_->tensors));
  ranks.for_each([&](Rank rank) {
    if (!names_.emplace(rank, tensor.name).second)
      wrong(where, fmt::format("rank {} holds it twice", rank.value()));
  });
  slots_.add(ranks, std::move(tensor));
}

void CheckedLayoutBuilder::omit(const std::string& name) {
  check_open();
  builder_.omit(tensor(name));
}

std::shared_ptr<const Layout> CheckedLayoutBuilder::finish() {
  check_open();
  finished_ = true;
  slots_.finish();
  auto layout = std::make_shared<const ModelLayout>(unwrap(std::move(builder_).finish()));
  return std::make_shared<const Layout>(Layout{model_, LayoutSide{std::move(layout)}});
}

namespace {

ValueMap map_named(const std::string& text) {
  for (const ValueMap map :
       {ValueMap::identity, ValueMap::negated_exp, ValueMap::plus_one, ValueMap::minus_one})
    if (name(map) == text) return map;
  raise(Code::invalid_argument, fmt::format("'{}' is no value map; known are identity, "
                                            "negated_exp, plus_one and minus_one",
                                            text));
}

void add_tensor(CheckedLayoutBuilder& self, const nb::iterable& ranks, const std::string& name,
                const std::vector<Index>& shape, const nb::object& dtype,
                const std::vector<NamedPlacedBox>& parts, bool padded, const std::string& map,
                bool casts) {
  ExplicitTensor tensor;
  tensor.name = name;
  tensor.dtype = dtype_of(dtype);
  tensor.shape = shape_of(shape, fmt::format("local tensor '{}'", name));
  tensor.padded = padded;
  tensor.map = map_named(map);
  tensor.casts = casts;
  self.add(rank_set_of(ranks), std::move(tensor), parts);
}

/// Refuses dims that no local tensor with as many dimensions as `at` has.
void check_dims(const std::string& tensor, const Box& box, const std::vector<Index>& dims,
                std::size_t local_rank) {
  const std::string where = fmt::format("PlacedBox of '{}'", tensor);
  if (static_cast<int>(dims.size()) != box.rank())
    wrong(where, fmt::format("dims has {} entries, must have one for each of the box's {} "
                             "dimensions",
                             dims.size(), box.rank()));
  for (std::size_t i = 0; i < dims.size(); ++i)
    if (dims[i] < 0 || static_cast<std::size_t>(dims[i]) >= local_rank)
      wrong(where, fmt::format("dims[{}] is {}, must be a dimension of the local tensor, which has "
                               "{} as `at` has",
                               i, dims[i], local_rank));
    else if (std::find(dims.begin(), dims.begin() + static_cast<std::ptrdiff_t>(i), dims[i]) !=
             dims.begin() + static_cast<std::ptrdiff_t>(i))
      wrong(where, fmt::format("dims has {} twice; each dimension of the box is another one of the "
                               "local tensor",
                               dims[i]));
}

void bind_placed_box(nb::module_& m) {
  nb::class_<NamedPlacedBox>(m, "PlacedBox",
                             R"(A box of a canonical tensor, placed in a local tensor.

tensor  name of the canonical tensor
box     of the canonical tensor: pairs (begin, end)
at      index in the local tensor of the box's first element, one number for each of its
        dimensions; by default its first element
dims    dims[i] is the local tensor's dimension for dimension i of the box; by default i
gaps    gaps[i] local indices are skipped between neighbours along dimension i; by default none

Raises InvalidArgumentError for dims that are not one dimension of the local tensor for each
dimension of the box.)")
      .def(
          "__init__",
          [](NamedPlacedBox* self, std::string tensor, const nb::object& box,
             std::optional<std::vector<Index>> at, std::optional<std::vector<Index>> dims,
             std::optional<std::vector<Index>> gaps) {
            Box indices = box_of(box);
            if (!at) at = std::vector<Index>(static_cast<std::size_t>(indices.rank()), 0);
            if (dims) check_dims(tensor, indices, *dims, at->size());
            new (self) NamedPlacedBox{std::move(tensor), indices, *std::move(at),
                                      std::move(dims).value_or(std::vector<Index>{}),
                                      std::move(gaps).value_or(std::vector<Index>{})};
          },
          nb::arg("tensor"), nb::arg("box"), nb::arg("at") = nb::none(),
          nb::arg("dims") = nb::none(), nb::arg("gaps") = nb::none(),
          nb::sig("def __init__(self, tensor: str, box: Box | collections.abc.Sequence[tuple[int, "
                  "int]], at: collections.abc.Sequence[int] | None = None, dims: "
                  "collections.abc.Sequence[int] | None = None, gaps: "
                  "collections.abc.Sequence[int] | None = None) -> None"))
      .def_ro("tensor", &NamedPlacedBox::tensor, "Name of the canonical tensor.")
      .def_ro("box", &NamedPlacedBox::box, "Of the canonical tensor.")
      .def_ro("at", &NamedPlacedBox::at, "Index in the local tensor of the box's first element.")
      .def_ro("dims", &NamedPlacedBox::dims,
              "The local tensor's dimension for each dimension of the box; empty: the same.")
      .def_ro("gaps", &NamedPlacedBox::gaps,
              "Indices skipped between neighbours along each dimension; empty: none.")
      .def("__repr__", [](const NamedPlacedBox& x) {
        return fmt::format("<PlacedBox '{}' {} at {}>", x.tensor, to_string(x.box),
                           nb::cast<std::string>(nb::repr(nb::cast(x.at))));
      });
}

}  // namespace

void bind_layout_builder(nb::module_& m) {
  bind_placed_box(m);
  nb::class_<CheckedLayoutBuilder>(m, "LayoutBuilder",
                                   R"(Makes a layout of one's own, tensor by tensor.

Say for each local tensor which ranks hold it and which boxes of the model's tensors are in it. Not
thread-safe.)")
      .def(nb::init<std::string, std::shared_ptr<const Model>>(), nb::arg("name"), nb::arg("model"),
           "A builder of one layout. `name` is for messages.")
      .def("add", &add_tensor, nb::arg("ranks"), nb::arg("name"), nb::arg("shape"),
           nb::arg("dtype"), nb::arg("parts") = nb::tuple(), nb::arg("padded") = false,
           nb::arg("map") = "identity", nb::arg("casts") = false,
           nb::sig("def add(self, ranks: collections.abc.Iterable[int], name: str, shape: "
                   "collections.abc.Sequence[int], dtype: object, parts: "
                   "collections.abc.Sequence[PlacedBox] = (), padded: bool = False, map: str = "
                   "'identity', casts: bool = False) -> None"),
           R"(Adds a local tensor, stored row-major.

ranks   that hold it
name    of the parameter in their module; once per rank
shape   of the local tensor
dtype   a reshard.DType, a name such as "bfloat16", or a dtype of torch or numpy
parts   the boxes that it holds, as PlacedBox; they must not overlap
padded  True if parts leave elements uncovered
map     what is done to canonical values before they are stored: "identity", "negated_exp"
        (-exp(x)), "plus_one" or "minus_one"
casts   True: canonical tensors of another dtype are rounded to `dtype`, as a BF16 engine needs from
        an F32 trainer; False: they are an error

Raises InvalidArgumentError for parts that overlap, reach outside the local or the canonical tensor,
or leave elements uncovered without `padded`; NotFoundError for a tensor that the model lacks.)")
      .def(
          "add_ranks",
          [](CheckedLayoutBuilder& self, const nb::iterable& ranks) {
            self.add_ranks(rank_set_of(ranks));
          },
          nb::arg("ranks"),
          nb::sig("def add_ranks(self, ranks: collections.abc.Iterable[int]) -> None"),
          "Adds ranks to the layout, whether they hold something or not.")
      .def("omit", &CheckedLayoutBuilder::omit, nb::arg("tensor"),
           "Declares that the layout leaves this canonical tensor out: plans towards it do not "
           "move the tensor.")
      .def("finish", &CheckedLayoutBuilder::finish, nb::call_guard<nb::gil_scoped_release>(),
           R"(The layout. A builder makes one.

Raises UnsupportedError, with the names, if a tensor is stored in another dtype without `casts`, or
by two ranks in different forms.)");
}

}  // namespace reshard::python
