# SPDX-License-Identifier: Apache-2.0
"""Protects: a missed target, a disturbed run and a wrong byte never look like a target that was met."""

import contextlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import convert_part
import gpu_part
import jobs
import machine
import plan_part
import published_part
import quantise_part
import refit_part
import report
from machine import Noise
from programs import Programs, alternate, parse_lines, run_lines
from rows import BenchError, Row, copy_target, fastest, from_dict, long_share

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUIET, LOUD = Noise(0.02, 2.5, 2), Noise(0.5, 2.5, 2)
REFIT_LINE = """{"run_bytes": [192, 8192], "bytes_in_runs": [1000, 3000], "threads": 2, "bytes": 4000,
 "plain_bytes": 4000, "seconds_libc": [4e-6, 2e-6, 9e-6], "seconds_streaming": [1e-6, 2e-6, 8e-6],
 "seconds_streams": [5e-6, 5e-6, 5e-6], "seconds_refit": [2e-6, 2.5e-6, 4e-6], "checked_bytes": 4000}"""


def refit_result(**changes):
  return {**parse_lines(REFIT_LINE.replace("\n", ""))[0], **changes}


class Judging(unittest.TestCase):
  def test_at_least_and_at_most(self):
    least = Row("refit", "x", ratio=0.9, target=0.9)
    most = Row("plan", "x", "s", 0.1, target=0.1, target_is_most=True, target_is_ratio=False)
    self.assertEqual([least.outcome(), most.outcome()], ["met", "met"])
    least.ratio, most.figure = 0.899, 0.101
    self.assertEqual([least.outcome(), most.outcome()], ["missed", "missed"])

  def test_a_disturbed_run_meets_nothing(self):
    for noise in (LOUD, Noise(0.0, 3.5, 2)):
      row = Row("refit", "x", ratio=0.95, target=0.9, noise=noise)
      self.assertEqual(row.outcome(), "noisy (met)")
      self.assertIn("0 of 0 targets met", report.foot([row]))

  def test_a_row_without_target_or_without_figure_meets_nothing(self):
    self.assertEqual(Row("peer", "x", ratio=5.0).outcome(), "")
    self.assertEqual(Row("refit", "x", target=0.9, skipped="no disk").outcome(), "not measured")

  def test_a_mixture_of_runs_has_a_target_between(self):
    self.assertAlmostEqual(copy_target(1.0), 0.9)
    self.assertAlmostEqual(copy_target(0.0), 0.75)
    # 3 bytes of 4 at 0.9 and 1 at 0.75 take 3 / 0.9 + 1 / 0.75 as long as they weigh.
    self.assertAlmostEqual(copy_target(0.75), 4 / (3 / 0.9 + 1 / 0.75))
    self.assertAlmostEqual(long_share(refit_result()), 0.75)
    border = {"run_bytes": [4095, 4096], "bytes_in_runs": [1, 1]}
    self.assertAlmostEqual(long_share(border), 0.5)


class Published(unittest.TestCase):
  def test_every_example_is_planned(self):
    examples = {path.stem for path in (ROOT / "examples" / "configs").glob("*.json")}
    planned = {pair[0] for pair in published_part.PAIRS}
    self.assertEqual(examples - planned, {"demo-moe"})

  def test_a_plan_is_shown_with_its_bounds(self):
    counts = {"ranks": 16, "bytes_total": 8e9, "bytes_wire": 6e9, "max_egress_bytes": 3e9}
    counts |= {"optimal_max_egress_bytes": 2e9, "max_ingress_bytes": 1e9, "link_seconds": 0.06}
    row = Row("published", "x", "s", 0.002, 0.002, note="1 NeMo-RL", samples=counts)
    self.assertEqual(
      report.published_table([row])[-1],
      "| x | 16 | 8.00 | 6.00 | 3.00 | 1.500 | 1.00 | 60.0 ms | 1 NeMo-RL | 2.0 ms |",
    )


