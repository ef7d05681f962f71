# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that the program must refuse to read, and outputs that it must refuse to write."""

import json

from bad_input import (
    case,
    edit_bytes,
    edit_config,
    edit_header,
    edit_index,
    edit_tensors,
    program,
    sharded,
    text_file,
)

IN = "convert {d}/in {d}/out --to megatron:tp=2"
Q = "model.layers.0.self_attn.q_proj.weight"
K = "model.layers.1.self_attn.k_proj.weight"
HEAD = "lm_head.weight"


def remove(name):
    return lambda place: edit_tensors(place, lambda tensors: tensors.pop(name))


def replace(name, entry):
    return lambda place: edit_tensors(place, lambda tensors: tensors.update({name: entry}))


def as_json(change):
    """A header change that works on the parsed header."""

    def apply(header):
        value = json.loads(header)
        change(value)
        return json.dumps(value).encode()

    return lambda place: edit_header(place, apply)


def overlap(header):
    begin, end = header[Q]["data_offsets"]
    header[Q]["data_offsets"] = [begin - 2, end - 2]


def overflow(header):
    header[Q]["shape"] = [2**40, 2**40]


def two_checkpoints(place):
    folder = place.copy(place.hf)
    (folder / "reshard.json").write_text((place.ranks / "reshard.json").read_text())


def pickled(place):
    (place.folder / "in").mkdir()
    (place.folder / "in" / "pytorch_model.bin").write_bytes(b"PK")


