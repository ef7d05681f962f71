# SPDX-License-Identifier: Apache-2.0
"""reshard run --trace writes a Chrome trace of all ranks that is valid and complete, and docs/trace.md says what is in it."""

import collections
import json
import pathlib
import re
import unittest

import processes
import program
from processes import SMALL

DOC = (pathlib.Path(__file__).parents[2] / "docs" / "trace.md").read_text()
LAYOUTS = ("--from", "megatron:tp=2", "--to", "vllm:tp=2,offset=2")
RANKS = [0, 1, 2, 3]


class Trace(processes.ProcessTest):
    def setUp(self):
        super().setUp()
        self.file = self.d / "trace \u00e4.json"

    def traced(self, *arguments):
        """(the report, the trace) of a run of four ranks, of which two send to two."""
        code, out, err = self.run_all(
            "run", *SMALL, *LAYOUTS, "--repeat", 2, "--json", "--trace", self.file, *arguments
        )
        self.assertEqual((code, err), (0, ""))
        self.nothing_left()
        self.assertEqual([path.name for path in self.d.glob("trace*")], [self.file.name])
        return json.loads(out), json.loads(self.file.read_text("ascii"))

    def check(self, report, trace, threads=None):
        events = trace["traceEvents"]
        self.assertEqual(trace["otherData"]["version"], 2)
        self.assertEqual(trace["otherData"]["dropped_events"], 0)
        self.assertGreaterEqual(trace["otherData"]["clock_error_us"], 0)
        self.assertEqual(sorted({e["pid"] for e in events}), RANKS)
        names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
        hosts = [e["args"]["name"] for e in events if e["name"] == "process_name"]
        self.assertEqual([re.sub(" on .*", "", host) for host in hosts], [f"rank {r}" for r in RANKS])
        slices = [e for e in events if e["ph"] == "X"]
        self.check_slices(slices, names)
        phases = collections.Counter(e["name"] for e in slices if e["cat"] == "phase")
        self.assertEqual(phases, {"begin": 4, "transfer": 4, "commit": 4})
        self.check_bytes(report, slices)
        self.check_flows(events, slices, trace["otherData"]["clock_error_us"])
        self.check_why(report, report["why_slow"])

    def check_slices(self, slices, names):
        """Each is on a thread that has a name; those of one thread are nested or apart."""
        threads = collections.defaultdict(list)
        for e in slices:
            self.assertIn((e["pid"], e["tid"]), names)
            self.assertGreaterEqual(e["dur"], 0)
            threads[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
            if e["cat"] in ("tile", "wait", "barrier"):
                self.assertEqual(names[e["pid"], e["tid"]], f"worker {e['tid']}")
        for times in threads.values():
            times.sort(key=lambda t: (t[0], -t[1]))
            open_until = []
            for begin, end in times:
                while open_until and open_until[-1] <= begin + 1e-6:
                    open_until.pop()
                self.assertTrue(not open_until or end <= open_until[-1] + 1e-6)
                open_until.append(end)

    def check_bytes(self, report, slices):
        """Every byte between ranks is in a message or in what a tile reads."""
        read = sum(r["bytes"] for e in slices for r in e["args"].get("reads", ()))
        received = [e for e in slices if e["name"].startswith("receive from")]
        sent = [e for e in slices if e["name"].startswith("send to")]
        self.assertEqual(read + sum(e["args"]["bytes"] for e in received), report["bytes_moved_wire"])
        self.assertEqual(len(received) + len(sent), report["refit_messages"])

    def check_flows(self, events, slices, clock_error):
        sides = {"s": {}, "f": {}}
        for e in events:
            if e["ph"] in sides:
                self.assertNotIn(e["id"], sides[e["ph"]])
                sides[e["ph"]][e["id"]] = e
                inside = [
                    s for s in slices
                    if (s["pid"], s["tid"]) == (e["pid"], e["tid"])
                    and s["ts"] - 1e-6 <= e["ts"] <= s["ts"] + s["dur"]
                ]  # fmt: skip
                self.assertTrue(inside)
        self.assertEqual(sides["s"].keys(), sides["f"].keys())
        self.assertEqual(len(sides["s"]), sum(s["name"].startswith("send to") for s in slices))
        for flow, sent in sides["s"].items():
            self.assertIn(sent["pid"], (0, 1))
            self.assertIn(sides["f"][flow]["pid"], (2, 3))
            self.assertGreaterEqual(sides["f"][flow]["ts"] + 2 * clock_error, sent["ts"])

    def check_why(self, report, why):
        self.assertEqual(why["trace"], str(self.file))
        self.assertGreater(why["seconds"], 0)
        self.assertGreater(why["bound_seconds"], 0)
        self.assertAlmostEqual(why["bound_fraction"], why["bound_seconds"] / why["seconds"], places=4)
        self.assertRegex(why["bound_by"], r"^(copies of|messages from|messages to) rank [0-3]$")
        self.assertIn(why["slowest_rank"], RANKS)
        link = why["slowest_link"]
        self.assertIn(link["from"], (0, 1))
        self.assertIn(link["to"], (2, 3))
        self.assertLessEqual(link["bytes_per_second"], link["fastest_bytes_per_second"] * 1.001)
        for key in (*why, *link):
            self.assertIn(f"`{key}`", DOC)

    def test_of_threads(self):
        for path in ("direct", "message"):
            with self.subTest(path):
                report, trace = self.traced("--path", path, "--threads", 8)
                self.assertEqual(report["path"], path)
                self.check(report, trace)

    def test_of_processes_that_share_memory(self):
        self.need("shm")
        for path in ("direct", "message"):
            with self.subTest(path):
                report, trace = self.traced("--path", path, "--transport", "shm", "--spawn")
                self.assertEqual(report["path"], path)
                self.check(report, trace)

    def test_of_processes_over_tcp(self):
        self.need("gloo")
        report, trace = self.traced("--path", "message", "--transport", "gloo", "--spawn")
        self.check(report, trace)

    def test_has_what_is_verified(self):
        report, trace = self.traced("--verify=fingerprints", "--path", "message")
        names = {e["name"] for e in trace["traceEvents"] if e.get("cat") == "phase"}
        self.assertEqual(names, {"begin", "transfer", "check", "commit"})

    def test_has_conversions(self):
        self.file = self.d / "trace.json"
        layouts = ("--from", "megatron:tp=2", "--to", "vllm:tp=2,offset=2,quant=mxfp8")
        program.done("run", *SMALL, *layouts, "--repeat", 1, "--trace", self.file)
        slices = [e for e in json.loads(self.file.read_text())["traceEvents"] if e["ph"] == "X"]
        self.assertTrue(any("quantise" in e["name"] for e in slices if e["cat"] == "tile"))
        self.assertTrue(any("tensor" in e["args"] for e in slices))

    def test_that_cannot_be_written_is_refused_before_anything_moves(self):
        self.file = self.d / "none" / "trace.json"
        for more in ((), ("--transport", "shm", "--spawn")):
            code, out, err = self.run_all("run", *SMALL, *LAYOUTS, "--trace", self.file, *more)
            self.assertEqual((code, out), (2, ""))
            self.one_line(err, str(self.file), "cannot write")

    def test_of_a_rank_that_dies_is_not_half_written(self):
        self.need("shm")
        for rank in (0, 3):
            for point in ("start", "middle", "commit"):
                with self.subTest(f"rank {rank} at {point}"):
                    code, out, err = self.run_all(
                        "run", *SMALL, *LAYOUTS, "--transport", "shm", "--spawn", "--json",
                        "--path", "message", "--deadline", 30, "--trace", self.file,
                        env={"RESHARD_TEST_KILL": f"rank={rank},at={point}"},
                    )  # fmt: skip
                    self.assertEqual((code, out), (1, ""))
                    self.one_line(err, f"rank {rank} was killed by signal 9")
                    for path in self.d.glob("trace*"):
                        self.assertFalse(path.name.endswith(".partial"))
                        self.assertIn("traceEvents", json.loads(path.read_text()))
                        path.unlink()
                    self.nothing_left()

    def test_of_the_page_prints_what_it_shows(self):
        (command,) = re.findall(r"^reshard (.*)$", DOC, re.M)
        (shown,) = re.findall(r"^(  traced refit(?:.*\n)*?)```", DOC, re.M)
        said = program.done(*command.split(), cwd=self.d)
        json.loads((self.d / "trace.json").read_text())

        def shape(text):
            return re.sub(r"[\d.]+( (us|ms|s|kB|MB|GB/s|%)\b)?", "#", text)

        lines = shape(said).splitlines()
        for line in shape(shown).splitlines()[:3]:
            self.assertIn(line.replace("messages to rank", "").split("(")[0], "\n".join(lines))


if __name__ == "__main__":
    unittest.main()
