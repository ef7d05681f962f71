# SPDX-License-Identifier: Apache-2.0
"""Environment variables: docs/environment.md has those of `reshard doctor --environment`, which are those that the sources read."""

import json
import re
import unittest

import program

ROOT = program.ROOT
NAME = r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*"
TABLE = "cli/doctor/environment.cc"

# Uses of the whole environment: none asks for a variable by a name that the source does not have.
WHOLE = {
    "cli/doctor/machine_checks.cc": "::environ;",  # looks for misspelt names
    "cli/run/processes/spawn.cc": "::environ;",  # handed on to ranks
    "reshard/io/traced/child_process.cc": "::environ)",  # handed on to the tracer
    "python/reshard/_trace.py": "os.environ.items()",  # of engines, by prefix; the page names them
}
NO_VARIABLES = {"MPICH"}
# Changes of it that read nothing.
CHANGES = (
    r"os\.environ\.pop\(name, None\)",
    rf'os\.environ\["{NAME}"\] = ',
    r"patch\.dict\(os\.environ, ",
)


def sources():
    """path -> text of the product's sources."""
    for top in ("reshard", "cli", "python/reshard", "python/src"):
        for file in sorted((ROOT / top).rglob("*")):
            path = file.relative_to(ROOT).as_posix()
            if file.suffix in (".cc", ".h", ".cu", ".py") and not re.search(r"_(test|testutil|bench)\.", path):
                yield path, file.read_text()


def without_comments(text):
    return re.sub(r"(?m)^\s*(//|#(?!include)).*$|\s//.*$", "", text)


def read_in_cpp(path, text):
    """The names that a source reads: of getenv itself; of a helper, all names in the file that calls it."""
    calls = re.findall(r"\bgetenv\((.*?)\)", text)
    names = {call[1:-1] for call in calls if re.fullmatch(rf'"{NAME}"', call)}
    if any(not call.startswith('"') for call in calls):
        names |= set(re.findall(rf'"({NAME})"', text)) - NO_VARIABLES
    return names | set(re.findall(r'"(RESHARD_\w+)', text))  # also where another file calls getenv


def read_in_python(path, text):
    uses = re.findall(r"(?:.*\()?os\.(?:environ|getenv)\b.*", text)
    names = set()
    for use in uses:
        found = re.findall(rf'os\.(?:environ\.(?:get|setdefault)\(|environ\[|getenv\()"({NAME})"', use)
        found += re.findall(rf'"({NAME})" (?:not )?in os\.environ', use)
        if any(re.search(change, use) for change in CHANGES):
            continue
        assert found or WHOLE.get(path, "\0") in use, f"{path}: cannot tell what this reads: {use}"
        names |= set(found)
    return names


class Environment(unittest.TestCase):
    def listed(self, **env):
        report = json.loads(program.done("doctor", "--environment", "--json", env=env))
        self.assertEqual(report["schema"], "reshard.environment/1")
        return report["variables"]

    def in_the_table(self):
        """name -> kind, with the internal ones."""
        entries = re.findall(rf'\{{"({NAME})",\s*Of::(\w+)', (ROOT / TABLE).read_text())
        self.assertEqual(len(entries), len(dict(entries)), "a name twice")
        return dict(entries)

    def test_the_table_has_what_the_sources_read(self):
        read = {}
        for path, text in sources():
            if path == TABLE:
                continue
            text = without_comments(text)
            for name in (read_in_python if path.endswith(".py") else read_in_cpp)(path, text):
                read.setdefault(name, []).append(path)
            if re.search(r"::environ\b", text):
                self.assertIn(path, WHOLE, "reads the whole environment")
        table = self.in_the_table()
        self.assertEqual({n: p for n, p in read.items() if n not in table}, {}, "not in " + TABLE)
        self.assertEqual(set(table) - set(read), set(), "no source reads them")

    def test_the_program_lists_all_but_the_internal_ones(self):
        table = self.in_the_table()
        self.assertEqual([v["name"] for v in self.listed()], [n for n, of in table.items() if of != "internal"])
        self.assertIn("internal", table.values())

    def test_the_page_has_the_list_of_the_program(self):
        expected, kind = [], None
        for v in self.listed():
            if v["kind"] != kind:
                kind = v["kind"]
                expected += ["## " + kind[0].upper() + kind[1:], "| variable | meaning | values |", "| --- | --- | --- |"]
            expected.append(f"| `{v['name']}` | {v['meaning']} | {', '.join(f'`{c}`' for c in v['choices'])} |")
        page = (ROOT / "docs" / "environment.md").read_text().partition("\n## ")
        found = [line for line in ("## " + page[2]).splitlines() if line.startswith(("## ", "| "))]
        self.assertEqual(found, expected, "docs/environment.md must have these lines:\n" + "\n".join(expected))

    def test_those_that_are_set_are_marked(self):
        here = {"RESHARD_SIMD": "portable", "UCX_TLS": "", "SLURM_PROCID": "a\x1b[31mb"}
        listed = {v["name"]: v for v in self.listed(**here)}
        for name, value in here.items():
            self.assertEqual((listed[name]["set"], listed[name]["value"]), (True, value))
        self.assertEqual((listed["RESHARD_NVSHMEM_STAGING"]["set"], listed["RESHARD_NVSHMEM_STAGING"]["value"]), (False, None))
        text = program.done("doctor", "--environment", env=here)
        self.assertRegex(text, r"(?m)^\* RESHARD_SIMD +the instruction set.*\n(.*\n)? += portable$")
        self.assertRegex(text, r"(?m)^\* UCX_TLS ")
        self.assertRegex(text, r"(?m)^  RESHARD_NVSHMEM_STAGING ")
        self.assertNotIn("\x1b", text)
        marked = re.findall(r"(?m)^\* (\w+)  ", text)
        self.assertEqual(marked, [n for n, v in listed.items() if v["set"]])
        self.assertRegex(text, rf"\n\* set here: {len(marked)}\n$")

    def test_engines_whose_variables_change_traces_are_on_the_page(self):
        prefixes = re.findall(r'\("([A-Z]+_)",\)', (ROOT / "python/reshard/_trace.py").read_text())
        self.assertEqual(len(prefixes), 2)
        page = (ROOT / "docs" / "environment.md").read_text()
        for prefix in prefixes:
            self.assertIn(f"`{prefix}`", page)


if __name__ == "__main__":
    unittest.main()
