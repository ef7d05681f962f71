# SPDX-License-Identifier: Apache-2.0
"""The example of docs/dtensor.md does what the text says."""

import json
import pathlib
import re
import shutil
import tempfile
import unittest

import program

DOC = pathlib.Path(__file__).parents[2] / "docs" / "dtensor.md"


class DTensorDoc(unittest.TestCase):
    def setUp(self):
        self.d = pathlib.Path(tempfile.mkdtemp(prefix="reshard-dtensor-"))
        self.addCleanup(shutil.rmtree, self.d)
        (example,) = re.findall(r"```json\n(.*?)```", DOC.read_text(), re.S)
        (self.d / "placements.json").write_text(example)

    def test_its_commands_run(self):
        commands = re.findall(r"^reshard (.*)$", DOC.read_text(), re.M)
        self.assertEqual(len(commands), 2)
        for command in commands:
            self.assertIn("dtensor:placements.json", program.done(*command.split(), cwd=self.d))

    def test_a_checkpoint_brings_its_placements_along(self):
        config = program.write_json(self.d / "config.json", program.LLAMA)
        program.done("synth", config, self.d / "hf")
        program.done("convert", "hf", "out", "--to", "dtensor:placements.json", cwd=self.d)
        index = json.loads((self.d / "out" / "reshard.json").read_text())
        self.assertEqual(index["layout"], "dtensor:dtensor.json")
        program.done("convert", "out", "back", "--to", "hf", cwd=self.d)
        program.done("verify", "hf", "back", cwd=self.d)
        whole = program.read_safetensors(self.d / "hf" / "model.safetensors")
        # Rank 5 has shard 2 of 4 and, of that mesh's last dimension, part 1 of 2.
        rank = program.read_safetensors(self.d / "out" / "rank-00005.safetensors")
        dtype, shape, data = whole["model.layers.0.mlp.up_proj.weight"]
        rows, columns = shape
        row = 2 * columns
        begin = (rows // 2 + 2 * (rows // 8)) * row
        self.assertEqual(
            rank["model.layers.0.mlp.up_proj.weight"],
            (dtype, [rows // 8, columns], data[begin : begin + rows // 8 * row]),
        )


if __name__ == "__main__":
    unittest.main()
