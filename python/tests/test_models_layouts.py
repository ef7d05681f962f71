# SPDX-License-Identifier: Apache-2.0
"""Protects: models and layouts in Python are those of the library, and refuse what cannot be."""

import json
import pickle

import pytest

import reshard


@pytest.fixture(scope="module")
def moe():
  return reshard.open_model("qwen3-30b-a3b")


@pytest.fixture(scope="module")
def small():
  return reshard.Model.from_tensors("small", {"w": ((4, 6), "bfloat16"), "b": ([6], reshard.DType.f32)})


def test_a_published_shape_has_its_tensors_and_config(moe):
  assert len(moe.tensors) == 18_867
  assert moe.num_parameters == 30_532_122_624 and moe.bytes == 2 * moe.num_parameters
  first = moe.tensors[0]
  assert (first.name, first.shape, first.dtype) == ("model.embed_tokens.weight", (151_936, 2048), reshard.DType.bf16)
  assert moe.tensors["lm_head.weight"] == moe.tensors[-1]
  assert "lm_head.weight" in moe.tensors and "nope" not in moe.tensors and 3 not in moe.tensors
  assert [t.name for t in moe.tensors][:1] == [first.name]
  assert moe.config.num_experts == 128 and moe.config.layers[0].ffn == "experts"
  assert moe.weights is None and moe.stored_as is None and moe.no_config == ""
  assert "30.5 B parameters" in repr(moe) and "experts.N.down_proj" in str(moe)


def test_layers_and_names_of_examples(moe):
  assert "demo-moe" in reshard.example_names()
  two = reshard.open_model("qwen3-30b-a3b", layers=2)
  assert two.config.num_hidden_layers == 2 and two.digest != moe.digest
  kinds = reshard.tensor_kinds(two)
  assert sum(kind.count for kind in kinds) == len(two.tensors)


def test_a_model_of_ones_own_needs_no_config(small):
  assert [(t.name, t.shape, t.dtype.name) for t in small.tensors] == [("w", (4, 6), "bf16"), ("b", (6,), "f32")]
  assert small.config is None and "list of tensors" in small.no_config
  with pytest.raises(reshard.UnsupportedError, match="needs a config"):
    reshard.layout("megatron:tp=2", small)


@pytest.mark.parametrize("name", ["BF16", "bf16", "bfloat16", "torch.bfloat16"])
def test_dtypes_have_several_names(name):
  model = reshard.Model.from_tensors("m", {"w": ((2,), name)})
  assert model.tensors["w"].dtype == reshard.DType.bf16


def test_dtypes_of_libraries_are_taken():
  numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
  ml_dtypes = pytest.importorskip("ml_dtypes")
  dtypes = [numpy.float32, numpy.dtype("int8"), torch.float8_e4m3fn, ml_dtypes.bfloat16, torch.bool, numpy.uint64]
  model = reshard.Model.from_tensors("m", {str(i): ((8,), dtype) for i, dtype in enumerate(dtypes)})
  assert [t.dtype.name for t in model.tensors] == ["f32", "i8", "f8_e4m3", "bf16", "bool", "u64"]


@pytest.mark.parametrize(
  ("tensors", "error", "message"),
  [
    ({"w": ((2, -1), "f32")}, reshard.InvalidArgumentError, "'w': dimension -1 is negative"),
    ({"w": ((1,) * 9, "f32")}, reshard.InvalidArgumentError, "9 dimensions"),
    ({"w": ((2**40, 2**40), "f32")}, reshard.InvalidArgumentError, "overflows"),
    ({"w": ((3,), "F4")}, reshard.Error, "w"),
    ({"w": ((3,), "float3")}, reshard.InvalidArgumentError, "'float3' is no dtype"),
    ({"w": ((3,), object())}, reshard.InvalidArgumentError, "is no dtype"),
    ({"w": 3}, (TypeError, RuntimeError), None),
    ({3: ((3,), "f32")}, (TypeError, RuntimeError), None),
  ],
)
def test_a_model_that_cannot_be_is_refused(tensors, error, message):
  with pytest.raises(error, match=message):
    reshard.Model.from_tensors("m", tensors)


