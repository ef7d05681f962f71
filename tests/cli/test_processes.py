# SPDX-License-Identifier: Apache-2.0
"""`reshard run` over processes that it starts itself, or that mpirun started."""

import itertools
import json
import os
import signal
import unittest

import processes
import program
from processes import LAYOUTS, PAIR, SMALL

PATHS = ("direct", "message")
# Each layout by one of the paths in turn: a start of processes takes longer than its refit, and the tests of transports
# take all of both.
WAYS = list(zip(LAYOUTS, itertools.cycle(PATHS)))


class Spawned(processes.ProcessTest):
    def check_layouts(self, transport):
        self.need(transport)
        ways = itertools.product(LAYOUTS, PATHS) if transport == "shm" else WAYS
        for (ranks, source, target), path in ways:
            with self.subTest(f"{source} to {target}, {path}"):
                self.proved(
                    "run", *SMALL, "--from", source, "--to", target, "--repeat", 2, "--path", path,
                    "--transport", transport, "--spawn", processes=ranks, transport=transport,
                    path=path,
                )  # fmt: skip

    def test_layouts_over_shm(self):
        self.check_layouts("shm")

    def test_layouts_over_gloo(self):
        self.check_layouts("gloo")

    def test_layouts_over_ucx(self):
        self.check_layouts("ucx")

    def test_both_paths_over_shm(self):
        self.need("shm")
        for path in PATHS:
            said = self.proved(
                "run", *SMALL, *PAIR, "--transport", "shm", "--spawn", "--path", path, path=path
            )
            self.assertEqual(len(said["seconds"]), 3)
            if path == "message":
                self.assertGreater(said["refit_messages"], 0)

    def test_staging_stays_below_its_cap(self):
        self.need("shm")
        said = self.proved(
            "run", *SMALL, *PAIR, "--transport", "shm", "--spawn", "--path", "message",
            "--staging-bytes", "1MiB",
        )  # fmt: skip
        self.assertLessEqual(said["staging_bytes"], 1 << 20)

    def test_a_checkpoint_as_the_source(self):
        self.need("shm")
        config = program.write_json(self.d / "config.json", program.MOE)
        program.done("synth", config, self.d / "hf")
        program.done("convert", self.d / "hf", self.d / "ranks", "--to", "megatron:tp=2")
        for source in ("hf", "ranks"):
            self.proved(
                "run", "--model", self.d / source, "--from", "megatron:tp=2", "--to",
                "vllm:tp=2,offset=1", "--transport", "shm", "--spawn", processes=3,
            )  # fmt: skip

    def test_the_text_is_printed_once(self):
        self.need("shm")
        code, out, err = self.run_all(
            "run", *SMALL, *PAIR, "--transport", "shm", "--spawn", "--verify"
        )
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(out.count("verified: "), 1)
        self.assertIn("2 ranks over shm", out)
        self.nothing_left()

    def test_a_model_that_is_not_there_is_one_line(self):
        code, out, err = self.run_all(
            "run", "--model", "nothing", *PAIR, "--transport", "shm", "--spawn"
        )
        self.assertEqual((code, out), (1, ""))
        self.one_line(err, "nothing")

    def test_an_interrupt_ends_all(self):
        self.need("shm")
        run = self.start(
            "run", *SMALL, *PAIR, "--transport", "shm", "--spawn", "--repeat", 1000000
        )
        self.wait_for(lambda: len(self.ranks_of(run)) == 2, "both ranks")
        run.send_signal(signal.SIGINT)
        code, out, err = self.end(run)
        self.assertEqual((code, out), (130, ""))
        self.one_line(err, "interrupted")
        self.nothing_left()

    def test_an_interrupt_ends_those_who_wait_for_others(self):
        run = self.start(
            "run", *SMALL, "--from", "megatron:tp=2", "--to", "vllm:tp=2,offset=2",
            "--transport", "shm", "--role", "source", "--ranks", "0-1", "--spawn",
            "--rendezvous", f"file://{self.d}",
        )  # fmt: skip
        self.wait_for(lambda: len(self.ranks_of(run)) == 2, "both ranks")
        run.send_signal(signal.SIGINT)
        code, out, err = self.end(run)
        self.assertEqual((code, out), (130, ""))
        self.one_line(err, "interrupted")
        self.nothing_left()

    def test_ranks_end_when_their_parent_is_killed(self):
        self.need("shm")
        run = self.start(
            "run", *SMALL, *PAIR, "--transport", "shm", "--spawn", "--repeat", 1000000
        )
        self.wait_for(lambda: len(self.ranks_of(run)) == 2, "both ranks")
        run.kill()
        self.end(run)
        self.wait_for(lambda: self.processes() == [], "the ranks to end")


class Launched(processes.ProcessTest):
    def check_layouts(self, library, transport):
        self.need_mpi(library)
        self.need(transport)
        for (ranks, source, target), path in WAYS:
            with self.subTest(f"{source} to {target}, {path}"):
                self.proved(
                    "run", *SMALL, "--from", source, "--to", target, "--transport", transport,
                    "--path", path, before=processes.mpirun(library, ranks), processes=ranks,
                    path=path,
                )  # fmt: skip

    def test_open_mpi(self):
        self.check_layouts("openmpi", "mpi")

    def test_mpich(self):
        self.check_layouts("mpich", "mpi")

    def test_shm_under_open_mpi(self):
        self.check_layouts("openmpi", "shm")

    def test_more_processes_than_ranks_are_idle(self):
        for library in ("openmpi", "mpich"):
            with self.subTest(library):
                self.need_mpi(library)
                self.proved(
                    "run", *SMALL, *PAIR, "--transport", "mpi",
                    before=processes.mpirun(library, 4), processes=4,
                )  # fmt: skip

    def test_too_few_processes_are_refused(self):
        for library in ("openmpi", "mpich"):
            with self.subTest(library):
                self.need_mpi(library)
                code, out, err = self.run_all(
                    "run", *SMALL, "--from", "megatron:tp=4", "--to", "vllm:tp=2",
                    "--transport", "mpi", before=processes.mpirun(library, 2),
                )  # fmt: skip
                self.assertNotEqual(code, 0)
                self.assertEqual(out, "")
                lines = [line for line in err.splitlines() if line.startswith("reshard: ")]
                self.assertEqual(len(lines), 1, err)
                self.assertIn("ranks 0 to 3", lines[0])
                self.assertIn("started 2 processes", lines[0])


class OneProcess(processes.ProcessTest):
    def test_one_process_says_how_to_start_more(self):
        code, out, err = self.run_all("run", *SMALL, *PAIR, "--transport", "shm")
        self.assertEqual((code, out), (2, ""))
        self.one_line(err, "ranks 0 to 1", "--spawn", "mpirun -n 2", "--rendezvous")

    def test_launchers_may_name_one_rank_alone(self):
        self.need("shm")
        folder = self.d / "meet"
        folder.mkdir()
        runs = [
            self.start(
                "run", *SMALL, *PAIR, "--transport", "shm", "--verify", "--json",
                "--rendezvous", f"file://{folder}",
                env={"RANK": str(rank), "WORLD_SIZE": "2"},
            )
            for rank in range(2)
        ]  # fmt: skip
        ends = [self.end(run) for run in runs]
        self.assertEqual([code for code, _, _ in ends], [0, 0], ends)
        self.assertTrue(json.loads(ends[0][1])["verified"])
        self.assertEqual(ends[1][1:], ("", ""))
        self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    unittest.main()
