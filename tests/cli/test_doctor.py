# SPDX-License-Identifier: Apache-2.0
"""reshard doctor: one screen that says what this machine can do, and what it says of machines with limits."""

import json
import os
import pathlib
import resource
import subprocess
import tempfile
import unittest

import program

EMULATED = os.environ.get("RESHARD_EMULATED_GPU", str(pathlib.Path(program.BINARY).parents[1] / "lib/emulated_gpu"))
NAMES = [
    "container",
    "processor",
    "NUMA",
    "memory",
    "huge pages",
    "open files",
    "locked memory",
    "processes",
    "address space",
    "clock",
    "network",
    "environment",
    "peers' memory",
    "/dev/shm",
    "temporary folder",
    "GPUs",
]
TRANSPORTS = ["inproc", "shm", "mpi", "gloo", "ucx", "nccl", "nvshmem"]


def examine(prepare=None, code=0, **env):
    """The findings by name, of a process with these limits."""
    done = subprocess.run(
        [program.BINARY, "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | env,
        preexec_fn=prepare,
    )
    assert (done.returncode, done.stderr) == (code, ""), done
    report = json.loads(done.stdout)
    assert report["problems"] == sum(f["state"] == "problem" for f in report["findings"])
    return {f["name"]: f for f in report["findings"]}


class Doctor(unittest.TestCase):
    def test_the_report(self):
        found = examine()
        self.assertEqual(list(found), NAMES + TRANSPORTS)
        for finding in found.values():
            self.assertEqual(list(finding), ["name", "state", "value", "effect", "remedy", "figures"])
            self.assertTrue(finding["value"])
            self.assertEqual(bool(finding["effect"]), finding["state"] in ("note", "problem"), finding)
        self.assertEqual(found["processor"]["figures"]["cores"], len(os.sched_getaffinity(0)))
        self.assertTrue(found["inproc"]["figures"]["available"])
        listed = {t["name"]: t for t in json.loads(program.done("transports", "--json"))["transports"]}
        for name in TRANSPORTS:
            self.assertEqual(found[name]["figures"]["available"], listed[name]["available"])
            if not listed[name]["available"]:
                self.assertEqual(found[name]["value"], listed[name]["reason"])

    def test_the_text_is_one_screen(self):
        text = program.done("doctor")
        lines = text.splitlines()
        self.assertRegex(lines[0], r"^reshard \d+\.\d+\.\d+ on Linux ")
        self.assertRegex(lines[-1], r"^nothing stands in the way(; \d+ notes?)?$")
        self.assertLessEqual(len(lines), 45)
        for name in NAMES + TRANSPORTS:
            self.assertRegex(text, rf"(?m)^  (ok|note|-) +{name}  +\S")

    def test_limits_of_the_process_are_found(self):
        few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        finding = examine(few, code=1)["open files"]
        self.assertEqual((finding["state"], finding["figures"]), ("problem", {"soft": 128, "hard": 128}))
        self.assertIn("ulimit -n", finding["remedy"])
        small = lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        self.assertEqual(examine(small)["address space"]["state"], "note")
        one = lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        self.assertEqual(examine(one)["processor"]["figures"]["cores"], 1)

    def test_a_temporary_folder_that_cannot_be_used_is_a_problem(self):
        finding = examine(code=1, TMPDIR="/no/such/folder")["temporary folder"]
        self.assertEqual(finding["state"], "problem")
        self.assertIn("TMPDIR", finding["remedy"])
        done = program.run("doctor", env={"TMPDIR": "/no/such/folder"})
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"PROBLEM *temporary folder")
        self.assertRegex(done.stdout, r"1 problem(; \d+ notes?)?\n$")

    def test_nothing_is_left_behind(self):
        with tempfile.TemporaryDirectory() as folder:
            examine(TMPDIR=folder)
            self.assertEqual(os.listdir(folder), [])

    def test_misspelt_variables_are_found(self):
        finding = examine(RESHARD_MODULE="/opt", RESHARD_SHM="ring")["environment"]
        self.assertEqual(finding["state"], "note")
        self.assertIn("did you mean 'RESHARD_MODULES'?", finding["effect"])
        self.assertEqual(finding["figures"]["set"]["RESHARD_SHM"], "ring")

    def test_kernels_that_a_variable_slows_down_are_found(self):
        self.assertEqual(examine(RESHARD_SIMD="portable")["processor"]["figures"]["kernels"], "portable")

    def test_gpus(self):
        real = examine()["GPUs"]
        self.assertIn(real["state"], ("ok", "note", "absent"))
        if not pathlib.Path(EMULATED).is_dir():
            self.skipTest("no emulated GPU in this build")
        found = examine(LD_LIBRARY_PATH=EMULATED)["GPUs"]
        self.assertNotEqual(found["state"], "absent")
        self.assertTrue(found["figures"]["gpus"], found)


if __name__ == "__main__":
    unittest.main()