def test_errors_have_a_class_for_each_code():
  with pytest.raises(reshard.NotFoundError, match="no such file or folder") as caught:
    reshard.open_model("/nowhere")
  error = caught.value
  assert isinstance(error, reshard.Error) and isinstance(error, LookupError) and error.code == "not_found"
  again = pickle.loads(pickle.dumps(error))
  assert type(again) is reshard.NotFoundError and str(again) == str(error)
  bases = {
    reshard.InvalidArgumentError: ValueError,
    reshard.CorruptError: ValueError,
    reshard.UnsupportedError: NotImplementedError,
    reshard.IoError: OSError,
    reshard.DeadlineError: TimeoutError,
    reshard.AbortedError: RuntimeError,
  }
  for error_class, base in bases.items():
    assert issubclass(error_class, base) and issubclass(error_class, reshard.Error)
    assert str(error_class("what")) == "what"


def test_a_config_that_is_broken_is_corrupt(tmp_path):
  (tmp_path / "config.json").write_text("{")
  with pytest.raises(reshard.CorruptError, match="config.json"):
    reshard.open_model(tmp_path / "config.json")


def test_a_rank_holds_what_the_layout_says(moe):
  layout = reshard.layout("vllm:tp=8,offset=8", moe)
  assert layout.ranks == tuple(range(8, 16)) and layout.name == "vllm:offset=8,tp=8"
  held = {tensor.name: tensor for tensor in layout.local(11)}
  assert list(held) == layout.slots_of(11)
  assert sum(tensor.bytes for tensor in held.values()) == layout.local_bytes(11)
  qkv = held["model.layers.0.self_attn.qkv_proj.weight"]
  assert (qkv.shape, qkv.dtype.name, qkv.padding, qkv.map) == ((768, 2048), "bf16", 0, "identity")
  query = qkv.fragments[0]
  assert query.tensor == "model.layers.0.self_attn.q_proj.weight"
  assert list(query.box) == [(3 * 512, 4 * 512), (0, 2048)]
  assert (query.offset, query.strides) == (0, (2048, 1))
  assert query.box.slices == (slice(1536, 2048), slice(0, 2048)) and query.box.volume == 512 * 2048


def test_a_gpt_oss_layout_counts_stored_dimensions():
  model = reshard.open_model("gpt-oss-20b", layers=1)
  tensor = model.tensors["model.layers.0.mlp.experts.gate_up_proj"]
  assert len(tensor.shape) == len(tensor.stored_shape) + 1


@pytest.mark.parametrize("rank", [7, 16, -1, 10**30])
def test_a_rank_outside_the_layout_is_refused(moe, rank):
  layout = reshard.layout("vllm:tp=8,offset=8", moe)
  with pytest.raises(reshard.InvalidArgumentError, match=rf"rank {rank} is not in vllm.*the ranks are \{{8-15\}}"):
    layout.local(rank)


@pytest.mark.parametrize("rank", ["8", 8.0, None, True])
def test_a_rank_that_is_no_int_is_a_type_error(moe, rank):
  with pytest.raises(TypeError, match="rank must be int, not "):
    reshard.layout("vllm:tp=8,offset=8", moe).local(rank)


@pytest.mark.parametrize(
  ("text", "error", "message"),
  [
    ("vlm:tp=2", reshard.InvalidArgumentError, r"unknown family 'vlm' \(did you mean 'vllm'\?\); known are"),
    ("vllm:tpp=2", reshard.InvalidArgumentError, "tpp"),
    ("vllm:tp=0", reshard.InvalidArgumentError, "tp"),
    ("rules:/nowhere.json", (reshard.NotFoundError, reshard.IoError), "nowhere.json"),
  ],
)
def test_a_notation_that_is_wrong_is_refused(moe, text, error, message):
  with pytest.raises(error, match=message):
    reshard.layout(text, moe)


