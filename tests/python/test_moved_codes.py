# SPDX-License-Identifier: Apache-2.0
"""AWQ, GPTQ and compressed-tensors with zero points moved as they are stored: each rank has its rows or columns of codes, scales and zero points, cut at
whole words and groups, and what comes back from any layout are the bytes of the files."""

import json
import pathlib
import re
import shlex

import pytest
import reshard
import reshard.hf
import torch

from code_forms import awq, awq_gemv, gptq, pack_quantized, packed, scales
from dense_model import CONFIG, LAYER, MATRICES, VECTORS
from folders import command, ranks, read, same, write

HALF = {**CONFIG, "dtype": "float16"}
AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "desc_act": False, "sym": True}
V2 = {**GPTQ, "checkpoint_format": "gptq_v2"}
# name: (parts and values of a module, quantization_config, group)
FORMS = {
  "awq": (lambda r, c: awq(r, c, group=16), AWQ, 16),
  "gptq": (lambda r, c: gptq(r, c, order="groups", group=16), GPTQ, 16),
  "gptq_of_8_bits": (lambda r, c: gptq(r, c, bits=8, order="groups", group=8), {**GPTQ, "bits": 8}, 8),
  "gptq_v2_of_2_bits": (lambda r, c: gptq(r, c, bits=2, first=False, order=None, group=16), {**V2, "bits": 2}, 16),
  "gptq_of_channels": (lambda r, c: gptq(r, c, order="groups", group=-1), GPTQ, -1),
  "packed": (lambda r, c: packed(r, c, group=16), pack_quantized(16), 16),
  "packed_of_channels": (lambda r, c: packed(r, c, group=-1), pack_quantized(-1), -1),
}  # fmt: skip
FUSED = {"self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"), "mlp.gate_up_proj": ("gate_proj", "up_proj")}
BY_COLUMNS = ("self_attn.o_proj", "mlp.down_proj")


def checkpoint(folder, parts_of, section, group, config=HALF):
  tensors = {
    name: scales(*shape) for name, shape in (
      ("model.embed_tokens.weight", (32, 64)), ("model.norm.weight", (64,)), ("lm_head.weight", (32, 64)))
  }  # fmt: skip
  tensors |= {LAYER + name + ".weight": scales(n) for name, n in VECTORS.items()}
  for name, shape in MATRICES.items():
    tensors |= {LAYER + name + part: t.contiguous() for part, t in parts_of(*shape)[0].items()}
  section = {**section, "group_size": group}
  made = write(folder, tensors, {**config, "quantization_config": section})
  (folder / "quantize_config.json").write_text(json.dumps(section))
  return made


@pytest.fixture(scope="module", params=FORMS)
def stored(request, tmp_path_factory):
  """(folder, form in layouts)"""
  parts_of, section, group = FORMS[request.param]
  return checkpoint(tmp_path_factory.mktemp(request.param) / "in", parts_of, section, group), section["quant_method"]


#: The parts that ranks hold, and which of their dimensions the rows of the weight run along.
PARTS = {
  "awq": ((".qweight", ".qzeros", ".scales"), 1), "gptq": ((".qweight", ".qzeros", ".scales"), 1),
  "compressed-tensors": ((".weight_packed", ".weight_zero_point", ".weight_scale"), 0),
}  # fmt: skip


