# SPDX-License-Identifier: Apache-2.0
"""`reshard completion` and `reshard man`: what shells complete, and that every shell and formatter of manuals takes them."""

import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

import program

FAMILIES = "hf megatron: vllm: sglang: fsdp: dtensor: rules: explicit: traced: dcp: torch_dist:".split()


def options(command):
    """The options in the help of a command, in its order."""
    return re.findall(r"(?m)^  (?:-\w,)?(--[\w-]+)", program.done(command, "--help").partition("\nExamples:")[0])


class Shell(unittest.TestCase):
    def setUp(self):
        self.d = pathlib.Path(tempfile.mkdtemp(prefix="reshard-completion-"))
        self.addCleanup(shutil.rmtree, self.d)

    def script(self, shell):
        path = self.d / f"reshard.{shell}"
        path.write_text(program.done("completion", shell))
        return path

    def said(self, *command, cwd=None):
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60, cwd=cwd)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        return done.stdout

    def need(self, name):
        if shutil.which(name) is None:
            self.skipTest(f"{name} is not installed")


class Bash(Shell):
    def complete(self, *words, cwd=None):
        """What bash offers for the last word; the words are those that bash makes of a line."""
        quoted = " ".join(shlex.quote(word) for word in words)
        return self.said(
            "bash", "-c",
            f"source {shlex.quote(str(self.script('bash')))}\n"
            f"COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}\n_reshard\n"
            'for reply in "${COMPREPLY[@]}"; do echo "$reply"; done',
            cwd=cwd,
        ).splitlines()  # fmt: skip

    def test_commands(self):
        everything = self.complete("reshard", "")
        self.assertEqual(everything, [*program.commands(), "--help", "--version"])
        self.assertEqual(self.complete("reshard", "tr"), ["transports"])
        self.assertEqual(self.complete("reshard", "--v"), ["--version"])
        self.assertEqual(self.complete("reshard", "unknown", ""), [])

    def test_options_of_every_command(self):
        for command in program.commands():
            with self.subTest(command):
                self.assertEqual(sorted(self.complete("reshard", command, "-")), sorted(options(command)))
        self.assertEqual(self.complete("reshard", "plan", "--model", "m", "--fr"), ["--from"])

    def test_values(self):
        for option in ("--from", "--to"):
            self.assertEqual(self.complete("reshard", "plan", option, ""), FAMILIES)
        self.assertEqual(self.complete("reshard", "plan", "--from", "me"), ["megatron:"])
        self.assertEqual(self.complete("reshard", "inspect", "m", "--layout", "tr"), ["traced:"])
        self.assertEqual(self.complete("reshard", "run", "--path", ""), ["auto", "direct", "message"])
        self.assertEqual(self.complete("reshard", "run", "--device", ""), ["cpu", "cuda"])
        self.assertEqual(self.complete("reshard", "run", "--transport", "n"), ["nccl", "nvshmem"])
        self.assertEqual(self.complete("reshard", "explain", "--convert", "s"), ["sender"])
        self.assertEqual(self.complete("reshard", "completion", ""), ["bash", "zsh", "fish"])
        self.assertEqual(self.complete("reshard", "delta", ""), ["make", "apply", "inspect"])
        self.assertEqual(self.complete("reshard", "plan", "--layers", ""), [], "a number")

    def test_words_that_bash_takes_apart(self):
        (self.d / "cut.json").write_text("{}")
        self.assertEqual(self.complete("reshard", "run", "--path", "=", "d"), ["direct"])
        self.assertEqual(self.complete("reshard", "run", "--verify", "="), ["bytes", "fingerprints"])
        self.assertEqual(self.complete("reshard", "plan", "--to", "rules", ":", "cu", cwd=self.d), ["cut.json"])
        self.assertIn("cut.json", self.complete("reshard", "plan", "--to", "rules", ":", cwd=self.d))
        self.assertEqual(self.complete("reshard", "plan", "--to", "vllm", ":", "", cwd=self.d), [])
        self.assertEqual(self.complete("reshard", "plan", "--to", "vllm", ":", "tp", "=", cwd=self.d), [])

    def test_files(self):
        (self.d / "a checkpoint").mkdir()
        for words in (("plan", "--model"), ("convert",), ("run", "--trace"), ("verify", "x"), ("convert", "--merge"), ("delta", "make"), ("delta", "apply", "x", "y")):
            with self.subTest(words):
                self.assertEqual(self.complete("reshard", *words, "a", cwd=self.d), ["a checkpoint"])

    def test_it_is_the_completion_of_reshard(self):
        script = shlex.quote(str(self.script("bash")))
        self.assertEqual(self.said("bash", "-c", f"source {script}; complete -p reshard"), "complete -F _reshard reshard\n")