@pytest.mark.parametrize("quant", ["fp8_block", "fp8_channel", "fp8_tensor", "mxfp8"])
def test_any_layout_can_be_quantised(quant):
  """As the families quantise their own."""
  model = reshard.open_model("qwen3-30b-a3b", layers=1)
  form = f"quant={quant},quant_grid=tensor,quant_method=compressed-tensors"
  family = reshard.layout(f"vllm:tp=2,{form}", model)
  assert (family.quant_grid, family.quant_method) == ("tensor", "compressed-tensors")
  assert "model.layers.0.mlp.experts.7.up_proj.weight" in family.quant_tensors
  plain = reshard.layout("vllm:tp=2", model)
  assert (plain.quant_grid, plain.quant_method, plain.quant_tensors) == (None, None, [])
  made = reshard.quantise_layout(plain, quant, family.quant_tensors, method="compressed-tensors")
  assert reshard.diff(made, family) == [] and made.quant_format == quant
  files = reshard.quantise_layout(
    reshard.layout("hf", model), quant, family.quant_tensors, method="compressed-tensors", files=True
  )
  assert {t.file_name for t in files.local(0)} == {
    t.file_name for t in reshard.layout(f"hf:quant={quant},quant_method=compressed-tensors", model).local(0)
  }


def test_what_cannot_be_quantised_is_named(small):
  plain = reshard.layout("hf", small)
  with pytest.raises(reshard.InvalidArgumentError, match="format 'fp7' is unknown; known formats are mxfp8"):
    reshard.quantise_layout(plain, "fp7", ["w"])
  with pytest.raises(reshard.InvalidArgumentError, match="method 'mine' is unknown; known methods are fp8"):
    reshard.quantise_layout(plain, "fp8_block", ["w"], method="mine")
  with pytest.raises(reshard.InvalidArgumentError, match="grid 'shard' must be local or tensor"):
    reshard.quantise_layout(plain, "fp8_block", ["w"], grid="shard")
  with pytest.raises(reshard.UnsupportedError, match="quant_method=fp8 does not support mxfp4"):
    reshard.quantise_layout(plain, "mxfp4", ["w"], method="fp8")
  with pytest.raises(reshard.NotFoundError, match="'v' is to be quantised but hf lacks it"):
    reshard.quantise_layout(plain, "fp8_block", ["v"])
  quantised = reshard.quantise_layout(plain, "fp8_block", ["w"])
  with pytest.raises(reshard.InvalidArgumentError, match="is quantised already"):
    reshard.quantise_layout(quantised, "fp8_block", ["w"])


def test_a_quantised_layout_has_data_and_scales():
  model = reshard.open_model("demo-moe")
  layout = reshard.layout("vllm:tp=2,quant=fp8_channel", model)
  assert layout.quantised and layout.quant_format == "fp8_channel"
  names = layout.slots_of(0)
  assert any(name.endswith("weight_scale") for name in names)
  assert not layout.values.quantised and layout.values.local_bytes(0) > layout.local_bytes(0)
  mx4 = reshard.layout("vllm:tp=2,quant=mxfp4", model)
  packed = next(t for t in mx4.local(0) if t.dtype == reshard.DType.f4)
  assert packed.file_dtype == reshard.DType.u8 and 2 * packed.file_shape[-1] == packed.shape[-1]


def test_layouts_by_rules_and_by_placements(small):
  rules = json.dumps({"axes": [{"name": "tp", "size": 1}], "rules": [{"match": "w", "cuts": [{"dim": 0, "axes": ["tp"]}]}, {"match": "*"}]})
  layout = reshard.rules_layout(rules, small, tp=2, offset=3)
  assert layout.ranks == (3, 4) and [t.shape for t in layout.local(4)] == [(2, 6), (6,)]
  layout.check()
  with pytest.raises(reshard.CorruptError, match="rule 1"):
    reshard.rules_layout('{"axes": [], "rules": [{"match": 3}]}', small)
  placements = {"meshes": {"m": {"shape": [2], "names": ["tp"]}}}
  with pytest.raises(reshard.CorruptError):
    reshard.dtensor_layout(json.dumps(placements) + "x", small)


