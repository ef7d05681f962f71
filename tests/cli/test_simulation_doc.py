# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/simulation.md do what the text says."""

import json
import pathlib
import re
import shutil
import tempfile
import unittest

import program

ROOT = pathlib.Path(__file__).parents[2]
DOC = (ROOT / "docs" / "simulation.md").read_text()


class SimulationDoc(unittest.TestCase):
    def setUp(self):
        self.d = pathlib.Path(tempfile.mkdtemp(prefix="reshard-simulation-"))
        self.addCleanup(shutil.rmtree, self.d)

    def test_its_command_prints_what_the_page_shows(self):
        (command,) = re.findall(r"^reshard (.*)$", DOC, re.M)
        (shown,) = re.findall(r"^(on DGX H100(?:.*\n)*?)```", DOC, re.M)
        said = program.done(*command.split(), cwd=ROOT / "examples" / "clusters")
        self.assertIn(shown, said)

    def test_its_cluster_bounds_a_refit_by_its_nics(self):
        (example,) = re.findall(r"```json\n(.*?)```", DOC, re.S)
        (self.d / "cluster.json").write_text(example)
        refit = ("--from", "megatron:tp=2", "--to", "vllm:tp=2,offset=2")
        report = json.loads(
            program.done(
                "plan", "--model", "qwen3-4b", *refit, "--cluster", self.d / "cluster.json", "--json"
            )
        )
        self.assertEqual(report["bound_by"], "NIC 0 of host 0, sending")
        self.assertAlmostEqual(report["bound_seconds"], report["bytes_wire"] / 12.5e9, places=6)

    def test_its_keys_are_those_of_the_report_and_of_the_files(self):
        file = ROOT / "examples" / "clusters" / "one-host.json"
        refit = ("--from", "megatron:tp=2", "--to", "vllm:tp=2")
        done = program.done("plan", "--model", "qwen3-4b", *refit, "--cluster", file, "--json")
        report = json.loads(done)
        self.assertEqual(report["simulation"]["of"], "programs")
        for key in report["simulation"]:
            if key not in ("cluster", "simulation_seconds"):
                self.assertIn(f"`{key}`", DOC)
        (self.d / "cluster.json").write_text("{\"x\": 1}")
        refused = program.run("plan", "--model", "qwen3-4b", *refit, "--cluster", self.d / "cluster.json")
        known = re.search(r"known are (.*)$", refused.stderr.strip()).group(1).split(", ")
        table = " ".join(re.findall(r"^\| (`.*?) \|", DOC, re.M))
        self.assertEqual(re.findall(r"`(\w+)`", table), known)


if __name__ == "__main__":
    unittest.main()
