# SPDX-License-Identifier: Apache-2.0
"""Whatever is wrong with the input: one line that says what and where, and nothing written."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import bad_checkpoints
import bad_command_lines
import bad_input
import program


def listing(folder):
    """Every path under a folder with its content: what must not change."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


class BadInput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix="reshard-bad-input-"))
        cls.addClassCleanup(shutil.rmtree, cls.shared)
        cls.shared.chmod(0o755)
        for name, config in (("hf", program.LLAMA), ("moe", program.MOE)):
            path = program.write_json(cls.shared / f"{name}.json", config)
            program.done("synth", path, cls.shared / name)
        program.done("convert", cls.shared / "hf", cls.shared / "ranks", "--to", "megatron:tp=2")

    def place(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.shared, prefix="case-"))
        folder.chmod(0o755)
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return bad_input.Place(
            folder, self.shared / "hf", self.shared / "moe", self.shared / "ranks"
        )

    def refuses(self, result, code, words):
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, f"not one line: {result.stderr!r}")
        self.assertTrue(result.stderr.startswith("reshard: "), result.stderr)
        self.assertTrue(result.stderr[:-1].isprintable(), f"control characters: {result.stderr!r}")
        self.assertFalse(result.stdout, "nothing belongs on standard output")
        for word in words:
            self.assertIn(word, result.stderr)

    def check(self, case):
        place = self.place()
        if case.prepare:
            case.prepare(place)
        before = listing(place.folder)
        result = program.run(*place.fill(case.arguments).split(), **case.options)
        self.refuses(result, case.code, case.words)
        self.assertEqual(listing(place.folder), before, "the folder of the case has changed")

    def test_every_case(self):
        cases = bad_command_lines.CASES + bad_checkpoints.CASES
        self.assertGreaterEqual(len(cases), 100)
        self.assertEqual(len({case.name for case in cases}), len(cases), "two cases of one name")
        for case in cases:
            with self.subTest(case.name):
                self.check(case)

    def test_the_shared_checkpoints_are_good(self):
        place = self.place()
        for source in (place.hf, place.moe, place.ranks):
            program.done("convert", source, place.folder / source.name, "--to", "vllm:tp=2")

    def test_a_full_disk(self):
        place = self.place()
        disk = place.folder / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)]
        if subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("mounting a small disk needs root")
        try:
            result = program.run("convert", place.hf, disk / "out", "--to", "hf")
            self.refuses(result, 1, ("out", "disk is full", "are needed", "are free"))
            self.assertEqual(listing(disk), {})
            result = program.run("synth", "demo-moe", disk / "out")
            self.refuses(result, 1, ("out", "disk is full"))
            self.assertEqual(listing(disk), {})
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            result = program.run("convert", place.hf, disk / "out", "--to", "hf")
            self.refuses(result, 1, ("out.partial", "read-only"))
        finally:
            subprocess.run(["umount", str(disk)], check=True)

    def test_a_disk_that_is_full_for_the_last_small_files_keeps_the_others(self):
        place = self.place()
        source = place.copy(place.hf)
        needed = sum(path.stat().st_size for path in source.iterdir())
        (source / "tokenizer.json").write_bytes(b" " * (4 << 20))
        disk = place.folder / "disk"
        disk.mkdir()
        size = f"size={needed + (1 << 20)}"
        mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)]
        if subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("mounting a small disk needs root")
        try:
            result = program.run("convert", source, disk / "out", "--to", "hf")
            words = ("tokenizer.json", "disk is full", "are kept in", "the same command goes on")
            self.refuses(result, 1, words)
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            self.assertIn("kept", program.done("convert", source, disk / "out", "--to", "hf"))
            self.assertEqual((disk / "out" / "tokenizer.json").stat().st_size, 4 << 20)
        finally:
            subprocess.run(["umount", str(disk)], check=True)

    def test_no_permission(self):
        place = self.place()
        user, binary = None, None
        if os.getuid() == 0:  # who may do anything
            user, binary = 65534, self.shared / "reshard"
            shutil.copy(program.BINARY, binary)
        locked = place.folder / "locked"
        locked.mkdir()
        locked.chmod(0o555)
        result = program.run(
            "convert", place.hf, locked / "out", "--to", "hf", user=user, binary=binary
        )
        self.refuses(result, 1, ("out.partial", "permission"))
        self.assertEqual(listing(locked), {})
        secret = place.copy(place.hf) / "model.safetensors"
        secret.chmod(0o000)
        result = program.run(
            "convert", secret.parent, locked / "out", "--to", "hf", user=user, binary=binary
        )
        self.refuses(result, 1, ("model.safetensors", "permission"))

    def test_the_exit_code_is_the_same_in_every_command(self):
        place = self.place()
        to = {
            "plan": ("--model", "demo-moe", "--from", "hf", "--to"),
            "explain": ("--model", "demo-moe", "--from", "hf", "--rank", "0", "--to"),
            "run": ("--model", "demo-moe", "--from", "hf", "--to"),
            "convert": (place.moe, place.folder / "out", "--to"),
            "inspect": ("demo-moe", "--layout"),
        }
        wrong = ("nosuch:tp=2", "vllm:tp", "vllm:tp=0", "vllm:tpx=2", "vllm:tp=3", "hf:quant=foo", "rules:")
        for command, arguments in to.items():
            for layout in wrong:
                self.assertEqual(program.run(command, *arguments, layout).returncode, 2, (command, layout))
            missing = program.run(command, *arguments, "rules:/no/such.json")
            self.assertEqual(missing.returncode, 1, command)
        absent = place.folder / "absent"
        for command, arguments in to.items():
            arguments = [absent if a in ("demo-moe", place.moe) else a for a in arguments]
            self.assertEqual(program.run(command, *arguments, "hf").returncode, 1, command)
        for command in (("verify", absent, place.hf), ("synth", absent, place.folder / "out")):
            self.assertEqual(program.run(*command).returncode, 1, command)
        self.assertEqual(program.run("verify", place.hf, place.hf).returncode, 0)

    def test_an_output_that_nobody_reads(self):
        with open("/dev/full", "w") as full:
            result = program.run(
                "plan", "--model", "demo-moe", "--from", "hf", "--to", "hf", stdout=full
            )
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, "reshard: cannot write to standard output\n")


if __name__ == "__main__":
    unittest.main()
