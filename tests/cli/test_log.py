# SPDX-License-Identifier: Apache-2.0
"""The log: lines with time, level, room and rank on standard error, at the level that -q, -v or RESHARD_LOG asks for."""

import json
import os
import re
import unittest

import program

PAGE = program.ROOT / "docs" / "operations.md"
PAIR = ("--model", "demo-moe", "--layers", 1, "--from", "megatron:tp=2", "--to", "vllm:tp=2,offset=2")
PROCESSES = ("run", *PAIR, "--transport", "shm", "--spawn", "--repeat", 2, "--json")
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (error|warning|info|debug) (\w+)(?: rank (\d+))?: (.+)")


def log_of(result):
    """[(level, room, rank or None, message)] of all that a run wrote to standard error."""
    matches = [LINE.fullmatch(line) for line in result.stderr.splitlines()]
    assert all(matches), result.stderr
    return [(m[1], m[2], m[3] and int(m[3]), m[4]) for m in matches]


def run(*arguments, **env):
    os.environ.pop("RESHARD_LOG", None)
    result = program.run(*arguments, env=env)
    assert result.returncode == 0, result.stderr
    return result


class Log(unittest.TestCase):
    def test_nothing_is_logged_unless_asked(self):
        for arguments in (("plan", *PAIR), PROCESSES):
            for options, env in (((), {}), (("-q",), {}), (("--quiet",), {"RESHARD_LOG": "debug"})):
                self.assertEqual(run(*arguments, *options, **env).stderr, "")

    def test_a_plan(self):
        for options, env in ((("-v",), {}), (("--verbose",), {"RESHARD_LOG": "error"}), ((), {"RESHARD_LOG": "info"})):
            done = run("plan", *PAIR, "--json", *options, **env)
            digest = json.loads(done.stdout)["digest"]
            ((level, room, rank, message),) = log_of(done)
            self.assertEqual((level, room, rank), ("info", "plan", None))
            self.assertRegex(message, rf"^planned megatron:tp=2 -> vllm:offset=2,tp=2: 4 ranks, digest {digest}, in \S+ s$")

    def events_of_processes(self):
        done = run(*PROCESSES, "-v")
        return json.loads(done.stdout), log_of(done)

    def test_processes(self):
        report, events = self.events_of_processes()
        by_rank = {rank: [m for _, room, r, m in events if r == rank and room != "plan"] for rank in range(4)}
        for messages in by_rank.values():
            self.assertRegex(messages[0], "^joined a group of 4 ranks by shm: direct access to memory, messages$")
            prepared = re.search(r"^prepared plan (\w{16}) in \S+ s: sends (\d+) B, receives (\d+) B, copies \d+ B; path direct; staging \d+ B$", messages[1])
            self.assertEqual(prepared[1], report["digest"], messages)
            refits = [m for m in messages if re.match(r"refit delivered \d+ B in \S+ s, of which it waited \S+ s$", m)]
            self.assertEqual(len(refits), 2)
        received = sum(int(re.search(r"receives (\d+)", m[1])[1]) for m in by_rank.values())
        self.assertEqual(received, report["bytes_wire"])
        delivered = sum(int(re.match(r"refit delivered (\d+)", m[-1])[1]) for m in by_rank.values())
        self.assertEqual(delivered, report["bytes_delivered"])

    def test_why_a_path_is_not_the_best(self):
        done = run(*PROCESSES, "-v", RESHARD_SHM="ring")
        prepared = [m for *_, m in log_of(done) if m.startswith("prepared plan")]
        self.assertEqual(len(prepared), 4)
        for message in prepared:
            self.assertRegex(message, r"; path message, because transport shm cannot reach .+; staging")
        self.assertEqual(json.loads(done.stdout)["path"], "message")

    def test_the_reason_of_an_abort(self):
        os.environ.pop("RESHARD_LOG", None)
        env = {"RESHARD_TEST_KILL": "rank=2,at=start"}
        failed = program.run(*PROCESSES, "-v", "--deadline", 20, env=env)
        self.assertEqual(failed.returncode, 1)
        lines = [LINE.fullmatch(line) for line in failed.stderr.splitlines()]
        aborts = [m for m in lines if m and m[4].startswith("aborts the group: ")]
        self.assertTrue(aborts, failed.stderr)
        for abort in aborts:
            self.assertEqual((abort[1], abort[2]), ("info", "exec"))
            self.assertIn("rank 2", abort[4])
        quiet = program.run(*PROCESSES, "--deadline", 20, env=env).stderr
        self.assertFalse([line for line in quiet.splitlines() if LINE.fullmatch(line)], quiet)

    def test_wrong_use(self):
        both = program.run("plan", *PAIR, "-q", "-v")
        self.assertEqual(both.returncode, 2)
        self.assertRegex(both.stderr, r"^reshard: --\w+ excludes --\w+;")
        ((level, _, _, message),) = log_of(run("plan", *PAIR, RESHARD_LOG="loud"))
        self.assertEqual((level, message), ("warning", "RESHARD_LOG=loud is none of error, warning, info, debug"))
        found = {f["name"]: f for f in json.loads(run("doctor", "--json", RESHARD_LOG="loud").stdout)["findings"]}
        self.assertIn("RESHARD_LOG is none of", found["environment"]["effect"])

    def test_the_page_has_every_event(self):
        listed = re.findall(r"(?m)^\| (error|warning|info|debug) \| `(\w+)` \| `([^`]+)` \|", PAGE.read_text())
        self.assertGreater(len(listed), 5)
        calls = set()
        for top in ("reshard", "cli"):
            for file in (program.ROOT / top).rglob("*.[ch]*"):
                if not re.search(r"_(test|testutil)\.", file.name):
                    calls |= set(re.findall(r'log_event\(\s*LogLevel::(\w+),\s*"(\w+)"', file.read_text()))
        self.assertEqual({(level, room) for level, room, _ in listed}, calls)
        _, events = self.events_of_processes()
        for level, room, start in listed:
            if start.split()[0] in ("planned", "joined", "prepared") or start == "refit delivered":
                self.assertTrue(any(e[:2] == (level, room) and e[3].startswith(start) for e in events), start)


if __name__ == "__main__":
    unittest.main()
