# SPDX-License-Identifier: Apache-2.0
"""The commands of the pages in docs/ that have no test of their own work, in their order, on small models."""

import pathlib
import re
import shlex
import shutil
import struct
import tempfile
import unittest

import program

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def commands_of(page):
    """The arguments of each command; those of a launcher are run in tests/mpi."""
    lines = re.findall(r"^    \$ reshard (.*)$", (DOCS / page).read_text(), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


class Pages(unittest.TestCase):
    def setUp(self):
        self.d = pathlib.Path(tempfile.mkdtemp(prefix="reshard-pages-"))
        self.addCleanup(shutil.rmtree, self.d)

    def run_all(self, commands):
        for command in commands:
            if command[0] == "convert":
                shutil.rmtree(self.d / command[2], ignore_errors=True)
            program.done(*command, cwd=self.d)

    def test_every_page_with_commands_is_here(self):
        pages = {page.name for page in DOCS.glob("*.md") if commands_of(page.name)}
        self.assertEqual(pages - {"deltas.md"}, {"dcp.md", "lora.md", "processes.md"})  # test_deltas.py

    def test_distributed_checkpoints(self):
        program.done("synth", program.write_json(self.d / "config.json", program.LLAMA | {"num_key_value_heads": 4}), self.d / "hf")
        program.done("convert", self.d / "hf", self.d / "step-500", "--to", "dcp:shard=2")
        program.done("convert", self.d / "hf", self.d / "iter_0000500", "--to", "torch_dist:shard=2")
        commands = commands_of("dcp.md")
        self.assertEqual(len(commands), 8)
        self.run_all(commands)

    def test_adapters(self):
        program.done("synth", program.write_json(self.d / "config.json", program.LLAMA), self.d / "base")
        base = program.read_safetensors(self.d / "base" / "model.safetensors")
        name = "model.layers.0.self_attn.q_proj"
        rows, cols = base[f"{name}.weight"][1]
        adapter = self.d / "adapter"
        adapter.mkdir()
        program.write_json(adapter / "adapter_config.json", {"peft_type": "LORA", "r": 1, "lora_alpha": 2})
        program.write_safetensors(adapter / "adapter_model.safetensors", {
            f"base_model.model.{name}.lora_A.weight": ("F32", [1, cols], struct.pack(f"<{cols}f", *[1] * cols)),
            f"base_model.model.{name}.lora_B.weight": ("F32", [rows, 1], struct.pack(f"<{rows}f", *[8] * rows)),
        })
        commands = commands_of("lora.md")
        self.assertEqual([command[0] for command in commands], ["convert", "convert", "verify"])
        self.run_all(commands)
        self.assertEqual(program.run("verify", "base", "merged", cwd=self.d).returncode, 1)
        missing = program.run("convert", "base", "other", "--to", "hf", "--merge", "nowhere", cwd=self.d)
        self.assertEqual(missing.returncode, 1)
        self.assertIn("nowhere/adapter_model.safetensors", missing.stderr)

    def test_processes(self):
        commands = commands_of("processes.md")
        self.assertEqual(len(commands), 2)
        self.run_all(commands)

    def test_tensors_to_ignore(self):
        (line,) = re.findall(r"^    reshard (convert in out .*)$", (DOCS / "checkpoints.md").read_text(), re.MULTILINE)
        program.done("synth", program.write_json(self.d / "config.json", program.LLAMA), self.d / "in")
        path = self.d / "in" / "model.safetensors"
        tensors = program.read_safetensors(path)
        for name in ("model.layers.1.extra.weight", "vision.tower.weight"):
            tensors[name] = ("BF16", [2], bytes(4))
        program.write_safetensors(path, tensors)
        self.assertEqual(program.run("convert", "in", "out", "--to", "vllm:tp=2", cwd=self.d).returncode, 2)
        self.run_all([shlex.split(line)])


if __name__ == "__main__":
    unittest.main()
