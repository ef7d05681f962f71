# SPDX-License-Identifier: Apache-2.0
"""The README is true: its code is part of the examples, which are built and run; its plan prints the output shown
(except for the line of times); and its other commands work, on a smaller model."""

import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import textwrap
import unittest

import program

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = {"cpp": ("cpp/*.cc",), "python": ("by_hand/*.py", "python/*.py")}


def blocks(language):
    text = (ROOT / "README.md").read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for block in found]


def lines_of(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


def holds(example, block):
    lines, wanted = lines_of(example), lines_of(block)
    return any(lines[at : at + len(wanted)] == wanted for at in range(len(lines)))


class Readme(unittest.TestCase):
    def test_code_stands_in_an_example(self):
        for language, patterns in EXAMPLES.items():
            files = [path for pattern in patterns for path in sorted((ROOT / "examples").glob(pattern))]
            examples = [path.read_text() for path in files]
            self.assertTrue(blocks(language), f"no block of {language}")
            for block in blocks(language):
                found = any(holds(example, block) for example in examples)
                self.assertTrue(found, f"no example in {patterns} has these lines:\n{block}")

    def test_commands_print_what_it_says(self):
        self.assertTrue(blocks("console"), "no block of a command and its output")
        for block in blocks("console"):
            command, _, wanted = block.partition("\n")
            words = shlex.split(command.removeprefix("$ "))
            self.assertEqual(words[0], "reshard", command)
            printed = program.done(*words[1:])
            # The last line says how long it took, and a digest that changes with any name in a layout.
            self.assertRegex(printed, r"(?m)^planned in .*; digest [0-9a-f]{16}$")
            shown, there = ([line for line in lines_of(text) if not line.startswith("planned in ")] for text in (wanted, printed))
            self.assertEqual(shown, there)


    def test_commands_work_in_their_order(self):
        """`reshard` commands alone: mpirun and cmake have tests of their own (tests/mpi, tests/embed)."""
        lines = re.findall(r"^    \$ (reshard .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
        self.assertEqual(8, len(lines))
        with tempfile.TemporaryDirectory() as folder:
            script = "\n".join(lines).replace("qwen3-30b-a3b", "demo-moe").replace("/tmp", folder)
            done = subprocess.run(
                ["bash", "-e", "-c", f"reshard() {{ {shlex.quote(program.BINARY)} \"$@\"; }}\n{script}\nwait $!\n"],
                capture_output=True,
                text=True,
                timeout=240,
                env=os.environ,
            )
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
