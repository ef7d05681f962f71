# SPDX-License-Identifier: Apache-2.0
"""Two programs that no launcher knows of both, joined by a rendezvous."""

import json
import random
import unittest

import processes

LAYOUTS = ("--from", "megatron:tp=2", "--to", "vllm:tp=2,offset=2")


def free_port():
    """Below those that the system gives to whoever asks for any, which another test may get first."""
    return random.randrange(20_000, 32_768)


class Programs(processes.ProcessTest):
    def secret(self, name="secret", text="correct horse battery staple"):
        path = self.d / name
        path.write_text(text + "\n")
        path.chmod(0o600)
        return path

    def arguments(self, role, ranks, url, secret, *more, deadline=20, layers=1):
        return (
            "run", "--model", "demo-moe", "--layers", layers, *LAYOUTS, "--transport", "shm",
            "--role", role, "--ranks", ranks, "--rendezvous", url,
            "--secret-file", secret, "--deadline", deadline, *more,
        )  # fmt: skip

    def pair(self, url, secret, *more):
        return [
            self.start(*self.arguments(role, ranks, url, secret, "--spawn", *more))
            for role, ranks in (("source", "0-1"), ("target", "2-3"))
        ]

    def both_prove(self, runs):
        for code, out, err in map(self.end, runs):
            self.assertEqual((code, err), (0, ""))
            said = json.loads(out)
            self.assertTrue(said["verified"])
            self.assertEqual(said["processes"], 4)
        self.nothing_left()

    def test_over_tcp(self):
        self.need("shm")
        runs = self.pair(
            f"tcp://127.0.0.1:{free_port()}", self.secret(), "--verify", "--json"
        )
        self.both_prove(runs)

    def test_over_a_folder(self):
        self.need("shm")
        folder = self.d / "meet"
        folder.mkdir()
        self.both_prove(self.pair(f"file://{folder}", self.secret(), "--verify", "--json"))

    def test_every_rank_by_hand(self):
        self.need("shm")
        url, secret = f"tcp://127.0.0.1:{free_port()}", self.secret()
        runs = [
            self.start(*self.arguments(role, rank, url, secret, "--verify", "--json"))
            for rank, role in enumerate(("source", "source", "target", "target"))
        ]
        self.both_prove(runs)

    def test_two_launchers(self):
        self.need("shm")
        for library in ("openmpi", "mpich"):
            self.need_mpi(library)
        url, secret = f"tcp://127.0.0.1:{free_port()}", self.secret()
        runs = [
            self.start(
                *self.arguments(role, ranks, url, secret, "--verify", "--json"),
                before=processes.mpirun(library, 2),
            )
            for role, ranks, library in (("source", "0-1", "openmpi"), ("target", "2-3", "mpich"))
        ]
        self.both_prove(runs)

    def test_a_wrong_secret_is_refused_and_harms_nobody(self):
        self.need("shm")
        url, secret = f"tcp://127.0.0.1:{free_port()}", self.secret()
        wrong = self.secret("wrong", "incorrect horse battery staple")
        source = self.start(*self.arguments("source", "0-1", url, secret, "--spawn", "--json"))
        code, out, err = self.run_all(*self.arguments("target", "2-3", url, wrong, "--spawn"))
        self.assertEqual((code, out), (1, ""))
        self.one_line(err, "secret")
        self.assertNotIn("horse", err)
        target = self.start(*self.arguments("target", "2-3", url, secret, "--spawn", "--json"))
        for code, _, err in map(self.end, (source, target)):
            self.assertEqual((code, err), (0, ""))
        self.nothing_left()

    def test_missing_peers_are_named_at_the_deadline(self):
        url, secret = f"tcp://127.0.0.1:{free_port()}", self.secret()
        arguments = self.arguments("source", "0-1", url, secret, "--spawn", deadline=0.5)
        code, out, err = self.run_all(*arguments)
        self.assertEqual((code, out), (1, ""))
        self.one_line(err, "2", "3")
        self.nothing_left()

    def test_another_model_is_refused(self):
        self.need("shm")
        url, secret = f"tcp://127.0.0.1:{free_port()}", self.secret()
        source = self.start(*self.arguments("source", "0-1", url, secret, "--spawn"))
        target = self.start(*self.arguments("target", "2-3", url, secret, "--spawn", layers=2))
        for code, out, err in map(self.end, (source, target)):
            self.assertEqual((code, out), (2, ""))
            self.one_line(err, "has a model of", "this program")
        self.nothing_left()

    def test_an_option_that_differs_is_told_by_name_and_both_values(self):
        self.need("shm")
        folder = self.d / "meet"
        folder.mkdir()
        shared = {
            "--model": "demo-moe", "--layers": 1, "--from": "megatron:tp=2",
            "--to": "vllm:tp=2,offset=2", "--repeat": 2, "--transport": "shm", "--deadline": 20,
            "--rendezvous": f"file://{folder}",
        }  # fmt: skip
        to = "vllm:offset=2,tp=2"
        for change, name, its, mine in (
            ({"--transport": "gloo"}, "--transport", "gloo", "shm"),
            ({"--repeat": 5}, "--repeat", "5", "2"),
            ({"--verify": None}, "--verify=bytes", "on", "off"),
            ({"--verify=fingerprints": None}, "--verify=fingerprints", "on", "off"),
            ({"--path": "message"}, "--path", "message", "auto"),
            ({"--trace": self.d / "trace.json"}, "--trace", "on", "off"),
            ({"--convert": "sender"}, "--convert", "sender", "receiver"),
            ({"--buffering": "doubled"}, "--buffering", "doubled", "in-place"),
            ({"--to": f"{to},quant=fp8_channel"}, "--to", "vllm:offset=2,quant=fp8_channel,tp=2", to),
            ({"--to": "vllm:tp=2,offset=3"}, "--to", "vllm:offset=3,tp=2", to),
            ({"--ignore": "model.norm.weight"}, "--ignore", "model.norm.weight", "nothing"),
        ):  # fmt: skip
            with self.subTest(f"{name} {its}"):
                self.both_say(shared, shared | change, name, its, mine)
        proved = shared | {"--verify": None}
        self.both_say(proved, proved | {"--seed": 9}, "--seed", "9", "0")

    def both_say(self, first, second, name, its, mine):
        """Two programs whose options differ in one."""
        runs = [
            self.start(
                "run", *(x for pair in options.items() for x in pair if x is not None),
                "--ranks", ranks, "--spawn",
            )
            for options, ranks in ((first, "0-1"), (second, "2-3"))
        ]  # fmt: skip
        (code, out, err), (code2, out2, err2) = map(self.end, runs)
        self.assertEqual((code, out, code2, out2), (2, "", 2, ""))
        self.one_line(err, f"rank 2 has {name} {its}, this program {mine};")
        self.one_line(err2, f"rank 0 has {name} {mine}, this program {its};")
        self.nothing_left()

    def test_bad_secret_files(self):
        url = f"tcp://127.0.0.1:{free_port()}"
        open_to_all = self.secret("open")
        open_to_all.chmod(0o644)
        for file, word in (
            (self.d / "missing", "missing"),
            (open_to_all, "open"),
            (self.secret("short", "short"), "16"),
        ):
            with self.subTest(word):
                for spawn in ((), ("--spawn",)):
                    ranks = "0-1" if spawn else "0"
                    code, out, err = self.run_all(
                        *self.arguments("source", ranks, url, file, *spawn)
                    )
                    self.assertEqual((code, out), (1 if word == "missing" else 2, ""))
                    self.one_line(err, word)


if __name__ == "__main__":
    unittest.main()