class OtherShells(Shell):
    def test_every_script_has_every_command_option_and_word(self):
        for shell, form in (("zsh", r"'\*?{}[=\[]"), ("fish", r" -l {} ")):
            lines = self.script(shell).read_text()
            for command in program.commands():
                start = f"        {command})\n" if shell == "zsh" else f"__fish_seen_subcommand_from {command}'"
                if shell == "zsh":
                    part = lines[lines.index(start) :].partition(";;")[0]
                else:
                    part = "\n".join(line for line in lines.splitlines() if start in line)
                for option in options(command)[1:]:
                    name = option if shell == "zsh" else option[2:]
                    self.assertRegex(part + " ", form.format(name), f"{shell} {command} {option}")
            for word in (*FAMILIES, "fingerprints", "nvshmem", "doubled"):
                self.assertIn(word.replace(":", "\\:") if shell == "zsh" else word, lines)

    def test_zsh_takes_the_script(self):
        self.need("zsh")
        script = self.script("zsh")
        self.said("zsh", "-n", script)
        loaded = f"autoload -U compinit && compinit -u -d {self.d}/dump && source {script} && echo $_comps[reshard]"
        self.assertEqual(self.said("zsh", "-f", "-c", loaded), "_reshard\n")
        (self.d / "functions").mkdir()
        script.rename(self.d / "functions" / "_reshard")
        found = f"fpath=({self.d}/functions $fpath) && autoload -U compinit && compinit -u -d {self.d}/dump2 && echo $_comps[reshard]"
        self.assertEqual(self.said("zsh", "-f", "-c", found), "_reshard\n")

    def test_fish_completes(self):
        self.need("fish")
        script = self.script("fish")
        self.said("fish", "-n", script)

        def complete(line):
            offered = self.said("fish", "--no-config", "-c", f"source {script}; complete -C {shlex.quote(line)}", cwd=self.d)
            return {offer.split("\t")[0] for offer in offered.splitlines()}

        self.assertEqual(complete("reshard "), set(program.commands()))
        self.assertEqual(complete("reshard plan --from "), set(FAMILIES))
        self.assertEqual(complete("reshard run --path "), {"auto", "direct", "message"})
        self.assertEqual(complete("reshard run --pa"), {"--path"})
        self.assertIn("reshard.fish", complete("reshard plan --model resh"))
        self.assertEqual(complete("reshard completion "), {"bash", "zsh", "fish"})


class Manual(Shell):
    def page(self):
        path = self.d / "reshard.1"
        path.write_text(program.done("man"))
        return path

    def formatted(self):
        """The page as a reader sees it, without paragraphs' line breaks."""
        self.need("groff")
        text = self.said("groff", "-man", "-Tutf8", "-P-cbou", "-rLL=400n", self.page())
        return re.sub(r"\s+", " ", text.replace("\u2010", "-"))

    def test_it_has_all_that_the_help_has(self):
        text = self.formatted()
        for command in program.commands():
            help_text = program.done(command, "--help")
            section = re.search(rf" reshard {command}( .*?|) (?= reshard \w+ |EXAMPLES )", text)
            self.assertIsNotNone(section, command)
            for line in help_text.partition("\nExamples:")[0].splitlines():
                if (found := re.fullmatch(r"  (?:-\w,)?(\S+?)(?:\[=\w+\]| [A-Z]+(?:\.\.\.)?)?(?:  +(.*?))?( REQUIRED)?", line)) and found[1] != "--help":
                    self.assertIn(found[1], section[0])
            for line in re.findall(r"(?m)^  (?:    )?(\S.*)$", help_text.partition("\nExamples:\n")[2]):
                self.assertIn(line, text)
        for variable in ("RESHARD_SIMD", "XDG_CACHE_HOME", "UCX_TLS"):
            self.assertIn(variable, text)
        self.assertNotIn("RESHARD_SPAWNED", text)
        self.assertIn("EXIT STATUS 0 done 1 failed or found different 2 wrong use 130 interrupted", text)
        self.assertIn("default ~/.cache", text)

    def test_groff_has_nothing_to_say(self):
        self.need("groff")
        self.said("groff", "-ww", "-z", "-man", self.page())

    def test_mandoc_has_nothing_to_say(self):
        self.need("mandoc")
        done = subprocess.run(["mandoc", "-Tlint", "-Wwarning", self.page()], capture_output=True, text=True, timeout=60)
        said = [line for line in done.stdout.splitlines() if "missing date" not in line]  # it would differ between builds
        self.assertEqual((said, done.stderr), ([], ""))

    def test_it_is_a_page_of_man(self):
        self.need("man")
        self.assertIn("RESHARD(1)", self.said("man", "-l", self.page()))


if __name__ == "__main__":
    unittest.main()
