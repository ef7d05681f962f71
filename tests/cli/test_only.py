# SPDX-License-Identifier: Apache-2.0
"""`reshard run --only`: moves and verifies these tensors, on every path, plain and quantised, in one process and over
several."""

import unittest

import processes
import program

CONFIG = program.MOE | {"hidden_size": 256, "moe_intermediate_size": 128, "num_hidden_layers": 2}
EXPERTS = "model.layers.#.mlp.experts.*"
WAYS = (
    (),
    ("--path", "message", "--verify=fingerprints"),
    ("--buffering", "doubled"),
    ("--transport", "shm", "--spawn"),
)
TARGETS = ("vllm:tp=2,offset=2", "vllm:tp=2,offset=2,quant=fp8_channel", "vllm:tp=2,offset=2,quant=mxfp8,quant_grid=local")


class Only(processes.ProcessTest):
    def setUp(self):
        super().setUp()
        self.config = program.write_json(self.d / "config.json", CONFIG)

    def pair(self, target):
        return "run", "--model", self.config, "--from", "megatron:tp=2", "--to", target, "--repeat", "2"

    def test_moves_and_verifies_what_is_named(self):
        for target in TARGETS:
            whole = self.proved(*self.pair(target))
            for more in WAYS:
                with self.subTest(f"{target} {' '.join(more)}"):
                    part = self.proved(*self.pair(target), "--only", EXPERTS, *more)
                    experts = 3 * CONFIG["num_hidden_layers"] * CONFIG["num_experts"]
                    self.assertEqual(part["verified_tensors"], experts)
                    self.assertLess(part["bytes_total"], whole["bytes_total"])

    def test_a_pattern_that_matches_nothing_is_an_error(self):
        said = program.run(*self.pair(TARGETS[0]), "--only", "model.layers.9.*")
        self.assertEqual(said.returncode, 1)
        self.assertIn("pattern 'model.layers.9.*' to move matches no tensor", said.stderr)


if __name__ == "__main__":
    unittest.main()
