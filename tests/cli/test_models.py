# SPDX-License-Identifier: Apache-2.0
"""Protects: `reshard models` lists every class that a layout knows, and how that was proved."""

import json
import unittest

import program


class Models(unittest.TestCase):
    def test_it_lists_families_and_cards(self):
        listed = {c["class"]: c for c in json.loads(program.done("models", "--json"))["models"]}
        self.assertEqual(list(listed), sorted(listed))
        self.assertGreater(len(listed), 200)
        self.assertTrue(listed["LlamaForCausalLM"]["family"])
        self.assertEqual(listed["DeepseekV3ForCausalLM"]["model_types"], ["deepseek_v3", "kimi_k2"])
        olmoe = listed["OlmoeForCausalLM"]
        self.assertFalse(olmoe["family"])
        self.assertTrue(olmoe["layouts"]["fsdp"]["card"].startswith("transformers 5."))
        self.assertIn("tp=2,pp=3 (unseen)", olmoe["layouts"]["vllm"]["proof"])
        self.assertTrue(olmoe["layouts"]["megatron"]["card"].startswith("megatron 0."))
        self.assertEqual(olmoe["layouts"]["sglang"], {"known": False})
        for name in ("olmoe", "OLMoE"):
            shown = program.done("models", name)
            self.assertRegex(shown, r"(?m)^OlmoeForCausalLM +olmoe +card 5\.\S+ +card 0\.\S+ +- +card 0\.\S+$")
            self.assertRegex(shown, r"(?m)^  vllm: card of vllm \S+, which predicted tp=1; tp=2;")
            self.assertIn("\n  sglang: not known\n", shown)
        refused = program.run("models", "Olmoo")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("no known class has 'Olmoo' in its name or model_type", refused.stderr)


if __name__ == "__main__":
    unittest.main()