def piece(whole, module, along, tp, rank):
  """What a rank has of a module's part: its heads, rows or columns. A scale of all columns is on all ranks."""
  if module in BY_COLUMNS:
    return whole if whole.shape[1 - along] == 1 else whole.chunk(tp, dim=1 - along)[rank]
  parts = min(tp, 2) if module.endswith(("k_proj", "v_proj")) else tp
  return whole.chunk(parts, dim=along)[rank * parts // tp]


def expected(tensors, form, tp, rank):
  out = {}
  parts, along = PARTS[form]
  for part in parts:
    for fused, names in FUSED.items():
      modules = [f"{fused.split('.')[0]}.{name}" for name in names]
      pieces = [piece(tensors[LAYER + module + part], module, along, tp, rank) for module in modules]
      out[LAYER + fused + part] = torch.cat(pieces, dim=along)
    for module in BY_COLUMNS:
      out[LAYER + module + part] = piece(tensors[LAYER + module + part], module, along, tp, rank)
  if form == "compressed-tensors":  # of fused ones, that which a loader writes last
    for fused, names in [*FUSED.items(), *((module, [module.split(".")[1]]) for module in BY_COLUMNS)]:
      out[LAYER + fused + ".weight_shape"] = tensors[f"{LAYER}{fused.split('.')[0]}.{names[-1]}.weight_shape"]
  return out


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_each_rank_has_its_rows_or_columns_of_every_part(stored, tp, tmp_path):
  folder, form = stored
  group = json.loads((folder / "quantize_config.json").read_text())["group_size"]
  if tp == 4 and group == 16:  # 24 columns of down_proj are one group and a half
    assert refused(folder, tmp_path / "ranks", f"vllm:tp=4,quant={form}").endswith("tp=2\n")
    return
  said = command("convert", folder, tmp_path / "ranks", "--to", f"vllm:tp={tp},quant={form}")
  assert f"moves codes, scales and zero points of 7 tensors ({form}" in said, said
  held = ranks(tmp_path / "ranks")
  assert len(held) == tp
  tensors = read(folder)
  for rank, ours in held.items():
    same({name: t for name, t in ours.items() if "_proj." in name}, expected(tensors, form, tp, rank))
  assert (tmp_path / "ranks" / "config.json").read_bytes() == (folder / "config.json").read_bytes()


@pytest.mark.parametrize("layout", ["vllm:tp=2", "vllm:tp=2,pp=1,replicas=2", "fsdp:shard=3", "hf:shards=2"])
def test_what_comes_back_are_the_bytes_of_the_files(stored, layout, tmp_path):
  folder, form = stored
  command("convert", folder, tmp_path / "there", "--to", f"{layout},quant={form}")
  assert "the same" in command("verify", folder, tmp_path / "there")
  command("convert", tmp_path / "there", tmp_path / "back", "--to", f"hf:quant={form}")
  same(read(tmp_path / "back"), read(folder))
  for file in ("config.json", "quantize_config.json"):
    assert (tmp_path / "back" / file).read_bytes() == (folder / file).read_bytes()
  assert "the same" in command("verify", folder, tmp_path / "back")


def test_ranks_of_one_size_become_those_of_another(stored, tmp_path):
  folder, form = stored
  command("convert", folder, tmp_path / "two", "--to", f"vllm:tp=2,quant={form}")
  command("convert", tmp_path / "two", tmp_path / "one", "--to", f"vllm:tp=1,quant={form}")
  command("convert", folder, tmp_path / "direct", "--to", f"vllm:tp=1,quant={form}")
  same(ranks(tmp_path / "one")[0], ranks(tmp_path / "direct")[0])


def test_stored_names_the_form(stored, tmp_path):
  folder, form = stored
  command("convert", folder, tmp_path / "named", "--to", f"vllm:tp=2,quant={form}")
  command("convert", folder, tmp_path / "stored", "--to", "vllm:tp=2,quant=stored")
  assert (tmp_path / "stored/reshard.json").read_text() == (tmp_path / "named/reshard.json").read_text()
  command("convert", folder, tmp_path / "hf", "--to", "hf:quant=stored")
  same(read(tmp_path / "hf"), read(folder))


@pytest.mark.parametrize("verify", ["--verify", "--verify=bytes"])
def test_a_refit_moves_them_between_live_ranks(stored, verify):
  folder, form = stored
  run = ("run", "--model", folder, "--from", f"vllm:tp=2,quant={form}", "--to", f"vllm:tp=1,quant={form}", verify)
  assert "verified" in command(*run)


def test_rules_place_the_tensors_of_the_files(stored, tmp_path):
  folder, form = stored
  rules = tmp_path / "rules.json"
  rules.write_text('{"rules": [{"match": "*"}]}')
  command("convert", folder, tmp_path / "ranks", "--to", f"rules:{rules},quant={form}")
  same(ranks(tmp_path / "ranks")[0], read(folder))
  command("convert", tmp_path / "ranks", tmp_path / "back", "--to", f"hf:quant={form}")
  same(read(tmp_path / "back"), read(folder))


def test_the_commands_of_the_page_work(tmp_path, monkeypatch):
  page = (pathlib.Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
  section = page.split("### Codes as they are stored")[1].split("###")[0]
  checkpoint(tmp_path / "Qwen2.5-7B-Instruct-AWQ", lambda r, c: awq(r, c, group=8), AWQ, 8)
  monkeypatch.chdir(tmp_path)
  lines = re.findall(r"^    reshard ((?:convert|run) .*)$", section, re.MULTILINE)
  said = [command(*shlex.split(line)) for line in lines]
  assert len(said) == 3 and "verified" in said[2]
  same(read(tmp_path / "back"), read(tmp_path / "Qwen2.5-7B-Instruct-AWQ"))


def test_a_plan_and_a_layout_show_them(stored):
  folder, form = stored
  layout = f"vllm:tp=2,quant={form}"
  plan = command("plan", "--model", folder, "--from", f"hf:quant={form}", "--to", layout)
  assert "moves codes" in plan and "decoded" not in plan
  shown = command("inspect", folder, "--layout", layout, "--rank", "1")
  for part in PARTS[form][0]:
    assert f"model.layers.0.self_attn.qkv_proj{part}" in shown and f"model.layers.0.self_attn.v_proj{part}" in shown
  assert f"moved as it is with quant={form}" in command("inspect", folder)


def test_python_loads_a_rank_of_them(stored, tmp_path):
  folder, form = stored
  command("convert", folder, tmp_path / "ranks", "--to", f"vllm:tp=2,quant={form}")
  same(reshard.hf.load(folder, f"vllm:tp=2,quant={form}", 1), ranks(tmp_path / "ranks")[1])


def test_scales_take_the_dtype_of_the_engine(tmp_path):
  folder = checkpoint(tmp_path / "in", *FORMS["awq"], config=CONFIG)
  said = command("convert", folder, tmp_path / "ranks", "--to", "vllm:tp=1,quant=awq")
  name = LAYER + "mlp.down_proj.scales"
  held = ranks(tmp_path / "ranks")[0][name]
  assert torch.equal(held, read(folder)[name].to(torch.bfloat16)) and held.dtype == torch.bfloat16
  assert "F16" in said and "BF16" in said, said


# What is refused, by name.


def refused(folder, out, layout):
  said = command("convert", folder, out, "--to", layout, fails=True)
  assert not out.exists() and len(said.strip().splitlines()) == 1, said
  return said


def test_a_cut_inside_a_group_names_the_tensor_the_group_and_the_nearest_size(tmp_path):
  folder = checkpoint(tmp_path / "in", lambda r, c: awq(r, c), AWQ, 32)
  said = refused(folder, tmp_path / "out", "vllm:tp=2,quant=awq")
  assert "'model.layers.0.mlp.down_proj.weight' at column 48 is inside group 1 of" in said, said
  assert "'model.layers.0.mlp.down_proj.qzeros', columns 32 to 64" in said, said
  assert said.rstrip().endswith("the nearest that works is tp=1")


def test_a_cut_inside_a_word_is_refused(tmp_path):
  config = {**HALF, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 4,
            "intermediate_size": 128}
  shapes = {**MATRICES, "self_attn.k_proj": (64, 64), "self_attn.v_proj": (64, 64), "mlp.gate_proj": (128, 64),
            "mlp.up_proj": (128, 64), "mlp.down_proj": (64, 128)}  # fmt: skip
  tensors = {LAYER + n + e: t for n, shape in shapes.items() for e, t in awq(*shape, group=4)[0].items()}
  vectors = {**VECTORS, "self_attn.q_norm": 4, "self_attn.k_norm": 4}
  tensors |= {LAYER + name + ".weight": scales(n) for name, n in vectors.items()}
  tensors |= {"model.embed_tokens.weight": scales(32, 64), "model.norm.weight": scales(64)}
  tensors["lm_head.weight"] = scales(32, 64)
  folder = write(tmp_path / "in", tensors, {**config, "quantization_config": {**AWQ, "group_size": 4}})
  said = refused(folder, tmp_path / "out", "vllm:tp=16,quant=awq")
  assert "q_proj.weight' at row 4 is inside word 0 of 'model.layers.0.self_attn.q_proj.qweight'" in said, said
  assert said.rstrip().endswith("the nearest that works is tp=8"), said


def test_one_group_of_all_columns_is_cut_where_the_engine_repeats_it_alone(tmp_path):
  folder = checkpoint(tmp_path / "in", lambda r, c: awq(r, c, group=c), AWQ, -1)
  assert "is inside group 0" in refused(folder, tmp_path / "out", "vllm:tp=2,quant=awq")
  command("convert", folder, tmp_path / "one", "--to", "vllm:tp=1,quant=awq")


@pytest.mark.parametrize("layout", ["hf", "hf:shards=2", "fsdp:shard=3"])
@pytest.mark.parametrize(
  ("parts_of", "section"),
  [(awq_gemv, {**AWQ, "version": "gemv"}), (lambda r, c: gptq(r, c, bits=3), {**GPTQ, "bits": 3})],
  ids=["awq_gemv", "gptq_of_3_bits"],
)
def test_what_no_engine_holds_moves_whole(parts_of, section, layout, tmp_path):
  folder = checkpoint(tmp_path / "in", parts_of, section, 32)
  form = section["quant_method"]
  command("convert", folder, tmp_path / "there", "--to", f"{layout}{',' if ':' in layout else ':'}quant={form}")
  command("convert", tmp_path / "there", tmp_path / "back", "--to", f"hf:quant={form}")
  same(read(tmp_path / "back"), read(folder))
  assert (tmp_path / "back/config.json").read_bytes() == (folder / "config.json").read_bytes()


def test_columns_in_another_order_move_whole_and_are_refused_for_engines(tmp_path):
  folder = checkpoint(tmp_path / "in", lambda r, c: gptq(r, c), GPTQ, 32)
  said = refused(folder, tmp_path / "out", "vllm:tp=1,quant=gptq")
  assert "q_proj.g_idx' says that groups are not in the order of columns (desc_act)" in said, said
  command("convert", folder, tmp_path / "ranks", "--to", "fsdp:shard=3,quant=gptq")
  command("convert", tmp_path / "ranks", tmp_path / "back", "--to", "hf:quant=gptq")
  same(read(tmp_path / "back"), read(folder))
  # Files of ranks show pieces of the order alone.
  said = refused(tmp_path / "ranks", tmp_path / "out", "vllm:tp=1,quant=gptq")
  assert "is known of whole files only; convert to hf:quant=gptq first" in said, said


def test_codes_are_not_made(stored, tmp_path):
  folder, form = stored
  command("convert", folder, tmp_path / "plain", "--to", "hf")
  said = refused(tmp_path / "plain", tmp_path / "out", f"vllm:tp=1,quant={form}")
  assert f"quant={form}: codes are only moved, and the weights of" in said and "are stored as plain values" in said
  other = "gptq" if form == "awq" else "awq"
  assert f"are stored as {form}" in refused(folder, tmp_path / "out", f"vllm:tp=1,quant={other}")
  said = command("plan", "--model", folder, "--from", "hf", "--to", f"vllm:tp=1,quant={form}", fails=True)
  assert f"the source must hold them too, with quant={form}" in said


def test_codes_of_ranks_are_decoded_from_whole_files(stored, tmp_path):
  folder, form = stored
  command("convert", folder, tmp_path / "ranks", "--to", f"vllm:tp=2,quant={form}")
  assert f"convert to hf:quant={form}" in refused(tmp_path / "ranks", tmp_path / "out", "hf")
  command("convert", tmp_path / "ranks", tmp_path / "hf", "--to", f"hf:quant={form}")
  for name, source in (("a", folder), ("b", tmp_path / "hf")):
    command("convert", source, tmp_path / name, "--to", "hf")
  same(read(tmp_path / "a"), read(tmp_path / "b"))


@pytest.mark.parametrize(
  ("layout", "said"),
  [
    ("megatron:tp=1,quant={}", "without quant, megatron gets the decoded values"),
    ("sglang:tp=1,quant={}", "without quant, sglang gets the decoded values"),
    ("vllm:tp=1,quant={},quant_grid=local", "leave quant_grid out"),
    ("hf:quant={},dtype=bfloat16", "leave dtype out"),
  ],
)
def test_what_a_layout_of_codes_does_not_have(stored, layout, said, tmp_path):
  folder, form = stored
  assert said in refused(folder, tmp_path / "out", layout.format(form))


def test_a_config_that_describes_another_form_than_the_ranks_is_refused(stored, tmp_path):
  folder, form = stored
  command("convert", folder, tmp_path / "ranks", "--to", f"vllm:tp=1,quant={form}")
  (tmp_path / "ranks/config.json").write_text(json.dumps(HALF))
  said = refused(tmp_path / "ranks", tmp_path / "out", f"hf:quant={form}")
  assert "quantization_config" in said, said


def test_a_module_in_another_form_than_its_neighbours_is_refused(tmp_path):
  folder = checkpoint(tmp_path / "in", *FORMS["awq"])
  tensors = read(folder)
  for part in (".qweight", ".qzeros", ".scales"):
    del tensors[LAYER + "self_attn.k_proj" + part]
  tensors[LAYER + "self_attn.k_proj.weight"] = scales(32, 64)
  config = json.loads((folder / "config.json").read_text())
  other = write(tmp_path / "other", tensors, config)
  said = refused(other, tmp_path / "out", "vllm:tp=1,quant=awq")
  assert "'model.layers.0.self_attn.k_proj.weight' is stored as plain values" in said, said
  command("convert", other, tmp_path / "back", "--to", "hf:quant=awq")
  same(read(tmp_path / "back"), tensors)