def own_layout(model, cut=2):
  builder = reshard.LayoutBuilder("own", model)
  builder.add([0], "w", (cut, 6), "bf16", [reshard.PlacedBox("w", [(0, cut), (0, 6)], (0, 0))])
  builder.add([1], "w", (4 - cut, 6), "bf16", [reshard.PlacedBox("w", [(cut, 4), (0, 6)], (0, 0))])
  builder.add(range(2), "b", (6,), "float32", [reshard.PlacedBox("b", [(0, 6)], (0,))])
  return builder.finish()


def test_a_layout_of_ones_own(small, tmp_path):
  layout = own_layout(small)
  layout.check()
  assert layout.ranks == (0, 1) and layout.local(1)[0].fragments[0].box == reshard.Box([(2, 4), (0, 6)])
  transposed = reshard.LayoutBuilder("t", small)
  transposed.add([0], "w", (6, 4), "bf16", [reshard.PlacedBox("w", [(0, 4), (0, 6)], (0, 0), dims=[1, 0])])
  transposed.omit("b")
  finished = transposed.finish()
  assert finished.local(0)[0].fragments[0].strides == (1, 4) and finished.omits("b") and not finished.omits("w")
  layout.save(tmp_path / "own.json")
  assert reshard.diff(layout, reshard.layout(f"explicit:{tmp_path}/own.json", small)) == []
  with pytest.raises(reshard.Error, match="own.json"):
    layout.save(tmp_path / "own.json")


def test_diff_names_what_differs(small):
  assert reshard.diff(own_layout(small), own_layout(small)) == []
  differences = reshard.diff(own_layout(small), own_layout(small, cut=1))
  assert {d.name for d in differences} == {"w"} and {r for d in differences for r in d.ranks} == {0, 1}
  assert "shape" in differences[0].what and "'w' on ranks" in str(differences[0])


BOX = [(0, 4), (0, 6)]


@pytest.mark.parametrize(
  ("shape", "parts", "message"),
  [
    ((4, 6), [("w", [(0, 5), (0, 6)], (0, 0))], "w"),
    ((4, 6), [("w", BOX, (1, 0))], "w"),
    ((4, 6), [("w", BOX, (0,))], "dimensions"),
    ((4, 6), [("w", [(0, 4)], (0, 0))], "w"),
    ((4, 6), [("w", BOX, (-1, 0))], "w"),
    ((4, 6), [("w", BOX, (0, 0), [0, 0])], "dimension"),
    ((4, 6), [("w", BOX, (0, 0), [0, 9])], "dimension"),
    ((4, 6), [("w", BOX, (0, 0), None, [-1, 0])], "gap"),
    ((4, 6), [("w", BOX, (0, 0), None, [10**9, 0])], "gap"),
    ((4, 6), [("w", BOX, (0, 0)), ("w", BOX, (0, 0))], "parts"),
    ((5, 6), [("w", BOX, (0, 0))], "padding"),
    ((4, 2**62), [("w", BOX, (0, 0))], "overflow"),
  ],
)
def test_a_builder_refuses_parts_that_cannot_be(small, shape, parts, message):
  builder = reshard.LayoutBuilder("own", small)
  with pytest.raises(reshard.InvalidArgumentError, match=message):
    builder.add([0], "local", shape, "bf16", [reshard.PlacedBox(*part) for part in parts])


def test_a_placed_box_begins_at_the_first_element_unless_it_is_told_otherwise(small):
  assert reshard.PlacedBox("w", BOX).at == [0, 0]
  builder = reshard.LayoutBuilder("own", small)
  builder.add([0], "w", (4, 6), "bf16", [reshard.PlacedBox("w", BOX)])
  builder.omit("b")
  assert builder.finish().local(0)[0].fragments[0].offset == 0


