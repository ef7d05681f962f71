# SPDX-License-Identifier: Apache-2.0
"""`reshard run` between layouts of which one is quantised, or both: in one process and over processes."""

import json
import os
import signal
import time
import unittest

import processes
import program

CONFIG = program.MOE | {
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 1,
}
PLAIN = "megatron:tp=2,ep=2,etp=1"
FORMATS = (
    "mxfp8",
    "mxfp8_swizzled",
    "mxfp4",
    "nvfp4",
    "nvfp4_swizzled",
    "fp8_block",
    "fp8_block_pow2",
    "fp8_group",
    "fp8_channel",
    "fp8_tensor",
)

# ranks, source, target: odd numbers of ranks, both directions, and both sides quantised
LAYOUTS = (
    (3, "megatron:tp=1", "vllm:tp=2,offset=1,quant=mxfp8"),
    (3, "vllm:tp=2,quant=nvfp4,quant_grid=local", "megatron:tp=1,offset=2"),
    (5, "megatron:tp=4", "vllm:tp=1,offset=4,quant=fp8_block"),
    (5, "vllm:tp=1,quant=fp8_channel", "megatron:tp=4,offset=1"),
    (3, "vllm:tp=1,quant=mxfp8", "vllm:tp=2,offset=1,quant=mxfp8"),
    (3, "vllm:tp=2,quant=mxfp8", "vllm:tp=1,offset=2,quant=fp8_block"),
    (2, "fsdp:shard=2", "vllm:tp=2,quant=fp8_block,quant_grid=tensor"),
)


class QuantisedTest(processes.ProcessTest):
    def setUp(self):
        super().setUp()
        self.config = program.write_json(self.d / "config.json", CONFIG)

    def pair(self, source, target, repeat=2):
        return "run", "--model", self.config, "--from", source, "--to", target, "--repeat", repeat

    def routes(self, said):
        return {row["route"]: row["tensors"] for row in said.get("routes", [])}


