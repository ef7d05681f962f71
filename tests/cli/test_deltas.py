# SPDX-License-Identifier: Apache-2.0
"""`reshard delta`: the commands of docs/deltas.md work, what it refuses, and what its reports say."""

import json
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import unittest

import program

DOC = (pathlib.Path(__file__).parents[2] / "docs" / "deltas.md").read_text()


class Deltas(unittest.TestCase):
    def setUp(self):
        self.d = pathlib.Path(tempfile.mkdtemp(prefix="reshard-deltas-"))
        self.addCleanup(shutil.rmtree, self.d)
        program.done("synth", program.write_json(self.d / "config.json", program.LLAMA), self.d / "made")
        program.train(self.d / "made", self.d / "step-0")
        shutil.rmtree(self.d / "made")
        program.train(self.d / "step-0", self.d / "step-1")
        program.train(self.d / "step-1", self.d / "step-2")

    def delta(self, *arguments):
        return program.run("delta", *arguments, cwd=self.d)

    def report(self, *arguments):
        return json.loads(program.done("delta", *arguments, "--json", cwd=self.d))

    def refused(self, code, *arguments):
        result = self.delta(*arguments)
        self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        return result.stderr

    def test_the_commands_of_the_page_restore_the_last_version(self):
        commands = [shlex.split(line) for line in re.findall(r"^    \$ reshard (.*)$", DOC, re.M)]
        self.assertEqual([command[1] for command in commands], ["make", "make", "inspect", "apply"])
        for command in commands:
            program.done(*command, cwd=self.d)
        self.assertEqual(program.files_of(self.d / "restored"), program.files_of(self.d / "step-2"))

    def test_the_table_of_the_page_is_the_metadata(self):
        self.delta("make", "step-0", "step-1", "1")
        data = (self.d / "1").read_bytes()
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        table = DOC.partition("| key | value |")[2].partition("\n\n")[0]
        self.assertEqual(set(re.findall(r"`(\w+)`(?=[ ,][^|]*\|)", table.replace("reshard.delta/1", ""))), set(metadata))
        self.assertIn(f"| `format` | `{metadata['format']}` |", table)

    def test_reports_of_all_operations(self):
        made = self.report("make", "step-0", "step-1", "1")
        again = self.report("make", "step-1", "step-2", "2", "--after", "1", "--threads", 1)
        self.assertEqual((made["schema"], made["operation"], made["step"]), ("reshard.delta/1", "make", 1))
        self.assertEqual((again["step"], again["anchor"], again["base"]), (2, made["base"], made["result"]))
        self.assertEqual(made["delta_bytes"], (self.d / "1").stat().st_size)
        self.assertEqual(made["result_bytes"], sum(len(data) for data in program.files_of(self.d / "step-1").values()))
        names = {change["tensor"] for change in made["changes"]}
        self.assertTrue(names >= set(program.read_safetensors(self.d / "step-0" / "model.safetensors")))
        read = self.report("inspect", "2")
        self.assertEqual({k: v for k, v in read.items() if k not in ("operation", "seconds", "peak_rss_bytes")},
                         {k: v for k, v in again.items() if k not in ("operation", "seconds", "peak_rss_bytes")})
        applied = self.report("apply", "step-0", "1", "2", "out")
        self.assertEqual((applied["operation"], applied["first_step"], applied["step"]), ("apply", 1, 2))
        self.assertEqual((applied["base"], applied["result"]), (made["base"], again["result"]))
        self.assertEqual(applied["delta_bytes"], made["delta_bytes"] + again["delta_bytes"])
        self.assertEqual(program.files_of(self.d / "out"), program.files_of(self.d / "step-2"))

    def test_checkpoints_of_every_format_come_back(self):
        for layout in ("hf:quant=fp8_channel", "hf:quant=mxfp4", "vllm:tp=2", "dcp:shard=2", "torch_dist:shard=2"):
            with self.subTest(layout):
                for step in (0, 1):
                    program.done("convert", f"step-{step}", f"{step}-as-{layout}", "--to", layout, cwd=self.d)
                before, after, delta, out = f"0-as-{layout}", f"1-as-{layout}", f"delta-of-{layout}", f"out-of-{layout}"
                made = self.report("make", before, after, delta)
                self.report("apply", before, delta, out)
                self.assertEqual(program.files_of(self.d / out), program.files_of(self.d / after))
                self.assertGreater(len(made["changes"]), 0)
                self.assertLess(made["share"], 0.5)

    def test_a_wrong_base_is_refused_by_the_tensor_that_differs(self):
        self.delta("make", "step-0", "step-1", "1")
        self.delta("make", "step-1", "step-2", "2", "--after", "1")
        said = self.refused(2, "apply", "step-1", "1", "out")
        self.assertRegex(said, r"step-1: is not the checkpoint that 1 changes: .*model.safetensors.* differs")
        path = self.d / "step-0" / "model.safetensors"
        tensors = program.read_safetensors(path)
        dtype, shape, data = tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.1.mlp.up_proj.weight"] = (dtype, shape, data[:-1] + bytes([data[-1] ^ 1]))
        program.write_safetensors(path, tensors)
        self.assertIn("tensor model.layers.1.mlp.up_proj.weight of model.safetensors", self.refused(2, "apply", "step-0", "1", "out"))
        self.assertIn("2: begins at checkpoint", self.refused(2, "apply", "step-1", "2", "2", "out"))
        self.assertIn("is not the checkpoint at which 2 ends", self.refused(2, "make", "step-1", "step-2", "3", "--after", "2"))
        self.assertFalse((self.d / "out").exists() or (self.d / "3").exists())

    def test_memory_does_not_grow_with_the_checkpoint(self):
        large = program.LLAMA | {"hidden_size": 512, "intermediate_size": 2048, "vocab_size": 32000, "num_hidden_layers": 3}
        program.done("synth", program.write_json(self.d / "config.json", large), self.d / "large-0")
        program.done("synth", self.d / "config.json", self.d / "large-1", "--seed", 1)
        peak = {}
        for before, after in (("step-0", "step-1"), ("large-0", "large-1")):
            made = self.report("make", before, after, f"delta-{after}", "--threads", 2)
            applied = self.report("apply", before, f"delta-{after}", f"out-{after}", "--threads", 2)
            peak[after] = max(made["peak_rss_bytes"], applied["peak_rss_bytes"])
        self.assertGreater(applied["bytes"], 80_000_000)
        # Every value changes: 17 MB for each thread, and what is mapped at a time.
        self.assertLess(peak["large-1"], peak["step-1"] + 50_000_000)

    def test_wrong_use(self):
        self.delta("make", "step-0", "step-1", "1")
        for arguments, words in (
            ((), "OPERATION"),
            (("mak", "a", "b", "c"), "must be make, apply or inspect (did you mean 'make'?)"),
            (("make",), "PATH"),
            (("make", "step-0", "step-1"), "make takes three"),
            (("apply", "step-0", "1"), "apply takes at least three"),
            (("apply", "step-0", "1", "out", "--after", "1"), "only make begins"),
            (("inspect", "1", "1"), "inspect takes one"),
            (("inspect", "1", "--threads", "2"), "writes nothing"),
            (("make", "step-0", "step-1", "1"), "1: exists"),
            (("make", "step-0", "step-1/config.json", "x"), "give two folders or two files"),
        ):
            with self.subTest(arguments):
                self.assertIn(words, self.refused(2, *arguments))
        self.assertIn("is no delta", self.refused(1, "inspect", "step-0/model.safetensors"))
        self.assertIn("nowhere", self.refused(1, "inspect", "nowhere"))

    def test_a_full_disk_leaves_nothing(self):
        self.delta("make", "step-0", "step-1", "1")
        for arguments in (("make", "step-0", "step-2", "2"), ("apply", "step-0", "1", "out")):
            result = program.run("delta", *arguments, cwd=self.d, file_bytes=4096)
            self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(sorted(path.name for path in self.d.iterdir()), ["1", "config.json", "step-0", "step-1", "step-2"])

    def test_what_a_killed_apply_leaves_is_no_checkpoint(self):
        self.delta("make", "step-0", "step-1", "1")
        command = [program.BINARY, "delta", "apply", "step-0", "1", "out"]
        for begun in (None, "out.partial", "out.partial/model.safetensors", "out"):
            shutil.rmtree(self.d / "out", ignore_errors=True)
            shutil.rmtree(self.d / "out.partial", ignore_errors=True)
            process = subprocess.Popen(command, cwd=self.d, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while begun and process.poll() is None and not (self.d / begun).exists():
                pass  # it ends in any case
            process.send_signal(signal.SIGKILL)
            process.wait()
            if (self.d / "out").exists():
                kept = {name: data for name, data in program.files_of(self.d / "out").items() if name[0] != "."}
                self.assertEqual(kept, program.files_of(self.d / "step-1"))


if __name__ == "__main__":
    unittest.main()