class Reading(unittest.TestCase):
  def test_the_ceiling_is_the_fastest_plain_copy_by_its_median(self):
    self.assertEqual(fastest(refit_result(), refit_part.PLAIN_COPIES, 4000)[0], "streaming")
    row = refit_part.refit_row("case", refit_result(), QUIET)
    self.assertAlmostEqual(row.figure, 1.6)
    self.assertAlmostEqual(row.best, 2.0)
    self.assertAlmostEqual(row.against, 2.0)
    self.assertAlmostEqual(row.ratio, 0.8)
    self.assertEqual(row.outcome(), "missed")

  def test_bytes_that_were_not_checked_are_an_error(self):
    with self.assertRaisesRegex(BenchError, "3999 of 4000"):
      refit_part.refit_row("case", refit_result(checked_bytes=3999), QUIET)

  def test_a_part_counts_all_its_phases(self):
    phases = ("model", "source_layout", "target_layout", "planner", "source_part")
    result = {f"seconds_{p}": [10.0**i, 1.0] for i, p in enumerate(phases)}
    self.assertEqual(plan_part.total(result, "source"), [11111.0, 5.0])

  def test_what_others_use_is_what_the_system_spends_and_we_do_not(self):
    stat = "cpu  100 20 30 4000 500 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
    self.assertAlmostEqual(machine.busy_seconds(stat, 100), 1.71)


class Rendering(unittest.TestCase):
  ABOUT = {
    "date": "2026-01-02", "cores": 2, "processor": "Some CPU", "memory_gib": 23.5, "kernel": "6.1",
    "commit": "abc", "load_average": [0.1, 0.2, 0.3], "quick": False,
  }  # fmt: skip
  ROWS = [
    Row("plan", "a part", "s", 0.0421, 0.04, target=0.1, target_is_most=True, target_is_ratio=False),
    Row("refit", "layers", "GB/s", 9.5, 9.8, 10.0, "copy (libc)", 0.95, 0.9, note="runs", noise=QUIET),
    Row("convert", "8 GB", skipped="no room"),
  ]

  def test_a_table_shows_figure_ceiling_ratio_target_and_outcome(self):
    lines = report.table(self.ROWS).splitlines()
    self.assertIn("| a part | 42.1 ms | 40.0 ms |  |  | ≤ 0.1 s | met |", lines)
    self.assertIn(
      "| layers (runs) | 9.50 GB/s | 9.80 GB/s | 10.00 GB/s copy (libc) | 0.950 | ≥ 0.90 | met |", lines
    )
    self.assertIn("| 8 GB |  |  |  |  |  | not measured: no room |", lines)
    self.assertEqual([x for x in lines if x.startswith("###")], [
      "### Planning", "### Refit in one process", "### Conversion of a checkpoint",
    ])  # fmt: skip
    self.assertIn("2 of 2 targets met", report.foot(self.ROWS))

  def test_results_read_back_are_those_that_were_written(self):
    with tempfile.TemporaryDirectory() as folder:
      page = report.write(pathlib.Path(folder), self.ABOUT, self.ROWS)
      self.assertEqual(page.name, "2026-01-02-2core.md")
      self.assertEqual(report.read(page.with_suffix(".json")), (self.ABOUT, self.ROWS))
    self.assertEqual(from_dict(json.loads(json.dumps(self.ROWS[0].__dict__ | {"noise": {}}))), self.ROWS[0])

  def test_only_what_stands_between_the_markers_changes(self):
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    self.assertEqual(
      report.replace_section(page, "new\n"), f"before\n{report.BEGIN}\nnew\n{report.END}\nafter\n"
    )
    for broken in ("", report.BEGIN, f"{report.END}{report.BEGIN}", page + page):
      with self.assertRaises(BenchError):
        report.replace_section(broken, "new")

  def test_the_page_has_the_markers(self):
    page = (ROOT / "docs" / "performance.md").read_text()
    self.assertIn("new\n", report.replace_section(page, "new\n"))


