# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/routes.md do what the text says."""

import json
import pathlib
import re
import unittest

import program

ROOT = pathlib.Path(__file__).parents[2]
DOC = (ROOT / "docs" / "routes.md").read_text()
ONE_TRAINER = ("--model", "qwen3-4b", "--layers", 1, "--from", "megatron:tp=1")
ON_HOSTS = ("--cluster", "dgx-h100-400g")


def plan(replicas, cluster, *more):
    target = f"vllm:tp=1,replicas={replicas},offset=1"
    return json.loads(program.done("plan", *ONE_TRAINER, "--to", target, "--cluster", cluster, "--json", *more))


class RoutesDoc(unittest.TestCase):
    def test_its_command_prints_what_the_page_shows(self):
        (command,) = re.findall(r"^reshard (plan .*)$", DOC, re.M)
        (shown,) = re.findall(r"^(  routes  (?:.*\n)*?)```", DOC, re.M)
        said = re.sub(r" +", " ", program.done(*command.split()))
        for line in shown.splitlines():
            self.assertIn(re.sub(r" +", " ", line), said)

    def test_its_keys_are_those_of_the_report(self):
        relays = plan(16, "dgx-h100-400g", "--routes", "auto")["relays"]
        for key in relays:
            self.assertIn(f"`{key}`", DOC)
        self.assertEqual(len(relays), 5)
        self.assertNotIn("relays", plan(16, "dgx-h100-400g"))
        self.assertNotIn("relays", plan(16, "dgx-h100-400g", "--routes", "direct"))

    def test_one_copy_leaves_the_trainer_for_any_number_of_hosts(self):
        for replicas in (2, 4, 8, 32):
            with self.subTest(replicas):
                # Hosts of one rank, but for what is on the trainer's.
                report = plan(replicas * 8, "dgx-h100-400g", "--routes", "auto")
                relays = report["relays"]
                self.assertTrue(relays["used"])
                self.assertGreater(relays["direct_bytes"], relays["busiest_bytes"] * replicas)
                self.assertLess(relays["busiest_bytes"], 1.01 * relays["least_bytes"])
                direct = plan(replicas * 8, "dgx-h100-400g")
                self.assertLess(report["predicted_seconds"], direct["predicted_seconds"] / replicas * 2)

    def test_nothing_changes_where_all_are_on_one_host(self):
        auto, direct = plan(3, "one-host", "--routes", "auto"), plan(3, "one-host")
        self.assertEqual(auto["digest"], direct["digest"])
        self.assertFalse(auto["relays"]["used"])

    def test_quantised_pairs_say_that_they_are_direct(self):
        quantised = ("--model", "qwen3-4b", "--from", "megatron:tp=2", "--to", "vllm:tp=1,replicas=16,offset=2,quant=mxfp8")
        said = program.done("plan", *quantised, *ON_HOSTS, "--routes", "auto")
        self.assertIn("routes are direct: ranks do not relay what is converted on the way", said)
        self.assertNotIn("busiest interface", said)

    def test_explain_shows_what_a_relay_forwards(self):
        refit = ("--from", "megatron:tp=8", "--to", "vllm:tp=8,replicas=2,offset=8", "--layers", 1)
        command = ("explain", "--model", "qwen3-4b", *refit, *ON_HOSTS, "--routes", "auto", "--rank", 8)
        self.assertRegex(program.done(*command), r"of them forwards +\d+ MB +that it has received")
        (report,) = json.loads(program.done(*command, "--json"))["programs"]
        self.assertGreater(report["bytes_forwarded"], 0.99 * report["bytes_received"])
        # Its replica's successor forwards nothing: it is the last.
        last = json.loads(program.done(*command[:-1], 16, "--json"))["programs"][0]
        self.assertLess(last["bytes_forwarded"], 0.01 * last["bytes_received"])

    def test_routes_need_a_cluster(self):
        refused = program.run("plan", *ONE_TRAINER, "--to", "vllm:tp=1,offset=1", "--routes", "auto")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--routes requires --cluster", refused.stderr)


if __name__ == "__main__":
    unittest.main()
