// SPDX-License-Identifier: Apache-2.0
#include "python/src/layout.h"

#include <fmt/format.h>

#include "reshard/base/hash.h"
#include "reshard/base/number_text.h"
#include "reshard/convert/inspect/explain_layout.h"
#include "reshard/convert/layout_pair.h"
#include "reshard/io/dtensor_file.h"
#include "reshard/io/layout_file.h"
#include "reshard/io/layout_side.h"
#include "reshard/io/rules_file.h"
#include "reshard/io/traced/traced_layout.h"
#include "reshard/model/layout_diff.h"

namespace reshard::python {
namespace {

using SharedLayout = std::shared_ptr<const Layout>;

SharedLayout layout_of(const std::string& text, std::shared_ptr<const Model> model,
                       const PathArgument& folder, const SharedLayout& source) {
  LayoutSide side = source == nullptr ? unwrap(make_side(text, *model, folder.path.string()))
                                      : unwrap(make_target(text, *model, source->side));
  return std::make_shared<const Layout>(Layout{std::move(model), std::move(side)});
}

SharedLayout own_layout_of(std::shared_ptr<const Model> model) {
  if (!model->weights)
    raise(Code::invalid_argument,
          fmt::format("{} is no checkpoint: only weights on disk have a layout", model->name));
  LayoutSide side = unwrap(own_side(*model));
  return std::make_shared<const Layout>(Layout{std::move(model), std::move(side)});
}

/// "rules:NAME,tp=2" without its file: what the families take.
LayoutSpec spec_of(const char* family, const std::string& file, const nb::kwargs& keys) {
  LayoutSpec spec{family, file, {}};
  for (const auto [key, value] : keys)
    spec.keys[nb::cast<std::string>(key)] = nb::cast<std::string>(nb::str(value));
  return spec;
}

SharedLayout shared(std::shared_ptr<const Model> model, ModelLayout layout) {
  LayoutSide side{std::make_shared<const ModelLayout>(std::move(layout))};
  return std::make_shared<const Layout>(Layout{std::move(model), std::move(side)});
}

QuantFormat format_named(const std::string& text) {
  if (const auto format = quant_format_from_name(text)) return *format;
  raise(Code::invalid_argument,
        fmt::format("format '{}' is unknown; known formats are {}", text, known_quant_formats()));
}

std::optional<QuantMethod> method_named(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  if (const auto method = quant_method_from_name(*text)) return method;
  raise(Code::invalid_argument,
        fmt::format("method '{}' is unknown; known methods are {}", *text, known_quant_methods()));
}

BlockGrid grid_named(const std::string& text) {
  if (text != "local" && text != "tensor")
    raise(Code::invalid_argument, fmt::format("grid '{}' must be local or tensor", text));
  return text == "local" ? BlockGrid::local : BlockGrid::tensor;
}

SharedLayout quantised(const Layout& values, const std::string& format, const Names& tensors,
                       const std::string& grid, const std::optional<std::string>& method,
                       bool files) {
  if (values.side.quantised)
    raise(Code::invalid_argument, fmt::format("{} is quantised already", values.stored().name()));
  const SideChoice choice{format_named(format), tensors.names, grid_named(grid),
                          method_named(method), files};
  return without_gil([&] {
    LayoutSide side = unwrap(quantised_side(values.side.values, choice));
    return std::make_shared<const Layout>(Layout{values.model, std::move(side)});
  });
}

FamilyInput input_of(const Model& model) { return {model.tensors, model.config_or_null()}; }

SharedLayout layout_by_rules(const std::string& rules, std::shared_ptr<const Model> model,
                             const std::string& name, const nb::kwargs& keys) {
  const LayoutSpec spec = spec_of("rules", name, keys);
  ModelLayout layout = without_gil([&] {
    const RuleSet parsed = unwrap(parse_rules(rules));
    return unwrap(layout_by_rules_of(spec, *model, parsed));
  });
  return shared(std::move(model), std::move(layout));
}

SharedLayout layout_by_placements(const std::string& placements, std::shared_ptr<const Model> model,
                                  const std::string& name, const nb::kwargs& keys) {
  const LayoutSpec spec = spec_of("dtensor", name, keys);
  ModelLayout layout = without_gil([&] {
    unwrap(check_values_stay(spec, *model));
    return unwrap(dtensor_layout(spec, input_of(*model), unwrap(parse_dtensor(placements))));
  });
  return shared(std::move(model), std::move(layout));
}

void check_layout(const Layout& layout, std::optional<RankArgument> rank) {
  if (rank) {
    unwrap(check_shard_map(layout.stored(), rank_in(layout, *rank)));
    return;
  }
  without_gil([&] {
    layout.stored().ranks().for_each([&](Rank r) { unwrap(check_shard_map(layout.stored(), r)); });
  });
}

std::string text_of_layout(const Layout& layout) {
  const RankBytes bytes = bytes_per_rank(layout.stored());
  return fmt::format(
      "<Layout '{}': {} {}, {}{} per rank>", layout.stored().name(),
      plural(layout.stored().ranks().size(), "rank"), to_string(layout.stored().ranks()),
      bytes.least == bytes.most ? "" : human_bytes(bytes.least) + " to ", human_bytes(bytes.most));
}

std::string text_of_difference(const LayoutDifference& x) {
  return fmt::format("'{}' on ranks {}: {}", x.name, to_string(x.ranks), x.what);
}

void bind_difference(nb::module_& m) {
  nb::class_<LayoutDifference>(m, "LayoutDifference",
                               "What two layouts say differently about one local tensor.")
      .def_ro("name", &LayoutDifference::name,
              "Of the local tensor; of a canonical tensor if only one layout omits it.")
      .def_ro("ranks", &LayoutDifference::ranks, "That differ in this way.")
      .def_ro("what", &LayoutDifference::what, "Such as \"shape [8, 4] and [4, 4]\".")
      .def("__str__", &text_of_difference)
      .def("__repr__", [](const LayoutDifference& x) {
        return fmt::format("<LayoutDifference {}>", text_of_difference(x));
      });
  m.def(
      "diff", [](const Layout& a, const Layout& b) { return diff_layouts(a.stored(), b.stored()); },
      nb::arg("a"), nb::arg("b"), nb::call_guard<nb::gil_scoped_release>(),
      R"(The local tensors that are not the same in both layouts, as LayoutDifference.

Compares what ranks hold, by the names of local and canonical tensors: who holds it, dtype, shape,
value map, and which element is where, however boxes are cut. Empty if both describe the same
memory; else in the order of ranks and names.)");
}

void bind_explanation(nb::module_& m) {
  nb::class_<KindInLayout>(m, "KindInLayout", "How a layout stores the tensors of one kind.")
      .def_ro("pattern", &KindInLayout::pattern, "Of the canonical names; N is a number.")
      .def_ro("local", &KindInLayout::local,
              "Pattern of the local tensors' names; empty if no rank holds them.")
      .def_ro("how", &KindInLayout::how, "How they are cut, such as \"dim 0 over tp=4; padded\".")
      .def_ro("shape", &KindInLayout::shape, "Of a local tensor on the first rank that has it.")
      .def_ro("count", &KindInLayout::count, "Its number of tensors.")
      .def_ro("ranks", &KindInLayout::ranks, "The number of ranks that hold a part of the first.")
      .def("__repr__", [](const KindInLayout& x) {
        return fmt::format("<KindInLayout {} x '{}' in '{}' {}: {}>", grouped(x.count), x.pattern,
                           x.local, to_string(x.shape), x.how);
      });
  m.def(
      "explain_layout",
      [](const Layout& layout) {
        return explain_layout(layout.stored(), unwrap(SlotFiles::of(layout.side)));
      },
      nb::arg("layout"), nb::call_guard<nb::gil_scoped_release>(),
      "How a layout stores each kind of tensor, in the order of the model.");
}

void bind_contents(nb::class_<Layout>& layout) {
  layout
      .def("local", &local_tensors_of, nb::arg("rank"),
           nb::sig("def local(self, rank: int) -> list[LocalTensor]"),
           R"(The local tensors of a rank, as LocalTensor.

Raises InvalidArgumentError for a rank that is not in `ranks`.)")
      .def(
          "slots_of",
          [](const Layout& x, RankArgument rank) {
            std::vector<std::string> names;
            for (const SlotId id : x.stored().slots_of(rank_in(x, rank)))
              names.push_back(x.stored().slot(id).name);
            return names;
          },
          nb::arg("rank"), "The names of a rank's local tensors.")
      .def(
          "local_bytes",
          [](const Layout& x, RankArgument rank) {
            return local_bytes(x.stored(), rank_in(x, rank));
          },
          nb::arg("rank"), "Bytes of all local tensors of a rank, with padding.")
      .def_prop_ro(
          "bytes_per_rank",
          [](const Layout& x) {
            const RankBytes bytes = bytes_per_rank(x.stored());
            return std::pair(bytes.least, bytes.most);
          },
          "The smallest and the largest local_bytes() of its ranks.")
      .def(
          "save",
          [](const Layout& x, const PathArgument& path) {
            unwrap(write_layout_file(path.path.string(), x.stored()));
          },
          nb::arg("path"), nb::call_guard<nb::gil_scoped_release>(),
          R"(Writes it to a new JSON file, which layout("explicit:PATH", model) reads.

Raises InvalidArgumentError if the file exists, IoError for the disk.)")
      .def("check", &check_layout, nb::arg("rank") = nb::none(),
           R"(Checks the local tensors of one rank, or of all.

Raises InvalidArgumentError, with the names, if two fragments overlap, one reaches outside its local
tensor, or elements that none covers are not declared padding. Layouts of the families and of
LayoutBuilder are right by construction; this is for rules of one's own.)")
      .def(
          "omits",
          [](const Layout& x, const std::string& tensor) {
            const auto id = x.stored().model().find(tensor);
            if (!id) raise(Code::not_found, fmt::format("the model has no tensor '{}'", tensor));
            return x.stored().omits(*id);
          },
          nb::arg("tensor"), "True if the layout leaves this canonical tensor out on purpose.");
}

void bind_text(nb::class_<Layout>& layout) {
  layout
      .def(
          "__eq__",
          [](const Layout& a, const nb::handle& b) {
            return nb::isinstance<Layout>(b) &&
                   a.stored().digest() == nb::cast<const Layout&>(b).stored().digest();
          },
          nb::arg().none())
      .def("__hash__", [](const Layout& x) { return x.stored().digest(); })
      .def(
          "__str__",
          [](const nb::object& self) {
            return nb::module_::import_("reshard._tables").attr("layout_text")(self);
          },
          nb::sig("def __str__(self) -> str"))
      .def(
          "_repr_html_",
          [](const nb::object& self) {
            return nb::module_::import_("reshard._figures.html").attr("layout_html")(self);
          },
          nb::sig("def _repr_html_(self) -> str"))
      .def("__repr__", &text_of_layout);
}

void bind_quantisation(nb::class_<Layout>& layout) {
  layout
      .def_prop_ro(
          "quantised", [](const Layout& x) { return x.side.quantised != nullptr; },
          "True if local tensors are data and scales.")
      .def_prop_ro(
          "quant_format",
          [](const Layout& x) -> std::optional<std::string> {
            if (!x.side.quantised) return std::nullopt;
            return to_string(x.side.quantised->choice);
          },
          "The formats of its quantised tensors, as Model.stored_as; None if there are none.")
      .def_prop_ro(
          "quant_tensors",
          [](const Layout& x) {
            nb::list names;
            if (x.side.quantised)
              for (const std::string& name : x.side.quantised->choice.tensors)
                names.append(nb::cast(name));
            return names;
          },
          nb::sig("def quant_tensors(self) -> list[str]"),
          "The canonical tensors that are quantised, by name; empty if none is.")
      .def_prop_ro(
          "quant_grid",
          [](const Layout& x) -> std::optional<std::string> {
            if (!x.side.quantised) return std::nullopt;
            return x.side.quantised->choice.grid == BlockGrid::local ? "local" : "tensor";
          },
          "Where its blocks are counted from, \"tensor\" or \"local\", or None.")
      .def_prop_ro(
          "quant_method",
          [](const Layout& x) -> std::optional<std::string> {
            const auto method = x.side.method ? x.side.method : x.side.modules;
            if (!method) return std::nullopt;
            return std::string(name(*method));
          },
          "The quant_method whose names and shapes its files or modules have, or None.")
      .def_prop_ro(
          "values",
          [](const Layout& x) {
            return std::make_shared<const Layout>(Layout{x.model, LayoutSide{x.side.values}});
          },
          "The layout of the plain values: itself, unless it is quantised.");
}

void bind_class(nb::module_& m) {
  nb::class_<Layout> layout(m, "Layout",
                            R"(Which rank holds which part of a model's tensors, and where.

A layout is data: for every rank its local tensors, and for each of those the boxes of the model's
tensors that are in it (fragments). Made by layout(), rules_layout(), dtensor_layout(),
Layout.of_checkpoint() or LayoutBuilder. Immutable; may be used from any thread.

If it is quantised, local tensors are those that memory holds: data and scales.)");
  layout.def_prop_ro(
            "name", [](const Layout& x) { return x.stored().name(); }, "Its notation.")
      .def_prop_ro(
          "model", [](const Layout& x) { return x.model; }, "The model whose tensors it cuts.")
      .def_prop_ro(
          "tensors", [](const Layout& x) { return x.stored().shared_model(); },
          "The canonical tensors that fragments are boxes of: those of the model or, if "
          "the layout is quantised, data and scales.")
      .def_prop_ro(
          "ranks", [](const Layout& x) { return x.stored().ranks(); },
          "All ranks, ascending, with those that hold nothing.")
      .def_prop_ro(
          "notes", [](const Layout& x) { return x.side.notes; },
          "Choices that it makes where its notation is silent; usually none.")
      .def_prop_ro(
          "digest", [](const Layout& x) { return hex(x.stored().digest()); },
          "16 hexadecimal digits, equal for equal layouts of equal models.")
      .def_static("of_checkpoint", &own_layout_of, nb::arg("model"),
                  nb::call_guard<nb::gil_scoped_release>(),
                  "The layout in which a checkpoint is stored. Raises InvalidArgumentError for a "
                  "model without weights.");
  bind_quantisation(layout);
  bind_text(layout);
  bind_contents(layout);
}

}  // namespace

Rank rank_in(const Layout& layout, RankArgument rank) {
  return rank_of(rank, layout.stored().ranks(), layout.stored().name());
}

/// Traces layouts with this interpreter, which has reshard.
void trace_with_this_python() {
  const nb::object python = nb::module_::import_("sys").attr("executable");
  if (!python.is_none() && nb::len(python) > 0) set_tracing_python(nb::cast<std::string>(python));
}

void bind_layout(nb::module_& m) {
  trace_with_this_python();
  bind_class(m);
  bind_explanation(m);
  bind_difference(m);
  m.def("layout", &layout_of, nb::arg("text"), nb::arg("model"), nb::kw_only(),
        nb::arg("folder") = "", nb::arg("source") = nb::none(),
        nb::call_guard<nb::gil_scoped_release>(), R"(Makes a model's layout from its notation.

text    "family:key=value,...", such as "megatron:tp=4,pp=2,ep=8" or "vllm:tp=8,offset=16"; the
        families are hf, megatron, vllm, sglang, fsdp, dtensor:FILE, rules:FILE, explicit:FILE and
        traced:ENGINE, which asks the loader of an engine in a process of its own
model   from open_model() or Model.from_tensors()
folder  where relative paths in the text are; by default the working folder
source  the layout that the weights come from: a quantised target then counts its blocks so that
        data and scales move as they are, if it can

Raises InvalidArgumentError for a text that is wrong (it says what would be right), UnsupportedError
for a family that needs a config and a model without one.)");
  m.def("quantise_layout", &quantised, nb::arg("layout"), nb::arg("format"), nb::arg("tensors"),
        nb::kw_only(), nb::arg("grid") = "tensor", nb::arg("method") = nb::none(),
        nb::arg("files") = false,
        R"(A layout whose local tensors are quantised: data and scales, as engines hold them.

For layouts that no notation describes: traced, or of one's own. Each local tensor of chosen tensors
becomes data and scales, side by side in the order of its parts. Where shards of experts cut FP8
blocks of grid "tensor", scales are refined as vLLM's loaders do.

layout   of plain values
format   a name such as "fp8_block" (docs/quantisation.md)
tensors  canonical names of the matrices to quantise
grid     where blocks are counted from: "tensor" as in a checkpoint, "local" from each shard
method   the quant_method whose names and shapes data and scales have, such as
         "compressed-tensors"; by default that of the format
files    True: as a checkpoint's files have them; False: as an engine's modules do

Raises InvalidArgumentError for unknown names, NotFoundError for a tensor that the model lacks,
UnsupportedError for a local tensor that mixes chosen tensors and others, or a shape that the format
does not allow.)");
  m.def("rules_layout", &layout_by_rules, nb::arg("rules"), nb::arg("model"),
        nb::arg("name") = "rules", nb::arg("keys"),
        nb::sig("def rules_layout(rules: str, model: Model, name: str = 'rules', **keys: int | "
                "str) -> Layout"),
        R"(A layout by rules of one's own: the text of a rules file, as JSON.

`keys` are the sizes of the rules' axes, `dtype`, and `offset`, the first rank. Raises CorruptError for
rules that are wrong, with the number of the rule.)");
  m.def("dtensor_layout", &layout_by_placements, nb::arg("placements"), nb::arg("model"),
        nb::arg("name") = "dtensor", nb::arg("keys"),
        nb::sig("def dtensor_layout(placements: str, model: Model, name: str = 'dtensor', **keys: "
                "int | str) -> Layout"),
        R"(A layout by DTensor placements: the text of a DTensor file, as JSON.

`keys` are `dtype`, `offset` (the first rank) and `transformers` (5 or 4). Raises CorruptError for
placements that are wrong, with the number of the rule.)");
}

}  // namespace reshard::python