class Comparing(unittest.TestCase):
  def checkpoint(self, folder, tensors):
    """A checkpoint of one file with these tensors of bytes."""
    header, data = {}, b""
    for name, content in tensors.items():
      offsets = [len(data), len(data) + len(content)]
      header[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": offsets}
      data += content
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    folder.mkdir()
    (folder / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder

  def test_one_byte_tells_two_checkpoints_apart(self):
    with tempfile.TemporaryDirectory() as scratch:
      root = pathlib.Path(scratch)
      a = self.checkpoint(root / "a", {"x": b"abc", "y": b"defg"})
      b = self.checkpoint(root / "b", {"y": b"defg", "x": b"abc"})
      self.assertEqual(convert_part.same_tensors(a, b), 7)
      for name, other in {
        "value": {"x": b"abc", "y": b"defh"},
        "length": {"x": b"abc", "y": b"def"},
        "missing": {"x": b"abc"},
      }.items():
        with self.subTest(name), self.assertRaises(BenchError):
          convert_part.same_tensors(a, self.checkpoint(root / name, other))


class BuiltPrograms(unittest.TestCase):
  """The programs on sizes that take no time: that they move and check what they say, not how fast."""

  build = ROOT / "build"

  def setUp(self):
    self.programs = Programs(self.build, ROOT)

  def argv(self, name, *options):
    if not self.programs.has(name):
      self.skipTest(f"{name} is not built in {self.build}")
    return [self.programs.path(name), *options]

  def refit(self, *options):
    return self.argv("refit_bench", "--tensor", "48x60", "--count", "3", *options)

  def test_a_refit_delivers_and_checks_every_byte(self):
    results = run_lines(self.refit("--from", "1:4", "--to", "1:6", "--threads", "1,2", "--rounds", "2"))
    self.assertEqual([r["threads"] for r in results], [1, 2])
    for result in results:
      self.assertEqual(result["checked_bytes"], 3 * 48 * 60 * 2)
      self.assertEqual(sum(result["bytes_in_runs"]), result["bytes"])
      # Columns of 15 cut at those of 10: 0-10 | 10-15, 15-20 | 20-30 | 30-40 | 40-45, 45-50 | 50-60.
      self.assertEqual(result["run_bytes"], [10, 20])
      self.assertEqual(len(result["seconds_refit"]), 2)
      refit_part.refit_row("case", result, QUIET)

  def test_a_whole_model_is_refitted(self):
    config = self.programs.config("demo-moe")
    layouts = ["--from", "megatron:tp=2,ep=2,etp=1,dp=2", "--to", "vllm:tp=2", "--rounds", "1"]
    argv = self.argv("refit_bench", "--config", config, "--layers", "1", "--vocab", "256", *layouts)
    (result,) = run_lines(argv)
    self.assertEqual(result["checked_bytes"], result["bytes"])

  def test_rounds_are_taken_on_demand(self):
    argv = self.refit("--from", "0:2", "--to", "0:3", "--rounds", "0")
    (mine,), (other,) = alternate([argv, argv], 3)
    self.assertEqual([len(r["seconds_refit"]) for r in (mine, other)], [3, 3])

  def test_the_peer_moves_the_same_bytes(self):
    python = refit_part.python_with("numpy", self.build)
    if python is None:
      self.skipTest("no Python here has numpy")
    peer = [python, str(ROOT / "bench" / "copy_peer.py"), "--tensor", "48x60", "--count", "3"]
    for cuts in (["--from", "1:4", "--to", "1:6"], ["--from", "0:1", "--to", "1:8"]):
      ours, theirs = self.refit(*cuts, "--rounds", "0"), [*peer, *cuts, "--way", "numpy"]
      (mine,), (other,) = alternate([ours, theirs], 2)
      self.assertEqual(mine["bytes"], other["checked_bytes"])

  def test_a_fingerprint_is_that_of_plain_code(self):
    for columns in ("0,60", "7,31"):
      options = ["--tensor", "48x60", "--dtype", "F32", "--columns", columns, "--rounds", "1"]
      (result,) = run_lines(self.argv("fingerprint_bench", *options))
      self.assertEqual(len(result["fingerprint"]), 32)

  def test_quantised_weights_are_those_of_plain_code(self):
    for name in ("mxfp8_swizzled", "fp8_block", "nvfp4"):
      options = ["--format", name, "--matrix", "300x160", "--mib", "1", "--threads", "2"]
      (result,) = run_lines(self.argv("quantise_bench", *options, "--rounds", "1"))
      self.assertGreater(result["bytes"], 2**20)
      row = quantise_part.direction_row(name, "quantise", result, QUIET)
      (seconds,) = result["seconds_quantise"]
      self.assertAlmostEqual(row.figure, result["plain_bytes"] / seconds / 1e9)

  @contextlib.contextmanager
  def emulated_gpu(self):
    """The environment of a program that runs on the emulated GPU."""
    emulated = self.build / "lib" / "emulated_gpu"
    if not emulated.is_dir():
      self.skipTest(f"there is no emulated GPU in {self.build}")
    with tempfile.NamedTemporaryFile(suffix=".fatbin") as image:
      image.write(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0))  # No code: the emulated GPU has its own.
      image.flush()
      libraries = ":".join(filter(None, (str(emulated), os.environ.get("LD_LIBRARY_PATH"))))
      yield {**os.environ, "LD_LIBRARY_PATH": libraries, "RESHARD_CUDA_IMAGE": image.name}

  def test_processes_read_the_memory_of_each_others_gpus(self):
    argv = self.argv("gpu_peers_bench", "--transport", "shm", "--tensor", "64x96", "--count", "3")
    argv += ["--from", "0:2", "--to", "1:2", "--rounds", "2", "--gpus", "2"]
    with self.emulated_gpu() as environment:
      (result,) = jobs.run_by_hand(argv, 2, environment=environment)
    self.assertEqual((result["path"], result["bytes"], result["checked_bytes"]), ("direct", 36864, 36864))
    self.assertEqual((len(result["seconds_plain"]), len(result["seconds_refit"])), (2, 2))

  def test_kernels_of_gpus_compute_what_the_host_does(self):
    with self.emulated_gpu() as environment:
      for kind, ways in (("copy", {"copy"}), ("slices", {"slices"}), ("cast", {"cast"}), ("transpose", {"transpose"}),
                         ("quantise", {"quantise", "dequantise"}),
                         ("fingerprint", {"fingerprint"}), ("fingerprint_columns", {"fingerprint"}),
                         ("fingerprint_transposed", {"fingerprint"}), ("beside", {"load", "refit", "both"})):  # fmt: skip
        argv = self.argv("gpu_kernels_bench", "--kind", kind, "--matrix", "300x160", "--mib", "1", "--rounds", "2")
        done = subprocess.run(argv, env=environment, capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        (result,) = parse_lines(done.stdout)
        self.assertEqual({k for k in result if k.startswith("seconds_")}, {f"seconds_{w}" for w in ways | {"plain"}})
        self.assertGreater(result["plain_bytes"], 0)

  def test_fingerprints_of_gpus_are_judged_by_what_only_reads(self):
    result = {"gpu": "G", "plain_bytes": 1e9, "seconds_plain": [2.0], "seconds_read": [1.0], "seconds_fingerprint": [1.25]}
    row = gpu_part.fingerprint_row(result, "rows", 0.9, QUIET)
    self.assertAlmostEqual(row.figure, 1.6)
    self.assertAlmostEqual(row.ratio, 0.8)
    self.assertEqual(row.outcome(), "missed")
    del result["seconds_read"]
    self.assertAlmostEqual(gpu_part.fingerprint_row(result, "rows", 0.9, QUIET).ratio, 1.6)

  def test_sessions_move_what_the_executor_moves(self):
    argv = self.argv("session_bench", "--transport", "shm", "--tensor", "64x96", "--count", "3")
    argv += ["--from", "0:2", "--to", "1:2", "--rounds", "1"]
    (plain,) = jobs.run_by_hand(argv, 2)
    self.assertEqual((plain["checked_bytes"], plain["bytes"]), (3 * 64 * 96 * 2, 3 * 64 * 96 * 2))
    (quantised,) = jobs.run_by_hand([*argv, "--format", "mxfp8"], 2)
    self.assertEqual((quantised["different_bytes"], quantised["at_receiver_receiver"]), (0, 3))

  def test_a_plan_tells_its_phases(self):
    options = ["--from", "megatron:tp=2,dp=4", "--to", "vllm:tp=4,offset=8", "--whole", "2"]
    argv = self.argv("plan_bench", "--config", self.programs.config("qwen3-4b"), *options)
    (result,) = run_lines([*argv, "--repeat", "2"])
    self.assertEqual(len(plan_part.total(result, "target")), 2)
    self.assertEqual((result["ranks"], result["source_ranks"]), (12, 8))
    self.assertGreaterEqual(result["max_egress_bytes"], result["bytes_wire"] / 8)


def run(build):
  """Runs all tests; the exit code."""
  BuiltPrograms.build = build
  program = unittest.main(module=__name__, argv=[sys.argv[0]], exit=False)
  return 0 if program.result.wasSuccessful() else 1
