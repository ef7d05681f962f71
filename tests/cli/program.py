# SPDX-License-Identifier: Apache-2.0
"""Runs the program under test, and makes the small models that it is given."""

import json
import os
import pathlib
import re
import resource
import shutil
import subprocess

ROOT = pathlib.Path(__file__).parents[2]
BINARY = str(pathlib.Path(os.environ.get("RESHARD_BIN", ROOT / "build/bin/reshard")).absolute())
TIMEOUT_SECONDS = 400  # of a run that hangs; under ThreadSanitizer one may take minutes

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

MOE = LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
}

# An engine does not hold the module for multi-token prediction.
MTP = LLAMA | {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
    "attention_bias": False,
    "use_qk_norm": False,
}


def run(
    *arguments, binary=None, cwd=None, user=None, file_bytes=None, stdout=subprocess.PIPE, env=None
):
    """Runs the program to its end, as another user or with a limit on file sizes if asked."""

    def prepare():
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        if user is not None:
            os.setgid(user)
            os.setuid(user)

    return subprocess.run(
        [binary or BINARY, *map(str, arguments)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_SECONDS,
        cwd=cwd,
        env=os.environ | (env or {}),
        preexec_fn=prepare if user is not None or file_bytes is not None else None,
    )


def done(*arguments, **options):
    """Runs the program, which must succeed in silence on standard error; returns its output."""
    result = run(*arguments, **options)
    assert result.returncode == 0, f"{arguments}: exit {result.returncode}: {result.stderr}"
    assert result.stderr == "", f"{arguments}: {result.stderr}"
    return result.stdout


def commands():
    """All commands, as the help lists them."""
    listed = done("--help").partition("\nCommands:\n")[2].partition("\n\n")[0]
    return re.findall(r"(?m)^  (\w+) ", listed)


def write_json(path, value):
    path = pathlib.Path(path)
    path.write_text(json.dumps(value))
    return path


def read_safetensors(path):
    """name -> (dtype, shape, bytes), in the order of the file."""
    data = pathlib.Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {
        name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


def write_safetensors(path, tensors):
    """The inverse of read_safetensors."""
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    write_raw(path, json.dumps(header).encode(), body)


def write_raw(path, header, body, length=None):
    """A file of a header and a body that may be anything."""
    size = len(header) if length is None else length
    pathlib.Path(path).write_bytes(size.to_bytes(8, "little") + header + body)


def train(before, after):
    """Copies a checkpoint of one file as a step of a training leaves it: some bf16 values are one unit greater."""
    after = pathlib.Path(after)
    shutil.copytree(before, after)
    path = after / "model.safetensors"
    tensors = {}
    for name, (dtype, shape, data) in read_safetensors(path).items():
        values = bytearray(data)
        for at in range(0, len(values) if dtype == "BF16" else 0, 64):
            values[at] = (values[at] + 1) % 256
        tensors[name] = (dtype, shape, bytes(values))
    write_safetensors(path, tensors)


def files_of(folder):
    """name -> bytes of everything in a folder."""
    return {path.name: path.read_bytes() for path in sorted(pathlib.Path(folder).iterdir())}
