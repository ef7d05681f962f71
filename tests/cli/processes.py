# SPDX-License-Identifier: Apache-2.0
"""Runs the program as several processes, and looks for what they leave behind."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import program

# As demo-moe with one layer, but 13 MB and not 87: these tests start hundreds of processes that fill and verify it.
# Megatron-Core and vLLM pad and cut its vocabulary at different rows, as that of demo-moe.
SMALL_CONFIG = pathlib.Path(__file__).with_name("small_moe.json")
SMALL = ("--model", str(SMALL_CONFIG))
PAIR = ("--from", "megatron:tp=2", "--to", "vllm:tp=2")

# ranks, source, target
LAYOUTS = (
    (1, "hf", "vllm:tp=1"),  # one rank alone
    (2, "megatron:tp=2", "vllm:tp=2"),  # collocated
    (2, "megatron:tp=1", "vllm:tp=1,offset=1"),  # one each
    (3, "megatron:tp=1", "vllm:tp=2,offset=1"),  # fewer sources than targets
    (5, "megatron:tp=4", "vllm:tp=1,offset=4"),  # more
    (6, "megatron:tp=2", "vllm:tp=2,offset=4"),  # two idle ranks between
    (8, "fsdp:shard=4", "vllm:tp=4,offset=4"),  # disjoint halves
    (8, "megatron:tp=2,dp=4", "vllm:tp=2,replicas=4"),  # replicas, collocated
)


def transports():
    """name -> why it cannot be used here, or ''."""
    listed = json.loads(program.done("transports", "--json"))["transports"]
    return {row["name"]: "" if row["available"] else row["reason"] for row in listed}


def mpi_libraries():
    """launcher -> why it cannot be used here, or ''; of Open MPI and MPICH."""
    found = {}
    for library, module in (("openmpi", "mpi_openmpi"), ("mpich", "mpi_mpich")):
        launcher = shutil.which(f"mpirun.{library}")
        file = pathlib.Path(program.BINARY).parent / f"reshard_transport_{module}.so"
        missing = f"there is no mpirun.{library}" if launcher is None else ""
        found[library] = missing or ("" if file.exists() else f"{file.name} is not built")
    return found


def mpirun(library, ranks):
    """The command that starts so many ranks of what follows."""
    command = [f"mpirun.{library}", "-n", str(ranks)]
    if library == "openmpi":
        command += ["--oversubscribe", "--bind-to", "none"]
        command += ["--allow-run-as-root"] if os.getuid() == 0 else []
    return command


class ProcessTest(unittest.TestCase):
    """Tests whose programs must leave no process, no temporary file and no shared memory."""

    def setUp(self):
        self.d = pathlib.Path(tempfile.mkdtemp(prefix="reshard-processes-"))
        self.addCleanup(shutil.rmtree, self.d)
        self.temporary = self.d / "tmp"
        self.temporary.mkdir()
        # MPICH prints warnings of UCX to standard output.
        self.env = {"TMPDIR": str(self.temporary), "UCX_LOG_LEVEL": "error"}
        self.shared_memory = set(os.listdir("/dev/shm"))

    def need(self, transport):
        reason = transports()[transport]
        if reason:
            self.skipTest(f"transport {transport}: {reason}")

    def need_mpi(self, library):
        reason = mpi_libraries()[library]
        if reason:
            self.skipTest(f"{library}: {reason}")

    def start(self, *arguments, before=(), env=None):
        """Starts the program, or what `before` makes of it, and returns its process."""
        return subprocess.Popen(
            [*map(str, before), program.BINARY, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | self.env | (env or {}),
        )

    def end(self, process, seconds=program.TIMEOUT_SECONDS):
        """(exit code, standard output, standard error) of a process."""
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            self.fail(f"still running after {seconds} s: {out!r} {err!r}")
        return process.returncode, out, err

    def run_all(self, *arguments, before=(), env=None, seconds=program.TIMEOUT_SECONDS):
        return self.end(self.start(*arguments, before=before, env=env), seconds)

    def proved(self, *arguments, before=(), **expected):
        """Runs with --verify --json, which must succeed without a complaint; returns the JSON."""
        code, out, err = self.run_all(*arguments, "--verify", "--json", before=before)
        self.assertEqual((code, self.complaints(err)), (0, []), f"{arguments}: {err}")
        said = json.loads(out)
        self.assertIs(said["verified"], True)
        for key, value in expected.items():
            self.assertEqual(said[key], value, key)
        self.nothing_left()
        return said

    def complaints(self, err):
        """The lines of stderr without those of a run of more than some seconds, which say how far it is."""
        return [line for line in err.splitlines() if not line.startswith("reshard: refit [")]

    def one_line(self, err, *words):
        self.assertEqual(err.count("\n"), 1, f"not one line: {err!r}")
        self.assertTrue(err.startswith("reshard: "), err)
        for word in words:
            self.assertIn(word, err)

    def processes(self):
        """Processes of this test that run, by what their environment says."""
        mark = f"TMPDIR={self.temporary}".encode()
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                pass  # it ended, or is another user's
        return found

    def nothing_left(self):
        self.assertEqual(self.processes(), [], "processes that run on")
        left = [path.name for path in self.temporary.iterdir() if path.name.startswith("reshard")]
        self.assertEqual(left, [], "temporary files")
        now = set(os.listdir("/dev/shm")) - self.shared_memory
        left = [name for name in now if name.startswith("reshard")]
        self.assertEqual(left, [], "shared memory")

    def wait_for(self, condition, what):
        """Polls until condition() holds: for what other processes do."""
        end = time.monotonic() + program.TIMEOUT_SECONDS
        while not condition():
            self.assertLess(time.monotonic(), end, f"waited in vain for {what}")
            time.sleep(0.01)

    def ranks_of(self, process):
        """Process ids by index of the processes that a --spawn started."""
        ranks = {}
        for pid in self.processes():
            try:
                environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            for entry in environ:
                if entry.startswith(b"RESHARD_SPAWNED="):
                    index, _, _, _, parent, _ = entry.split(b"=")[1].split(b"/", 5)
                    if int(parent) == process.pid:
                        ranks[int(index)] = pid
        return ranks

    def kill(self, pid, number=signal.SIGKILL):
        os.kill(pid, number)

    def status_of(self, pid):
        """What the system says of a process, by field; empty when it is gone."""
        try:
            lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            return {}
        return dict(line.split(":\t", 1) for line in lines if ":\t" in line)

    def has_ended(self, pid):
        """Also of one that its parent has not asked for yet."""
        return self.status_of(pid).get("State", "Z")[0] == "Z"

    def catches_term(self, pid):
        """Whether it ends in order when it is told to."""
        return bool(int(self.status_of(pid).get("SigCgt", "0"), 16) >> (signal.SIGTERM - 1) & 1)

    def listening(self, pid):
        """Addresses at which a process listens, as "ADDRESS:PORT" in the system's hexadecimal."""
        sockets = set()
        try:
            for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                target = os.readlink(link)
                if target.startswith("socket:["):
                    sockets.add(target[len("socket:[") : -1])
        except OSError:
            pass  # it ended, or closed it
        found = set()
        for table in ("tcp", "tcp6"):
            try:
                rows = pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
            except OSError:
                continue
            for fields in map(str.split, rows):
                if fields[3] == "0A" and fields[9] in sockets:
                    found.add(fields[1])
        return found
