# SPDX-License-Identifier: Apache-2.0
"""Every example in the help of every command works, in a folder that has the checkpoints of their names."""

import pathlib
import re
import shlex
import shutil
import tempfile
import unittest

import program


def examples(command):
    """[(arguments, what they do)]"""
    section = program.done(command, "--help").partition("\nExamples:\n")[2]
    lines = section.splitlines()
    pairs = list(zip(lines[::2], lines[1::2], strict=True))
    assert all(re.match(r"  reshard \S", a) and re.match(r"      \S", b) for a, b in pairs), section
    return [(shlex.split(line)[1:], what.strip()) for line, what in pairs]


class Examples(unittest.TestCase):
    def setUp(self):
        self.d = pathlib.Path(tempfile.mkdtemp(prefix="reshard-examples-"))
        self.addCleanup(shutil.rmtree, self.d)

    def test_every_example_works(self):
        program.done("synth", program.write_json(self.d / "moe.json", program.MOE), self.d / "hf")
        (self.d / "moe.json").unlink()
        program.done("convert", self.d / "hf", self.d / "ranks", "--to", "vllm:tp=2")
        program.train(self.d / "hf", self.d / "trained")
        program.train(self.d / "trained", self.d / "trained-2")
        program.done("delta", "make", "hf", "trained", "step-1", cwd=self.d)
        program.done("delta", "make", "trained", "trained-2", "step-2", "--after", "step-1", cwd=self.d)
        before = set(self.d.iterdir())
        for command in program.commands():
            found = examples(command)
            self.assertTrue(found, f"{command} --help has no example")
            for arguments, _ in found:
                with self.subTest(" ".join(arguments)):
                    self.assertEqual(arguments[0], command)
                    self.assertTrue(program.done(*arguments, cwd=self.d))
                    for made in set(self.d.iterdir()) - before:
                        shutil.rmtree(made) if made.is_dir() else made.unlink()


if __name__ == "__main__":
    unittest.main()