class OneProcess(QuantisedTest):
    def test_every_format_both_ways(self):
        for name in FORMATS:
            engine = f"vllm:tp=2,quant={name},quant_grid=local"
            for source, target in ((PLAIN, engine), (engine, PLAIN), (engine, engine)):
                for where in ("receiver", "sender"):
                    with self.subTest(f"{source} to {target}, {where}"):
                        said = self.proved(*self.pair(source, target), "--convert", where)
                        if source == target:
                            # May go as it is stored: then there are no routes.
                            continue
                        self.assertEqual(said["version"], 2)
                        self.assertEqual(len(said["seconds"]), 2)
                        self.assertGreater(said["bytes_delivered"], 0)
                        self.assertGreater(len(self.routes(said)), 1)

    def test_every_route_is_taken_and_proved(self):
        seen = set()
        cut = program.write_json(self.d / "cut.json", CONFIG | {"moe_intermediate_size": 528})
        for source, target, where in (
            (PLAIN, "vllm:tp=2,quant=mxfp8", "receiver"),
            (PLAIN, "vllm:tp=2,quant=mxfp8", "sender"),
            (PLAIN, "vllm:tp=4,quant=nvfp4,quant_grid=tensor", "receiver"),
            ("megatron:tp=4", "vllm:tp=4,quant=mxfp8,quant_grid=tensor", "receiver"),
            ("hf:quant=mxfp8", PLAIN, "receiver"),
            ("hf:quant=mxfp8", PLAIN, "sender"),
            ("vllm:tp=2,quant=fp8_block,quant_grid=local", "hf:quant=fp8_block", "receiver"),
        ):
            with self.subTest(f"{source} to {target}, {where}"):
                model = cut if "mxfp8,quant_grid" in target else self.config
                said = self.proved(
                    "run", "--model", model, "--from", source, "--to", target, "--repeat", 2, "--convert", where
                )  # fmt: skip
                seen |= set(self.routes(said))
        self.assertEqual(
            seen,
            {
                "plain",
                "stored",
                "quantise_at_sender",
                "quantise_at_receiver",
                "quantise_halo",
                "quantise_between",
                "dequantise_at_sender",
                "dequantise_at_receiver",
                "requantise",
            },
        )

    def test_blocks_of_another_format_that_shards_cut(self):
        config = program.write_json(self.d / "cut.json", CONFIG | {"moe_intermediate_size": 528})
        whole = self.config
        for model, source, target in (
            (config, "hf:quant=fp8_block", "vllm:tp=4,quant=mxfp8,quant_grid=tensor"),
            (whole, "vllm:tp=2,quant=mxfp8", "vllm:tp=4,quant=fp8_block,quant_grid=tensor"),
        ):
            for path in ("direct", "message"):
                with self.subTest(f"{source}, {path}"):
                    said = self.proved(
                        "run", "--model", model, "--from", source, "--to", target, "--repeat", 2,
                        "--verify=fingerprints", "--path", path,
                    )  # fmt: skip
                    self.assertIn("requantise", self.routes(said))

    def test_columns_that_begin_inside_a_block(self):
        # A rank's columns 96 to 191 are parts of two blocks, side by side.
        config = program.write_json(self.d / "cut.json", CONFIG | {"moe_intermediate_size": 192})
        for target in ("megatron:tp=2", "vllm:tp=2"):
            for path in ("direct", "message"):
                with self.subTest(f"{target}, {path}"):
                    self.proved(
                        "run", "--model", config, "--from", "hf:quant=fp8_block", "--to", target,
                        "--verify=fingerprints", "--path", path,
                    )  # fmt: skip

    def test_paths_copies_and_proofs(self):
        for source, target in (
            (PLAIN, "vllm:tp=2,offset=1,quant=mxfp8"),
            (PLAIN, "vllm:tp=2"),
        ):
            for path in ("direct", "message"):
                for buffering in ("in-place", "doubled"):
                    with self.subTest(f"{target}, {path}, {buffering}"):
                        said = self.proved(
                            *self.pair(source, target, repeat=3), "--path", path, "--verify=fingerprints",
                            "--buffering", buffering, path=path, version=3,
                        )  # fmt: skip
                        self.assertGreater(said["phases"]["check"], 0)

    def test_staging_stays_below_its_cap(self):
        said = self.proved(
            *self.pair(PLAIN, "vllm:tp=2,quant=mxfp8"), "--staging-bytes", "600kB",
        )  # fmt: skip
        self.assertLessEqual(said["staging_bytes"], 600_000)

    def test_a_plain_refit_needs_no_session(self):
        said = json.loads(program.done(*self.pair(PLAIN, "vllm:tp=2"), "--json"))
        self.assertNotIn("phases", said)
        self.assertNotIn("routes", said)

    def test_checkpoints_of_both_kinds(self):
        program.done("synth", self.config, self.d / "plain")
        program.done("convert", self.d / "plain", self.d / "fp8", "--to", "hf:quant=fp8_block")
        for model in ("plain", "fp8"):
            for source, target in (
                (PLAIN, "vllm:tp=2,quant=mxfp8"),
                ("hf:quant=fp8_block", PLAIN),
                ("vllm:tp=2,quant=nvfp4", "megatron:tp=1"),
            ):
                with self.subTest(f"{model}: {source} to {target}"):
                    self.proved("run", "--model", self.d / model, "--from", source, "--to", target)

    def test_the_text_says_what_is_converted_where(self):
        text = program.done(
            *self.pair(PLAIN, "vllm:tp=2,quant=mxfp8"), "--verify", "--convert", "sender"
        )
        for words in (
            "as they are",
            "quantised by the sender",
            "such as",
            "version 2 is whole on every target",
            "% of a plain copy of the same bytes",
            "scales included, equal byte for byte what the source's values convert to",
        ):
            self.assertIn(words, text)
        plan = program.done(
            "plan", "--model", self.config, "--from", PLAIN, "--to", "vllm:tp=2,quant=mxfp8"
        )
        self.assertIn("quantised by the receiver", plan)

    def test_plan_lists_the_same_routes(self):
        pair = ("--from", PLAIN, "--to", "vllm:tp=2,quant=mxfp8", "--json")
        plan = json.loads(program.done("plan", "--model", self.config, *pair))
        run = json.loads(program.done("run", "--model", self.config, *pair, "--repeat", 1))
        self.assertEqual(plan["routes"], run["routes"])
        for row in plan["routes"]:
            if row["route"] != "plain":
                # Two bytes an element become one, and one for each 32.
                self.assertEqual(row["bytes_to"] * 64, row["bytes_from"] * 33)

    def test_reports_count_the_bytes_that_are_stored(self):
        # On one rank every tensor is held once: what the routes add up to is what the rank holds.
        # Experts that are one tensor are stored input last, in blocks along their input.
        for model, packed in (("gpt-oss-20b", 32 * 3 * 2880 * 2880 * 17 // 32), ("qwen3-30b-a3b", 0)):
            for name in ("mxfp4", "mxfp8", "mxfp8_swizzled", "fp8_block", "fp8_group", "fp8_channel"):
                for layout in ("hf:", "vllm:tp=1,", "sglang:tp=1,"):
                    with self.subTest(f"{model} {layout}{name}"):
                        to = f"{layout}quant={name},quant_grid=local"
                        of = ("--layers", 1, "--json")
                        said = json.loads(program.done(
                            "plan", "--model", model, "--from", "hf", "--to", to, *of))
                        held = json.loads(program.done("inspect", model, "--layout", to, *of))
                        total = sum(row["bytes_to"] for row in said["routes"])
                        self.assertEqual(total, held["ranks"][0]["bytes"])
                        if packed and name == "mxfp4":
                            row = said["routes"][-1]
                            self.assertEqual((row["tensors"], row["bytes_to"]), (2, packed))

    def test_other_words_are_usage_errors(self):
        for option, word in (("--convert", "both"), ("--buffering", "triple")):
            code, out, err = self.run_all(*self.pair(PLAIN, "vllm:tp=2"), option, word)
            self.assertEqual((code, out), (2, ""))
            self.one_line(err, option, word, "must be")


class OverProcesses(QuantisedTest):
    def check(self, transport, before=None, **expected):
        self.need(transport)
        for ranks, source, target in LAYOUTS:
            with self.subTest(f"{source} to {target}"):
                self.proved(
                    *self.pair(source, target), "--verify=fingerprints", "--transport", transport,
                    *(() if before else ("--spawn",)),
                    before=processes.mpirun(before, ranks) if before else (),
                    processes=ranks, transport=transport, version=2,
                )  # fmt: skip

    def test_shm(self):
        self.check("shm")

    def test_gloo(self):
        self.check("gloo")

    def test_ucx(self):
        self.check("ucx")

    def test_open_mpi(self):
        self.need_mpi("openmpi")
        self.check("mpi", "openmpi")

    def test_mpich(self):
        self.need_mpi("mpich")
        self.check("mpi", "mpich")

    def test_senders_two_copies_and_messages(self):
        self.need("shm")
        for more in (("--convert", "sender"), ("--buffering", "doubled"), ("--path", "message")):
            with self.subTest(more):
                self.proved(
                    *self.pair("megatron:tp=2", "vllm:tp=1,offset=2,quant=mxfp8"), *more,
                    "--transport", "shm", "--spawn",
                )  # fmt: skip

    def test_an_engine_program_takes_from_a_trainer_program(self):
        self.need("shm")
        folder = self.d / "meet"
        folder.mkdir()
        for source, target in (
            ("megatron:tp=2", "vllm:tp=1,offset=2,quant=mxfp8"),
            ("vllm:tp=2,quant=mxfp8", "megatron:tp=1,offset=2"),
        ):
            runs = [
                self.start(
                    *self.pair(source, target), "--transport", "shm", "--spawn", "--verify", "--json",
                    "--rendezvous", f"file://{folder}", "--role", role, "--ranks", ranks,
                )
                for role, ranks in (("source", "0-1"), ("target", "2"))
            ]  # fmt: skip
            for code, out, err in map(self.end, runs):
                self.assertEqual((code, err), (0, ""))
                self.assertIs(json.loads(out)["verified"], True)
            self.nothing_left()

    def test_programs_that_convert_otherwise_do_not_begin(self):
        self.need("shm")
        folder = self.d / "meet"
        folder.mkdir()
        runs = [
            self.start(
                *self.pair("megatron:tp=1", "vllm:tp=1,offset=1,quant=mxfp8"), "--transport", "shm",
                "--rendezvous", f"file://{folder}", "--ranks", rank, "--convert", where,
            )
            for rank, where in ((0, "receiver"), (1, "sender"))
        ]  # fmt: skip
        for code, out, err in map(self.end, runs):
            self.assertEqual((code, out), (2, ""))
            self.one_line(err, "--convert", "this program")
        self.nothing_left()


class Faults(QuantisedTest):
    def check(self, transport, points):
        self.need(transport)
        for point in points:
            for rank in (0, 2):
                with self.subTest(f"rank {rank} at {point}"):
                    start = time.monotonic()
                    code, out, err = self.run_all(
                        *self.pair("megatron:tp=2", "vllm:tp=1,offset=2,quant=mxfp8"), "--verify=fingerprints",
                        "--verify", "--json", "--transport", transport, "--spawn", "--deadline", 30,
                        env={"RESHARD_TEST_KILL": f"rank={rank},at={point}"},
                    )  # fmt: skip
                    self.assertEqual((code, out), (1, ""))
                    self.one_line(err, f"rank {rank} was killed by signal 9")
                    self.assertLess(time.monotonic() - start, 40)
                    self.nothing_left()

    def test_shm(self):
        self.check("shm", ("prepare", "start", "middle", "check", "commit", "end", "verify"))

    def test_gloo(self):
        self.check("gloo", ("middle", "commit"))

    def test_ucx(self):
        self.check("ucx", ("middle", "commit"))

    def test_an_interrupt_ends_ranks_that_are_threads(self):
        run = self.start(
            "run", "--model", "demo-moe", "--from", PLAIN, "--to", "vllm:tp=2,quant=mxfp8",
            "--repeat", 1000000,
        )  # fmt: skip
        # The ranks are threads: more than the program alone has before and after. Others, which add
        # up the plan, are there before it ends in order.
        self.wait_for(
            lambda: self.catches_term(run.pid) and self.threads(run) > 2, "the ranks"
        )
        run.send_signal(signal.SIGINT)
        code, out, err = self.end(run)
        self.assertEqual((code, out), (130, ""))
        self.one_line(err)

    def threads(self, run):
        try:
            return len(os.listdir(f"/proc/{run.pid}/task"))
        except OSError:
            return 0


if __name__ == "__main__":
    unittest.main()
