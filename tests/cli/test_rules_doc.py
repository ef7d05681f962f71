# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/rules.md do what the text says."""

import json
import pathlib
import re
import shutil
import tempfile
import unittest

import program

DOC = pathlib.Path(__file__).parents[2] / "docs" / "rules.md"


class RulesDoc(unittest.TestCase):
    def setUp(self):
        self.d = pathlib.Path(tempfile.mkdtemp(prefix="reshard-rules-"))
        self.addCleanup(shutil.rmtree, self.d)
        cut, fused, self.apart, self.complete = re.findall(r"```json\n(.*?)```", DOC.read_text(), re.S)
        (self.d / "cut.json").write_text(cut)
        (self.d / "fused.json").write_text(fused)

    def test_its_commands_run(self):
        commands = re.findall(r"^reshard (.*)$", DOC.read_text(), re.M)
        self.assertEqual(len(commands), 5)
        for command in commands:
            (rules,) = set(re.findall(r"rules:\w+\.json", command))
            self.assertIn(rules, program.done(*command.split(), cwd=self.d))

    def test_the_fused_engine_is_vllms_in_all_but_two_names(self):
        def shapes(layout):
            said = program.done("inspect", "qwen3-30b-a3b", "--layout", layout, "--rank", "5", "--json")
            return {t["name"].replace(".routed_experts", "").replace("_weight", ""): t["shape"]
                    for t in json.loads(said)["local"]}  # fmt: skip

        ours = shapes(f"rules:{self.d / 'fused.json'},tp=4,pp=2")
        theirs = shapes("vllm:tp=4,pp=2")
        everywhere = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
        self.assertGreater(len(ours), 100)
        self.assertEqual({n: s for n, s in ours.items() if n not in everywhere},
                         {n: s for n, s in theirs.items() if n not in everywhere})  # fmt: skip

    def test_an_expert_of_a_tensor_with_all_is_on_its_rank(self):
        axes = [{"name": n, "size": 1} for n in ("etp", "ep")]
        program.write_json(self.d / "apart.json", {"axes": axes, "rules": [json.loads(self.apart)]})
        (self.d / "hf").mkdir()
        sizes = {"num_experts": 4, "hidden_size": 3, "moe_intermediate_size": 2}
        kind = {"architectures": ["StandInForCausalLM"], "model_type": "stand_in"}
        program.write_json(self.d / "hf" / "config.json", kind | sizes)
        name = "model.layers.0.mlp.experts.gate_up_proj"
        values = bytes(range(96))  # two bytes for each of 4 x 3 x 4
        program.write_safetensors(self.d / "hf" / "model.safetensors", {name: ("BF16", [4, 3, 4], values)})
        program.done("convert", "hf", "out", "--to", "rules:apart.json,etp=2,ep=2", cwd=self.d)
        held = program.read_safetensors(self.d / "out" / "rank-00003.safetensors")
        self.assertEqual(len(held), 2)
        # Of expert 3 (local 1) the second gate and the second up: columns 1 and 3 of its rows.
        rows = [36 + 4 * h + column for column in (1, 3) for h in range(3)]
        self.assertEqual(
            held["decoder.layers.0.mlp.experts.linear_fc1.weight1"],
            ("BF16", [2, 3], b"".join(values[2 * i : 2 * i + 2] for i in rows)),
        )
        program.done("convert", "out", "back", "--to", "hf", cwd=self.d)
        program.done("verify", "hf", "back", cwd=self.d)

    def test_a_model_that_lacks_a_tensor_is_refused_by_its_name(self):
        (self.d / "complete.json").write_text(self.complete)
        program.done("inspect", "qwen3-30b-a3b", "--layout", "rules:complete.json", cwd=self.d)
        (self.d / "hf").mkdir()
        said = {"architectures": ["StandInForCausalLM"], "model_type": "stand_in"}
        sizes = {"num_hidden_layers": 2, "num_experts": 2, "tie_word_embeddings": True}
        program.write_json(self.d / "hf" / "config.json", said | sizes)
        layer = ["input_layernorm", "self_attn.q_proj", "self_attn.o_proj"]
        layer += [f"mlp.experts.{e}.{kind}_proj" for e in (0, 1) for kind in ("gate", "up", "down")]
        names = ["embed_tokens", "norm", *(f"layers.{i}.{name}" for i in (0, 1) for name in layer)]

        def said_without(*missing):
            kept = {f"model.{n}.weight": ("BF16", [1], b"\0\0") for n in names if n not in missing}
            program.write_safetensors(self.d / "hf" / "model.safetensors", kept)
            return program.run("convert", "hf", "out", "--to", "rules:complete.json", cwd=self.d).stderr

        for name in ("norm", "layers.1.self_attn.o_proj", "layers.0.mlp.experts.1.up_proj"):
            self.assertIn(f"tensor 'model.{name}.weight' is missing from the model\n", said_without(name))
        self.assertIn("and 3 more are\n", said_without(*(f"layers.1.{name}" for name in layer)))
        self.assertEqual(said_without(), "")

    def test_what_its_ranks_hold(self):
        config = program.write_json(
            self.d / "config.json", program.LLAMA | {"num_hidden_layers": 32}
        )
        program.done("synth", config, self.d / "hf")
        program.done("convert", "hf", "out", "--to", "rules:cut.json", cwd=self.d)
        whole = program.read_safetensors(self.d / "hf" / "model.safetensors")
        ranks = [
            program.read_safetensors(self.d / "out" / f"rank-0000{r}.safetensors") for r in range(4)
        ]
        for r in range(4):
            stage, tp = r // 2, r % 2
            self.assertEqual("model.embed_tokens.weight" in ranks[r], stage == 0)
            self.assertEqual("lm_head.weight" in ranks[r], stage == 1)
            for layer in range(32):
                name = f"model.layers.{layer}.self_attn.q_proj.weight"
                self.assertEqual(name in ranks[r], layer // 16 == stage)
            layer = 16 * stage + 3
            rows = whole[f"model.layers.{layer}.mlp.up_proj.weight"][2]
            self.assertEqual(
                ranks[r][f"model.layers.{layer}.mlp.up_proj.weight"],
                ("BF16", [48, 64], rows[tp * 48 * 128 : (tp + 1) * 48 * 128]),
            )
            columns = whole[f"model.layers.{layer}.self_attn.o_proj.weight"][2]
            half = b"".join(
                columns[row * 128 + tp * 64 : row * 128 + tp * 64 + 64] for row in range(64)
            )
            self.assertEqual(
                ranks[r][f"stage.layer{layer}.attention.out.weight"], ("BF16", [64, 32], half)
            )
        index = json.loads((self.d / "out" / "reshard.json").read_text())
        self.assertEqual(index["layout"], "rules:rules.json")
        self.assertEqual(
            (self.d / "out" / "rules.json").read_text(), (self.d / "cut.json").read_text()
        )


if __name__ == "__main__":
    unittest.main()