def other_rank_file(place):
    folder = place.copy(place.ranks)
    path = folder / "rank-00001.safetensors"
    tensors = program.read_safetensors(path)
    name, (dtype, shape, data) = next(iter(tensors.items()))
    tensors[name] = (dtype, [shape[0] // 2, *shape[1:]], data[: len(data) // 2])
    program.write_safetensors(path, tensors)


def rank_file_lacks(place):
    path = place.copy(place.ranks) / "rank-00000.safetensors"
    tensors = program.read_safetensors(path)
    tensors.pop(next(iter(tensors)))
    program.write_safetensors(path, tensors)


def rank_file_gone(place):
    (place.copy(place.ranks) / "rank-00001.safetensors").unlink()


def zeros(*shape, dtype="BF16", width=2):
    count = width
    for size in shape:
        count *= size
    return dtype, list(shape), bytes(count)


TENSORS = [
    case(
        "a name with control characters",
        IN,
        "not part of",
        code=2, prepare=replace("evil\x1b[31m\nreshard: done\x7f", zeros(2, 2)),
    ),
    case("missing tensor", IN, f"'{K}'", "missing", "[32, 64]", prepare=remove(K)),
    case(
        "extra tensor",
        IN,
        "'model.extra.weight'",
        "[2, 2]",
        "not part of",
        code=2, prepare=replace("model.extra.weight", zeros(2, 2)),
    ),
    case("wrong shape", IN, f"'{Q}'", "[32, 64]", "[64, 64]", prepare=replace(Q, zeros(32, 64))),
    case(
        "other dtype in a fused tensor",
        IN,
        "linear_qkv",
        "F32",
        "BF16",
        prepare=replace(K, zeros(32, 64, dtype="F32", width=4)),
    ),
    case(
        "a tied head that is another",
        IN,
        "tie_word_embeddings",
        HEAD,
        "differs",
        prepare=lambda place: edit_config(place, tie_word_embeddings=True),
    ),
    case(
        "a layer too many",
        IN,
        "model.layers.1",
        "not part of",
        code=2, prepare=lambda place: edit_config(place, num_hidden_layers=1),
    ),
    case(
        "no config for a family",
        IN,
        "megatron",
        "config.json",
        "rules:FILE and explicit:FILE need none",
        prepare=lambda place: (place.copy(place.hf) / "config.json").unlink(),
    ),
    case(
        "layers of a checkpoint",
        "run --model {hf} --from hf --to hf --layers 1",
        "is a checkpoint",
        "config.json", code=2,
    ),
]

FILES = [
    case("no such input", "convert {d}/nothing {d}/out --to hf", "nothing", "does not exist"),
    case(
        "empty folder",
        IN,
        "holds no checkpoint",
        "model.safetensors",
        prepare=lambda place: (place.folder / "in").mkdir(),
    ),
    case("pickles", IN, "pytorch_model.bin", "only safetensors", prepare=pickled),
    case(
        "two checkpoints", IN, "two checkpoints", "instead of the folder", code=2, prepare=two_checkpoints
    ),
    case(
        "truncated data",
        IN,
        "model.safetensors",
        "bytes",
        prepare=lambda place: edit_bytes(place, lambda data: data[:-10]),
    ),
    case(
        "truncated header",
        IN,
        "model.safetensors",
        "header",
        prepare=lambda place: edit_bytes(place, lambda data: data[:100]),
    ),
    case(
        "empty file",
        IN,
        "model.safetensors",
        "empty",
        prepare=lambda place: edit_bytes(place, lambda data: b""),
    ),
    case(
        "five bytes",
        IN,
        "model.safetensors",
        "8",
        prepare=lambda place: edit_bytes(place, lambda data: data[:5]),
    ),
    case(
        "bytes after the data",
        IN,
        "model.safetensors",
        "bytes",
        prepare=lambda place: edit_bytes(place, lambda data: data + b"abc"),
    ),
    case(
        "header of 2^63 bytes",
        IN,
        "model.safetensors",
        "header",
        prepare=lambda place: edit_bytes(place, lambda data: b"\xff" * 7 + b"\x7f" + data[8:]),
    ),
    case(
        "header is not JSON",
        IN,
        "model.safetensors",
        "opening brace",
        prepare=lambda place: edit_header(place, lambda header: b"x" + header[1:]),
    ),
    case(
        "header is a list",
        IN,
        "model.safetensors",
        "opening brace",
        prepare=lambda place: edit_header(place, lambda header: b"[]".ljust(len(header))),
    ),
    case(
        "header breaks off",
        IN,
        "model.safetensors",
        "not JSON",
        prepare=lambda place: edit_header(place, lambda header: header.replace(b"}", b" ", 1)),
    ),
    case("overlapping tensors", IN, "model.safetensors", Q, prepare=as_json(overlap)),
    case("overflowing shape", IN, "model.safetensors", Q, prepare=as_json(overflow)),
    case(
        "unknown dtype",
        IN,
        Q,
        "BF17",
        prepare=as_json(lambda header: header[Q].update(dtype="BF17")),
    ),
    case(
        "dtype of another width",
        IN,
        Q,
        "F32",
        prepare=as_json(lambda header: header[Q].update(dtype="F32")),
    ),
    case(
        "negative offset",
        IN,
        Q,
        "-2",
        prepare=as_json(lambda header: header[Q].update(data_offsets=[-2, 4])),
    ),
]

INDEXES = [
    case(
        "truncated index",
        IN,
        "index.json",
        "not JSON",
        prepare=lambda place: (
            sharded(place, lambda index: None),
            edit_text(
                place.folder / "in" / "model.safetensors.index.json",
                lambda text: text[: len(text) // 2],
            ),
        ),
    ),
    case(
        "index lists a file that is gone",
        IN,
        "index.json",
        "model-9.safetensors",
        "does not exist",
        prepare=lambda place: sharded(
            place, lambda index: index["weight_map"].update({Q: "model-9.safetensors"})
        ),
    ),
    case(
        "index leads out of the folder",
        IN,
        "index.json",
        "plain name",
        prepare=lambda place: sharded(
            place, lambda index: index["weight_map"].update({Q: "../model.safetensors"})
        ),
    ),
    case(
        "index lists no such tensor",
        IN,
        "index.json",
        "model.nope",
        "is not in it",
        prepare=lambda place: sharded(
            place, lambda index: index["weight_map"].update({"model.nope": index["weight_map"][Q]})
        ),
    ),
    case(
        "index leaves a tensor out",
        IN,
        "index.json",
        Q,
        "not listed",
        prepare=lambda place: sharded(place, lambda index: index["weight_map"].pop(Q)),
    ),
]

RANKS = [
    case(
        "rank file gone",
        IN,
        "reshard.json",
        "rank-00001.safetensors",
        "does not exist",
        prepare=rank_file_gone,
    ),
    case(
        "rank file lacks a tensor",
        IN,
        "rank 0 has no tensor",
        "megatron:tp=2",
        prepare=rank_file_lacks,
    ),
    case(
        "rank file of another shape",
        IN,
        "rank-00001.safetensors",
        "rank 1 has",
        prepare=other_rank_file,
    ),
    case(
        "another layout than the files",
        IN,
        "rank 0",
        "vllm:tp=2",
        prepare=lambda place: edit_index(place, lambda index: index.update(layout="vllm:tp=2")),
    ),
    case(
        "fewer ranks than the layout",
        IN,
        "reshard.json",
        "rank 2 of world_size 3",
        prepare=lambda place: edit_index(place, lambda index: index.update(world_size=3)),
    ),
    case(
        "more ranks than the layout",
        IN,
        "megatron:tp=4",
        "{0-3}",
        "lists 2",
        prepare=lambda place: edit_index(place, lambda index: index.update(layout="megatron:tp=4")),
    ),
    case(
        "no list of tensors",
        IN,
        "reshard.json",
        "tensors",
        "convert",
        prepare=lambda place: edit_index(place, lambda index: index.pop("tensors")),
    ),
    case(
        "a tensor of another shape in the list",
        IN,
        "model.embed_tokens.weight",
        "[95, 64]",
        "[96, 64]",
        prepare=lambda place: edit_index(
            place, lambda index: index["tensors"][0].update(shape=[95, 64])
        ),
    ),
    case(
        "unknown version",
        IN,
        "reshard.json",
        "version 2",
        "version 1",
        prepare=lambda place: edit_index(place, lambda index: index.update(version=2)),
    ),
    case(
        "rules from outside the checkpoint",
        IN,
        "reshard.json",
        "plain name",
        prepare=lambda place: edit_index(
            place, lambda index: index.update(layout="rules:/etc/passwd")
        ),
    ),
    case(
        "a layout that there is not",
        IN,
        "reshard.json",
        "'deepspeed'",
        "hf, megatron, vllm, ",
        prepare=lambda place: edit_index(place, lambda index: index.update(layout="deepspeed:dp=2")),
    ),
]


def edit_text(path, change):
    path.write_text(change(path.read_text()))


def left_over(place):
    (place.folder / "out.partial").mkdir()
    (place.folder / "out.partial" / "notes.txt").write_text("mine")


REQUESTS = [
    case(
        "output exists",
        "convert {hf} {d}/out --to hf",
        "out",
        "exists",
        "not overwritten",
        code=2, prepare=lambda place: (place.folder / "out").mkdir(),
    ),
    case(
        "output is a file",
        "synth demo-moe {d}/out",
        "out",
        "exists",
        "not overwritten",
        code=2, prepare=text_file("out", "mine"),
    ),
    case("no parent folder", "convert {hf} {d}/no/out --to hf", "parent folder", "does not exist"),
    case(
        "somebody's partial folder",
        "convert {hf} {d}/out --to hf",
        "out.partial",
        "remove it",
        code=2, prepare=left_over,
    ),
    case(
        "from another layout",
        "convert {ranks} {d}/out --from vllm:tp=2 --to hf",
        "'vllm:tp=2'",
        "'megatron:tp=2'", code=2,
    ),
    case(
        "from hf, but it is ranks",
        "convert {ranks} {d}/out --from hf --to hf",
        "'hf'",
        "'megatron:tp=2'", code=2,
    ),
    case(
        "from ranks, but it is hf",
        "convert {hf} {d}/out --from megatron:tp=2 --to hf",
        "'megatron:tp=2'",
        "'hf'", code=2,
    ),
    case(
        "offset in a checkpoint",
        "convert {hf} {d}/out --to vllm:tp=2,offset=8",
        "offset",
        "leave it out", code=2,
    ),
    case(
        "a layout that does not fit",
        "convert {hf} {d}/out --to vllm:tp=3",
        "tp=3",
        "num_attention_heads=4", code=2,
    ),
    case("synth of a checkpoint", "synth {hf} {d}/out", "is a checkpoint", "config.json", code=2),
    case("synth of nothing", "synth {d}/none.json {d}/out", "none.json", "no such file"),
    case("verify with nothing", "verify {hf} {d}/none", "none", "does not exist"),
    case(
        "file size limit",
        "convert {hf} {d}/out --to hf",
        "model.safetensors",
        "larger than the system allows",
        file_bytes=4096,
    ),
]

CASES = TENSORS + FILES + INDEXES + RANKS + REQUESTS