@pytest.mark.parametrize(
  ("dims", "message"),
  [
    ([0], "PlacedBox of 'w': dims has 1 entries, must have one for each of the box's 2 dimensions"),
    ([0, 2], r"dims\[1\] is 2, must be a dimension of the local tensor, which has 2"),
    ([-1, 0], r"dims\[0\] is -1"),
    ([1, 1], "dims has 1 twice"),
  ],
)
def test_a_placed_box_refuses_dims_that_no_tensor_has(dims, message):
  with pytest.raises(reshard.InvalidArgumentError, match=message):
    reshard.PlacedBox("w", BOX, dims=dims)


def test_an_engine_in_another_dtype_is_told_about_casts(small):
  def layout(**options):
    builder = reshard.LayoutBuilder("engine", small)
    builder.add([0], "w", (4, 6), "float32", [reshard.PlacedBox("w", BOX)], **options)
    builder.omit("b")
    return builder.finish()

  with pytest.raises(reshard.UnsupportedError, match="'w' is F32 but 'w' is BF16.*casts"):
    layout()
  assert layout(casts=True).local(0)[0].dtype == reshard.DType.f32


def test_the_tensors_of_a_model_are_a_mapping_by_name(small):
  tensors = small.tensors
  assert tensors.keys() == [t.name for t in tensors] == ["w", "b"]
  assert tensors.values() == list(tensors)
  assert dict(tensors.items()) == {"w": tensors["w"], "b": tensors["b"]} == dict(zip(tensors.keys(), tensors, strict=True))


def test_rules_store_values_in_the_dtype_that_they_or_the_notation_name(small):
  rules = json.dumps({"rules": [{"match": "b", "dtype": "float16"}, {"match": "*"}]})
  dtypes = {t.name: t.dtype.name for t in reshard.rules_layout(rules, small, dtype="float32").local(0)}
  assert dtypes == {"w": "f32", "b": "f16"}
  kept = {t.name: t.dtype for t in reshard.rules_layout(json.dumps({"rules": [{"match": "*"}]}), small).local(0)}
  assert kept == {t.name: t.dtype for t in small.tensors}
  with pytest.raises(reshard.CorruptError, match="dtype must be one of float32, bfloat16, float16"):
    reshard.rules_layout(json.dumps({"rules": [{"match": "*", "dtype": "int8"}]}), small)


def test_a_builder_refuses_names_ranks_and_a_second_finish(small):
  builder = reshard.LayoutBuilder("own", small)
  with pytest.raises(reshard.NotFoundError, match="no tensor 'x'"):
    builder.add([0], "x", (1,), "f32", [reshard.PlacedBox("x", [(0, 1)], (0,))])
  with pytest.raises(reshard.InvalidArgumentError, match="no ranks"):
    builder.add([], "x", (1,), "f32")
  with pytest.raises(reshard.InvalidArgumentError, match="rank 1048576 is not from 0"):
    builder.add([1 << 20], "x", (1,), "f32", padded=True)
  with pytest.raises(TypeError):
    builder.add(["0"], "x", (1,), "f32", padded=True)
  with pytest.raises(reshard.InvalidArgumentError, match="'square' is no value map"):
    builder.add([0], "x", (1,), "f32", padded=True, map="square")
  whole = reshard.PlacedBox("w", BOX, (0, 0))
  builder.add([0], "w", (4, 6), "bf16", [whole])
  with pytest.raises(reshard.InvalidArgumentError, match="rank 0 holds it twice"):
    builder.add([0, 1], "w", (4, 6), "bf16", [whole])
  builder.finish()
  with pytest.raises(reshard.InvalidArgumentError, match="finished"):
    builder.finish()


def test_a_builder_refuses_a_dtype_that_needs_a_cast(small):
  def layout(**options):
    builder = reshard.LayoutBuilder("own", small)
    builder.add([0], "w", (4, 6), "float16", [reshard.PlacedBox("w", BOX, (0, 0))], **options)
    return builder.finish()

  with pytest.raises(reshard.UnsupportedError, match="F16"):
    layout()
  assert layout(casts=True).local(0)[0].dtype == reshard.DType.f16
