// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "python/src/values.h"
#include "reshard/base/hash.h"
#include "reshard/base/number_text.h"
#include "reshard/convert/inspect/tensor_kinds.h"
#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/checkpoint/pieces.h"
#include "reshard/io/example_configs.h"
#include "reshard/model/names.h"
#include "reshard/model/naming/parameter_names.h"

namespace reshard::python {
namespace {

/// A model of a caller's own: {name: (shape, dtype)}.
std::shared_ptr<Model> model_from_tensors(const std::string& name, const nb::dict& tensors) {
  ModelSpec spec;
  for (const auto [key, value] : tensors) {
    std::string tensor;
    std::pair<std::vector<Index>, nb::object> said;
    if (!nb::try_cast(key, tensor))
      throw nb::type_error(
          fmt::format("tensors: the names must be str, not {}", nb::type_name(key.type()).c_str())
              .c_str());
    if (!nb::try_cast(value, said))
      throw nb::type_error(
          fmt::format(
              "tensors: '{}' must be (shape, dtype), a shape being a sequence of int, not {}",
              tensor, nb::type_name(value.type()).c_str())
              .c_str());
    const auto& [shape, dtype] = said;
    unwrap(spec.add(tensor, shape_of(shape, fmt::format("tensor '{}'", tensor)), dtype_of(dtype)));
  }
  auto model = std::make_shared<Model>();
  model->name = name;
  model->tensors = std::make_shared<const ModelSpec>(std::move(spec));
  model->no_config = "it was made from a list of tensors";
  return model;
}

Index parameters_of(const ModelSpec& tensors) {
  Index n = 0;
  for (const CanonicalTensor& t : tensors.tensors()) n += volume(t.shape);
  return n;
}

const CanonicalTensor& tensor_at(const ModelSpec& tensors, Index i) {
  if (i < 0) i += tensors.size();
  if (i < 0 || i >= tensors.size()) throw nb::index_error("a model has no such tensor");
  return tensors[TensorId(static_cast<TensorId::rep>(i))];
}

const CanonicalTensor& tensor_named(const ModelSpec& tensors, const std::string& name) {
  if (const auto id = tensors.find(name)) return tensors[*id];
  raise(Code::not_found, fmt::format("the model has no tensor '{}'", name));
}

void bind_tensor(nb::module_& m) {
  nb::class_<CanonicalTensor>(
      m, "CanonicalTensor",
      R"(A whole parameter or buffer of a model, under its Hugging Face name.)")
      .def_ro("name", &CanonicalTensor::name, "As in a Hugging Face checkpoint.")
      .def_ro("shape", &CanonicalTensor::shape, R"(The shape in which boxes index it.

That is `stored_shape`, but with one dimension more if a framework addresses, say, every second row:
the bytes are the same.)")
      .def_prop_ro("stored_shape", &CanonicalTensor::stored_shape, "The shape in a file.")
      .def_ro("dtype", &CanonicalTensor::dtype, "Of its elements, in a file of the model.")
      .def_prop_ro("bytes", &CanonicalTensor::bytes, "Its size in bytes.")
      .def(
          "__eq__",
          [](const CanonicalTensor& a, const nb::handle& b) {
            return nb::isinstance<CanonicalTensor>(b) && a == nb::cast<const CanonicalTensor&>(b);
          },
          nb::arg().none())
      .def("__hash__", [](const CanonicalTensor& x) { return nb::hash(nb::cast(x.name)); })
      .def("__repr__", [](const CanonicalTensor& x) {
        return fmt::format("<CanonicalTensor '{}' {} {}, {}>", x.name, name(x.dtype),
                           to_string(x.shape), human_bytes(x.bytes()));
      });
}

/// Binds the methods of a dict of the tensors by name.
void bind_mapping(nb::class_<ModelSpec>& spec) {
  spec.def(
          "keys",
          [](const ModelSpec& x) {
            nb::list names;
            for (const CanonicalTensor& t : x.tensors()) names.append(t.name);
            return names;
          },
          nb::sig("def keys(self) -> list[str]"), "The names, in order.")
      .def(
          "values", [](const nb::object& self) { return nb::list(self); },
          nb::sig("def values(self) -> list[CanonicalTensor]"), "The tensors, in order.")
      .def(
          "items",
          [](const nb::object& self) {
            nb::list pairs;
            for (const nb::handle tensor : self)
              pairs.append(nb::make_tuple(tensor.attr("name"), tensor));
            return pairs;
          },
          nb::sig("def items(self) -> list[tuple[str, CanonicalTensor]]"),
          "(name, tensor) for each, in order.");
}

void bind_spec(nb::module_& m) {
  nb::class_<ModelSpec> spec(m, "ModelSpec", R"(The canonical tensors of a model, in a fixed order.

A sequence of CanonicalTensor: iterating gives the tensors. An index is a position, or a tensor's
name; keys(), values() and items() are those of a dict by name.)");
  bind_mapping(spec);
  spec.def("__len__", &ModelSpec::size)
      .def("__getitem__", &tensor_at, nb::arg("position"), nb::rv_policy::reference_internal)
      .def("__getitem__", &tensor_named, nb::arg("name"), nb::rv_policy::reference_internal)
      .def(
          "__iter__",
          [](const ModelSpec& x) {
            return nb::make_iterator(nb::type<ModelSpec>(), "CanonicalTensorIterator",
                                     x.tensors().begin(), x.tensors().end());
          },
          nb::keep_alive<0, 1>())
      .def("__contains__",
           [](const ModelSpec& x, const std::string& name) { return x.find(name).has_value(); })
      .def(
          "__contains__", [](const ModelSpec&, const nb::object&) { return false; },
          nb::arg().none())
      .def(
          "find",
          [](const ModelSpec& x, const std::string& name) -> const CanonicalTensor* {
            const auto id = x.find(name);
            return id ? &x[*id] : nullptr;
          },
          nb::arg("name"), nb::rv_policy::reference_internal,
          nb::sig("def find(self, name: str) -> CanonicalTensor | None"),
          "The tensor of this name, or None.")
      .def_prop_ro("bytes", &ModelSpec::bytes, "The size of all tensors in bytes.")
      .def_prop_ro(
          "digest", [](const ModelSpec& x) { return hex(x.digest()); },
          "16 hexadecimal digits, equal for equal names, shapes, dtypes and order.")
      .def("__repr__", [](const ModelSpec& x) {
        return fmt::format("<ModelSpec {}, {}>", plural(x.size(), "tensor"),
                           human_bytes(x.bytes()));
      });
}

void bind_tensors(nb::module_& m) {
  bind_tensor(m);
  bind_spec(m);
}

void bind_kinds(nb::module_& m) {
  nb::class_<TensorKind>(m, "TensorKind",
                         "Tensors of one dtype and shape whose names differ only in numbers.")
      .def_ro("pattern", &TensorKind::pattern, "Their name, with N for every number.")
      .def_ro("dtype", &TensorKind::dtype, "Of each, as stored in a file.")
      .def_ro("shape", &TensorKind::shape, "Of each, as stored in a file.")
      .def_ro("count", &TensorKind::count, "The number of tensors.")
      .def_ro("bytes", &TensorKind::bytes, "Of all of them.")
      .def("__repr__", [](const TensorKind& x) {
        return fmt::format("<TensorKind {} x '{}' {} {}, {}>", grouped(x.count), x.pattern,
                           name(x.dtype), to_string(x.shape), human_bytes(x.bytes));
      });
  m.def(
      "tensor_kinds", [](const Model& model) { return tensor_kinds(*model.tensors); },
      nb::arg("model"), "The kinds of a model's tensors, in the order of their first ones.");
}

void bind_checkpoint(nb::module_& m) {
  nb::class_<Checkpoint>(m, "Checkpoint", "The weights of a model on disk, open for reading.")
      .def_prop_ro(
          "kind",
          [](const Checkpoint& x) {
            const bool dcp = x.kind() == Checkpoint::Kind::dcp;
            return x.kind() == Checkpoint::Kind::hf ? "hf" : dcp ? "dcp" : "ranks";
          },
          "\"hf\": whole tensors; \"ranks\": local tensors, a file for each rank; \"dcp\": pieces "
          "of "
          "tensors, as torch.distributed.checkpoint writes them.")
      .def_prop_ro("folder", &Checkpoint::folder, "Its path.")
      .def_prop_ro(
          "files",
          [](const Checkpoint& x) {
            std::vector<std::string> paths;
            for (std::size_t i = 0; i < x.num_files(); ++i) paths.push_back(x.mapping(i).path());
            return paths;
          },
          "Paths of its files.")
      .def_prop_ro(
          "layout",
          [](const Checkpoint& x) {
            return x.kind() == Checkpoint::Kind::hf ? std::string("hf") : x.layout();
          },
          "The notation of the layout in which it is stored.")
      .def_prop_ro(
          "objects",
          [](const Checkpoint& x) {
            std::map<std::string, std::tuple<std::string, Index, Index>> objects;
            for (const CheckpointEntry& entry : x.pieces().others)
              if (entry.kind == EntryKind::object)
                objects.emplace(entry.name, std::tuple(x.mapping(entry.file).path(), entry.offset,
                                                       entry.bytes));
            return objects;
          },
          "Of kind \"dcp\", what it holds besides tensors: {name: (file, offset, bytes)}, in "
          "bytes. "
          "These are pickles of the trainer's, which reshard does not read.")
      .def_prop_ro("world_size", &Checkpoint::world_size,
                   "Its number of ranks; 1 for kinds \"hf\" and \"dcp\".")
      .def("__repr__", [](const Checkpoint& x) {
        return fmt::format("<Checkpoint '{}': {}, layout {}>", x.folder(),
                           plural(static_cast<Index>(x.num_files()), "file"),
                           x.kind() == Checkpoint::Kind::hf ? "hf" : x.layout());
      });
}

std::string text_of_model(const Model& model) {
  const std::string layers =
      model.config ? plural(model.config->num_hidden_layers, "layer") + ", " : "";
  return fmt::format("<Model '{}': {}{} parameters in {}, {}{}>", model.name, layers,
                     human_count(parameters_of(*model.tensors)),
                     plural(model.tensors->size(), "tensor"), human_bytes(model.tensors->bytes()),
                     model.weights ? ", with weights" : "");
}

std::map<std::string, std::string> tied_names(const Model& model) {
  if (!model.config || !model.config->tie_word_embeddings) return {};
  const HfNames names(*model.config);
  const std::string head = names.lm_head(), embedding = names.embedding();
  if (model.tensors->find(head) || !model.tensors->find(embedding)) return {};
  return {{head, embedding}};
}

/// How its files hold the tensors.
void bind_stored_form(nb::class_<Model>& model) {
  model
      .def_prop_ro(
          "stored_as",
          [](const Model& x) -> std::optional<std::string> {
            if (!x.stored) return std::nullopt;
            return to_string(*x.stored);
          },
          "The formats in which its weights are quantised, \"fp8_block\" or \"fp8_block and "
          "mxfp4\"; None if they are not.")
      .def_prop_ro(
          "decoded_from",
          [](const Model& x) -> std::optional<std::string> {
            if (x.storage->decoded.empty()) return std::nullopt;
            return x.storage->decoded_from;
          },
          "The form of the codes that its plain weights are decoded from, \"gptq, 4 bits in groups "
          "of 128\"; None if there are none. Such forms are read, not written.")
      .def_prop_ro(
          "stacked_names",
          [](const Model& x) {
            std::vector<std::string> names;
            for (const ModuleTensor& t : x.storage->file_form)
              if (t.name != (*x.tensors)[t.tensor].name) names.push_back(t.name);
            return names;
          },
          "Names that its files have instead of the model's: experts stacked as modules of "
          "transformers 5 hold them.");
}

void bind_fields(nb::class_<Model>& model) {
  bind_stored_form(model);
  model.def_ro("name", &Model::name, "As given to open_model() or from_tensors().")
      .def_prop_ro(
          "tensors", [](const Model& x) { return x.tensors; },
          "Its canonical tensors; of a quantised checkpoint, those of the plain values.")
      .def_prop_ro(
          "config", [](const Model& x) { return x.config_or_null(); },
          nb::rv_policy::reference_internal, nb::sig("def config(self) -> ModelConfig | None"),
          "Its config, or None if there is none that reshard understands.")
      .def_ro("no_config", &Model::no_config, "Why `config` is None; else empty.")
      .def_prop_ro("tied", &tied_names,
                   "Names that its config gives to tensors that it has under another: "
                   "{\"lm_head.weight\": \"model.embed_tokens.weight\"} with tied embeddings.")
      .def_ro("misshapen", &Model::misshapen,
              "Names a tensor whose shape contradicts the config; else empty.")
      .def_ro("config_path", &Model::config_path,
              "Path of the config.json, understood or not; empty if there is none.")
      .def_prop_ro(
          "weights", [](const Model& x) { return x.weights ? &*x.weights : nullptr; },
          nb::rv_policy::reference_internal, nb::sig("def weights(self) -> Checkpoint | None"),
          "The checkpoint it was opened from, or None for a config.")
      .def_ro(
          "left_out", &Model::left_out,
          "Tensors of the checkpoint that may be weights, but are none of the model's: ignored, "
          "or outside of its prefix. Not the optimizer's, nor what is there twice.")
      .def_prop_ro(
          "num_parameters", [](const Model& x) { return parameters_of(*x.tensors); },
          "The number of elements of all tensors.")
      .def_prop_ro(
          "bytes", [](const Model& x) { return x.tensors->bytes(); },
          "The size of all tensors in bytes.")
      .def_prop_ro(
          "digest", [](const Model& x) { return hex(x.tensors->digest()); },
          "16 hexadecimal digits, equal for equal names, shapes, dtypes and order.");
}

void bind_open_model(nb::module_& m) {
  m.def(
      "open_model",
      [](const PathArgument& model, std::optional<Index> layers, bool exact, const Names& ignore,
         std::optional<std::string> prefix, PathsArgument merge) {
        return std::make_shared<Model>(
            unwrap(open_model(model.path.string(), {layers, exact, ignore.names, std::move(prefix),
                                                    std::move(merge.paths)})));
      },
      nb::arg("model"), nb::kw_only(), nb::arg("layers") = nb::none(), nb::arg("exact") = true,
      nb::arg("ignore") = nb::tuple(), nb::arg("prefix") = nb::none(),
      nb::arg("merge") = nb::tuple(), nb::call_guard<nb::gil_scoped_release>(),
      R"(Opens a model. Reads no weights.

model   path of a config.json, of a checkpoint's folder, its index or its only file, or of any
        safetensors file that is none of several of a checkpoint; or the name of a published shape (example_names())
layers  replaces the number of layers of a config
exact   False: a checkpoint whose tensors are not those of its config is opened without its config,
        instead of being an error
ignore  patterns ("*" any characters, "#" digits) of tensors that a checkpoint may have beside those
        of its config
prefix  of a torch.distributed.checkpoint, takes only the tensors whose names begin so, without it;
        by default what the config's names begin with there ("model."), if there is a config, and
        an error if there are two models; "": all names as they are
merge   folders of LoRA adapters, as PEFT writes them, that are merged into a checkpoint's weights

Raises NotFoundError if there is no such model, CorruptError for a file that violates its format,
UnsupportedError for what this version cannot read.)");
}

void bind_names(nb::module_& m) {
  m.def("without_wrappers", &without_wrappers, nb::arg("name"),
        R"(A parameter's name without the parts that modules around modules add.)");
  m.def(
      "parameter_name",
      [](std::string_view text) {
        const ParameterName found = parameter_name(text);
        return std::tuple(std::string(name(found.role)), found.tensor, found.adapter);
      },
      nb::arg("name"),
      R"((role, tensor, adapter) of a parameter's name; the roles are those of reshard::ParameterName.)");
}

}  // namespace

void bind_model(nb::module_& m) {
  bind_names(m);
  bind_tensors(m);
  bind_kinds(m);
  bind_checkpoint(m);
  nb::class_<Model> bound(
      m, "Model", R"(A model: its tensors, its config, and its weights if it is a checkpoint.

Made by open_model(), or by from_tensors() for a model that reshard does not know. Immutable; may be
used from any thread.)");
  bind_fields(bound);
  bound
      .def_static("from_tensors", &model_from_tensors, nb::arg("name"), nb::arg("tensors"),
                  nb::sig("def from_tensors(name: str, tensors: dict[str, "
                          "tuple[collections.abc.Sequence[int], object]]) -> Model"),
                  R"(A model with these tensors: {name: (shape, dtype)}, in the order of the dict.

A dtype is anything that DType() of this package takes: a name such as "bfloat16" or "BF16", or a
dtype of torch or numpy. Such a model has no config: layouts "hf", "fsdp", "dtensor:FILE",
"rules:FILE" and LayoutBuilder take it. Raises InvalidArgumentError for a shape that cannot be.)")
      .def(
          "__str__",
          [](const nb::object& self) {
            return nb::module_::import_("reshard._tables").attr("model_text")(self);
          },
          nb::sig("def __str__(self) -> str"))
      .def(
          "_repr_html_",
          [](const nb::object& self) {
            return nb::module_::import_("reshard._figures.html").attr("model_html")(self);
          },
          nb::sig("def _repr_html_(self) -> str"))
      .def("__repr__", &text_of_model);
  bind_open_model(m);
  m.def("example_names", &example_names,
        "The names of the published shapes that come with reshard.");
}

}  // namespace reshard::python
