# SPDX-License-Identifier: Apache-2.0
"""What `reshard explain` says is so: its example, its totals, its keys, its digests and its files."""

import json
import pathlib
import re
import shutil
import tempfile
import unittest

import program

DOC = (pathlib.Path(__file__).parents[2] / "docs" / "program.md").read_text()
PLAIN = ("--model", "qwen3-4b", "--layers", "1", "--from", "megatron:tp=2", "--to", "vllm:tp=2,offset=2")


def explain(*arguments):
    return json.loads(program.done("explain", *arguments, "--json"))


class Explain(unittest.TestCase):
    def setUp(self):
        self.d = pathlib.Path(tempfile.mkdtemp(prefix="reshard-explain-"))
        self.addCleanup(shutil.rmtree, self.d)

    def test_its_example_prints_what_the_page_shows(self):
        # Digests change with any name in a layout.
        def shown(text):
            return re.sub(r"[0-9a-f]{16}", "D", re.sub(r" +\n", "\n", text))

        ((command, wanted),) = re.findall(r"^```console\n\$ reshard (.*)\n((?:.*\n)*?)^```", DOC, re.M)
        self.assertEqual(shown(program.done(*command.split())), shown(wanted))

    def test_its_keys_are_those_of_the_page(self):
        quantised = (*PLAIN[:-1], "vllm:tp=2,offset=2,quant=nvfp4", "--rank", 2, "--steps", "all")
        keys = set()

        def collect(value):
            if isinstance(value, dict):
                keys.update(value)
                value = list(value.values())
            if isinstance(value, list):
                for entry in value:
                    collect(entry)

        collect(explain(*quantised, "--path", "message"))
        for key in keys:
            self.assertIn(f"`{key}`", DOC)
        self.assertIn("format", keys)

    def test_every_way_delivers_the_same_bytes(self):
        plan = json.loads(program.done("plan", *PLAIN, "--rank", 2, "--json"))
        for path in ("direct", "get", "message", "process"):
            with self.subTest(path):
                (report,) = explain(*PLAIN, "--rank", 2, "--path", path)["programs"]
                self.assertEqual(report["bytes_delivered"], plan["bytes_total"])
                moved = report["bytes_received" if path == "message" else "bytes_read"]
                self.assertEqual(moved, plan["bytes_wire"])
                self.assertEqual(sum(w["steps"] for w in report["work"]), report["steps"])

    def test_a_quantised_target_has_a_program_for_each_route(self):
        for format in ("mxfp8", "nvfp4", "fp8_block"):
            to = (*PLAIN[:-1], f"vllm:tp=2,offset=2,quant={format}")
            for convert in ("receiver", "sender"):
                with self.subTest(f"{format} {convert}"):
                    programs = explain(*to, "--rank", 2, "--convert", convert, "--path", "message")["programs"]
                    self.assertEqual(programs[0]["route"], "plain")
                    self.assertGreater(len(programs), 1)
        refused = program.run("explain", *to, "--rank", 2, "--path", "process")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("--path direct", refused.stderr)

    def test_lists_as_many_steps_as_asked_for(self):
        (report,) = explain(*PLAIN, "--rank", 2, "--steps", "all")["programs"]
        self.assertEqual([step["step"] for step in report["list"]], list(range(report["steps"])))
        self.assertIn("and 1 more step\n", program.done("explain", *PLAIN, "--rank", 2, "--steps", report["steps"] - 1))
        self.assertLess(len(program.done("explain", *PLAIN, "--rank", 2).splitlines()), 40)

    def test_digests_are_equal_in_every_run_and_in_files(self):
        for path in ("direct", "message"):
            one, two = (explain(*PLAIN, "--rank", 2, "--path", path) for _ in range(2))
            self.assertEqual(one, two)
            file = self.d / path
            program.done("explain", *PLAIN, "--rank", 2, "--path", path, "--out", file)
            read = explain("--program", file)
            for key in ("rank", "digest", "plan_digest", "serialised_bytes", "bytes_delivered", "peers", "work"):
                self.assertEqual(read[key], one["programs"][0][key])
            self.assertEqual(file.stat().st_size, read["serialised_bytes"])

    def test_files_that_are_no_programs_are_refused(self):
        file = self.d / "program"
        program.done("explain", *PLAIN, "--rank", 2, "--out", file)
        good = file.read_bytes()
        for bytes, message in (
            (b"", "byte 0: is not a serialised program"),
            (b"x" * 100, "byte 0: is not a serialised program"),
            (good[:-1], "ends inside"),
            (good + b"\0", "1 bytes after the end"),
            (good[:8] + b"\x02" + good[9:], "version 2, this build reads 1"),
        ):
            file.write_bytes(bytes)
            refused = program.run("explain", "--program", file)
            self.assertEqual((refused.returncode, refused.stdout), (1, ""))
            self.assertIn(message, refused.stderr)
            self.assertEqual(len(refused.stderr.splitlines()), 1)

    def test_wrong_options_are_refused(self):
        for arguments, status, message in (
            (PLAIN, 2, "--rank is required"),
            ((*PLAIN, "--rank", 9), 2, "rank 9 is in neither layout"),
            ((*PLAIN, "--rank", 2, "--staging-bytes", "1KiB"), 2, "at least 32KiB"),
            ((*PLAIN, "--program", "x"), 2, "compiled already"),
            ((*PLAIN, "--rank", 2, "--out", self.d / "no" / "file"), 1, "no/file.partial: cannot write"),
        ):
            refused = program.run("explain", *arguments)
            self.assertEqual(refused.returncode, status, refused.stderr)
            self.assertIn(message, refused.stderr)


if __name__ == "__main__":
    unittest.main()
