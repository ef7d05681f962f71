# SPDX-License-Identifier: Apache-2.0
"""What a bad-input case is, and the ways to damage a good checkpoint."""

import dataclasses
import json
import pathlib
import shutil
import typing

import program


@dataclasses.dataclass
class Place:
    """The folder of one case and the good checkpoints that all cases share."""

    folder: pathlib.Path
    hf: pathlib.Path  # a small Llama
    moe: pathlib.Path  # a small Qwen3-MoE
    ranks: pathlib.Path  # the Llama as megatron:tp=2

    def fill(self, text):
        """`text` with {d}, {hf}, {moe} and {ranks} replaced by paths."""
        return text.format(d=self.folder, hf=self.hf, moe=self.moe, ranks=self.ranks)

    def copy(self, source):
        """A copy of a checkpoint to damage, at {d}/in."""
        shutil.copytree(source, self.folder / "in")
        return self.folder / "in"


@dataclasses.dataclass
class Case:
    """Arguments that the program must refuse with this exit code and one line with these words."""

    name: str
    arguments: str
    code: int
    words: tuple
    prepare: typing.Callable | None = None  # of a Place, before the run
    options: dict = dataclasses.field(default_factory=dict)  # of program.run


def case(name, arguments, *words, code=1, prepare=None, **options):
    return Case(name, arguments, code, words, prepare, options)


def edit_config(place, source=None, **changes):
    """A copy of a checkpoint whose config has other values; None removes a key."""
    folder = place.copy(source or place.hf)
    config = json.loads((folder / "config.json").read_text()) | changes
    program.write_json(folder / "config.json", {k: v for k, v in config.items() if v is not None})


def edit_tensors(place, change, source=None):
    """A copy of a checkpoint whose tensors went through change(tensors)."""
    path = place.copy(source or place.hf) / "model.safetensors"
    tensors = program.read_safetensors(path)
    change(tensors)
    program.write_safetensors(path, tensors)


def edit_header(place, change, keep_length=False):
    """A copy of the Llama whose header text went through change(bytes); the data stays."""
    path = place.copy(place.hf) / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = change(data[8 : 8 + length])
    program.write_raw(path, header, data[8 + length :], length if keep_length else None)


def edit_bytes(place, change, source=None, file="model.safetensors"):
    """A copy of a checkpoint with one file's bytes changed."""
    path = place.copy(source or place.hf) / file
    path.write_bytes(change(path.read_bytes()))


def edit_index(place, change):
    """A copy of the rank checkpoint whose reshard.json went through change(value)."""
    path = place.copy(place.ranks) / "reshard.json"
    index = json.loads(path.read_text())
    change(index)
    program.write_json(path, index)


def sharded(place, change):
    """The Llama in several files at {d}/in, its index having gone through change(index)."""
    program.done("convert", place.hf, place.folder / "in", "--to", "hf:shards=3")
    path = place.folder / "in" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    program.write_json(path, index)


def config_file(**changes):
    """Writes {d}/config.json: the Llama's with changes, None removing a key."""

    def prepare(place):
        config = program.LLAMA | changes
        program.write_json(
            place.folder / "config.json", {k: v for k, v in config.items() if v is not None}
        )

    return prepare


def text_file(name, text):
    """Writes {d}/name."""
    return lambda place: (place.folder / name).write_text(text)


def rules_file(*rules, axes=({"name": "tp", "size": 2},), **more):
    """Writes {d}/rules.json."""
    content = {"axes": list(axes), "rules": list(rules)} | more
    return lambda place: program.write_json(place.folder / "rules.json", content)
