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
REFIT = ("--from", "megatron:tp=2", "--to", "vllm:tp=2,offset=2")


class SimulationDoc(unittest.TestCase):
    def setUp(self):
        self.d = pathlib.Path(tempfile.mkdtemp(prefix="reshard-simulation-"))
        self.addCleanup(shutil.rmtree, self.d)

    def test_its_command_prints_what_the_page_shows(self):
        (command,) = re.findall(r"^reshard (.*)$", DOC, re.M)
        (shown,) = re.findall(r"^(on DGX H100(?:.*\n)*?)```", DOC, re.M)
        said = program.done(*command.split(), cwd=self.d)
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

    def test_its_clusters_come_with_the_program(self):
        names = {path.stem for path in (ROOT / "examples" / "clusters").glob("*.json")}
        for name in names:
            self.assertIn(f"`{name}`", DOC)
        refused = program.run("plan", "--model", "qwen3-4b", *REFIT, "--cluster", "dgx-h10-400g")
        self.assertEqual(refused.returncode, 1)
        for text in ("cluster 'dgx-h10-400g': no such file", "did you mean 'dgx-h100-400g'?", ", ".join(sorted(names))):
            self.assertIn(text, refused.stderr)
        own = self.d / "one-host"  # a file comes first
        own.write_text('{"name": "mine", "ranks_per_host": 2, "nics": {"bytes_per_second": 1e9}}')
        said = program.done("plan", "--model", "qwen3-4b", *REFIT, "--cluster", "one-host", cwd=self.d)
        self.assertIn("on mine", said)
        said = program.done("explain", "--model", "qwen3-4b", *REFIT, "--rank", 0, "--cluster", "gb200-nvl72")
        self.assertIn("as on GB200 NVL72", said)

    def test_without_rates_the_time_is_unknown(self):
        file = self.d / "cluster.json"
        file.write_text('{"name": "bare", "ranks_per_host": 2, "nics": {"latency_seconds": 1e-5}}')
        plan = ("plan", "--model", "qwen3-4b", *REFIT, "--cluster", file)
        said = program.done(*plan)
        self.assertRegex(said, r"predicted +unknown +the cluster gives no rate for what moves these bytes")
        self.assertNotRegex(said, r"predicted.* \d+ us")
        self.assertIs(json.loads(program.done(*plan, "--json"))["simulation"]["has_rates"], False)
        still = ("plan", "--model", "qwen3-4b", "--from", "hf", "--to", "hf", "--cluster", file, "--json")
        self.assertEqual(json.loads(program.done(*still))["predicted_seconds"], 0)

    def test_its_figures_of_measured_runs_are_those_of_the_table(self):
        table = (ROOT / "docs" / "performance.md").read_text()
        table = table[table.index("## Simulated seconds") : table.index("## Two kinds of processors")]
        errors = [abs(int(error)) for error in re.findall(r"^\| .* \| ([+-]\d+) % \|", table, re.M)]
        said = f"all {len(errors)} rows are within {max(errors)} %"
        self.assertIn(said, DOC)
        self.assertIn(said, table.replace("All", "all"))

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
