# SPDX-License-Identifier: Apache-2.0
"""The commands of the pages in docs/ that have no test of their own work, in their order, on small models."""

import pathlib
import re
import shlex
import shutil
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
        self.assertEqual(pages, {"dcp.md", "processes.md"})

    def test_distributed_checkpoints(self):
        program.done("synth", program.write_json(self.d / "config.json", program.LLAMA | {"num_key_value_heads": 4}), self.d / "hf")
        program.done("convert", self.d / "hf", self.d / "step-500", "--to", "dcp:shard=2")
        program.done("convert", self.d / "hf", self.d / "iter_0000500", "--to", "torch_dist:shard=2")
        commands = commands_of("dcp.md")
        self.assertEqual(len(commands), 8)
        self.run_all(commands)

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
