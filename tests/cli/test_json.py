# SPDX-License-Identifier: Apache-2.0
"""--json: every command that prints a report has it, the report is one object whose schema docs/operations.md lists."""

import json
import pathlib
import re
import shutil
import tempfile
import unittest

import program

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "operations.md"
# What they print is the report, in a form of its own.
WITHOUT = {"completion", "man"}


class JsonReports(unittest.TestCase):
    def setUp(self):
        self.d = pathlib.Path(tempfile.mkdtemp(prefix="reshard-json-"))
        self.addCleanup(shutil.rmtree, self.d)

    def test_every_command_prints_an_object_of_its_schema(self):
        pair = ("--model", "demo-moe", "--layers", 1, "--from", "megatron:tp=2", "--to", "vllm:tp=2")
        file = self.d / "program"
        runs = {
            "plan": pair,
            "explain": (*pair, "--rank", 0, "--out", file),
            "run": (*pair, "--repeat", 1),
            "synth": ("demo-moe", self.d / "hf", "--layers", 1),
            "convert": (self.d / "hf", self.d / "ranks", "--to", "vllm:tp=2"),
            "verify": (self.d / "hf", self.d / "ranks"),
            "delta": ("make", self.d / "hf", self.d / "ranks", self.d / "delta"),
            "inspect": ("demo-moe",),
            "transports": (),
            "models": ("llama",),
            "doctor": (),
        }
        self.assertEqual(set(program.commands()) - WITHOUT, set(runs))
        documented = dict(re.findall(r"(?m)^\| `reshard\.(\w+)/(\d+)` \|", PAGE.read_text()))
        self.assertEqual(set(documented), {*runs, "program", "environment"})
        for command, arguments in runs.items():
            with self.subTest(command):
                report = json.loads(program.done(command, *arguments, "--json"))
                self.assertEqual(next(iter(report)), "schema")
                self.assertEqual(report["schema"], f"reshard.{command}/{documented[command]}")
        read = json.loads(program.done("explain", "--program", file, "--json"))
        self.assertEqual(read["schema"], "reshard.program/" + documented["program"])

    def test_reports_of_files_say_what_was_written(self):
        written = json.loads(program.done("synth", "demo-moe", self.d / "hf", "--layers", 1, "--json"))
        files = list((self.d / "hf").glob("*.safetensors"))
        self.assertEqual((written["files"], written["output"]), (len(files), str(self.d / "hf")))
        tensors = {k: v for f in files for k, v in program.read_safetensors(f).items()}
        self.assertEqual(written["tensors"], len(tensors))
        self.assertEqual(written["bytes"], sum(len(data) for _, _, data in tensors.values()))
        made = json.loads(program.done("convert", self.d / "hf", self.d / "out", "--to", "vllm:tp=2", "--json"))
        self.assertEqual((made["ranks"], made["files"], made["layout"]), (2, 2, "vllm:tp=2"))
        held = [program.read_safetensors(f) for f in (self.d / "out").glob("*.safetensors")]
        self.assertEqual(made["bytes"], sum(len(data) for rank in held for _, _, data in rank.values()))
        self.assertEqual((made["kept_files"], made["notes"]), (0, []))


if __name__ == "__main__":
    unittest.main()
