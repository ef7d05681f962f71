# SPDX-License-Identifier: Apache-2.0
"""What the program prints: the keys that scripts read, and the text that people read.

`python3 test_reports.py --update-goldens` writes golden/ anew; look at the difference then.
"""

import json
import os
import pathlib
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import program

GOLDEN = pathlib.Path(__file__).parent / "golden"
UPDATE = "--update-goldens" in sys.argv

PLAN_KEYS = [
    "schema",
    "plan_seconds",
    "ranks",
    "bytes_total",
    "bytes_wire",
    "bytes_local",
    "messages",
    "transfers",
    "max_egress_bytes",
    "max_ingress_bytes",
    "optimal_max_egress_bytes",
    "digest",
    "peak_rss_bytes",
    "conversions",
    "omitted",
]
REFIT = (
    "--model",
    "demo-moe",
    "--layers",
    "1",
    "--from",
    "megatron:tp=2,ep=4,etp=1,dp=2",
    "--to",
    "vllm:tp=4",
)


def without_figures(text):
    """The text without what differs between machines and versions: times, memory, digest."""
    text = re.sub(r"planned in .*; peak memory [^;]*;", "planned in T; peak memory M;", text)
    text = re.sub(r"digest [0-9a-f]{16}", "digest D", text)
    text = re.sub(r"\d[\d.]* (us|ms|s)\b", "T", text)
    return re.sub(r" +\n", "\n", text)


class Reports(unittest.TestCase):
    def setUp(self):
        self.d = pathlib.Path(tempfile.mkdtemp(prefix="reshard-reports-"))
        self.addCleanup(shutil.rmtree, self.d)

    def golden(self, name, text):
        path = GOLDEN / name
        if UPDATE:
            path.write_text(text)
        self.assertEqual(path.read_text(), text, f"differs from {path}; see --update-goldens")

    def test_help(self):
        self.golden("help.txt", program.done("--help"))
        for command in program.commands():
            with self.subTest(command):
                self.golden(f"help_{command}.txt", program.done(command, "--help"))

    def test_a_run_is_verified_in_one_way_in_the_other_or_in_both(self):
        refit = (*REFIT, "--repeat", 1)
        for options, fingerprints, verified in (
            ((), False, None),
            (("--verify",), False, True),
            (("--verify=bytes",), False, True),
            (("--verify=fingerprints",), True, None),
            (("--verify", "fingerprints", "--verify"), True, True),
        ):
            with self.subTest(options):
                report = json.loads(program.done("run", *refit, *options, "--json"))
                self.assertEqual(report.get("path"), "direct" if fingerprints else None)  # of a session
                self.assertEqual(report["verified"], verified)
        refused = program.run("run", *refit, "--verify=everything")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--verify: 'everything' must be bytes or fingerprints", refused.stderr)

    def test_version(self):
        self.assertRegex(program.done("--version"), r"^reshard \d+\.\d+\.\d+\n$")

    def test_plan(self):
        self.golden("plan.txt", without_figures(program.done("plan", *REFIT)))
        self.golden(
            "plan_rank.txt",
            without_figures(program.done("plan", *REFIT, "--rank", 3, "--transfers", 2)),
        )
        self.golden("plan.dot", program.done("plan", *REFIT, "--dot"))

    def test_plan_on_a_cluster(self):
        clusters = pathlib.Path(__file__).parents[2] / "examples" / "clusters"
        keys = ["predicted_seconds", "bound_seconds", "bound_by", "simulation"]
        files = sorted(clusters.glob("*.json"))
        self.assertEqual(len(files), 4)
        for file in files:
            with self.subTest(file.name):
                report = json.loads(program.done("plan", *REFIT, "--cluster", file, "--json"))
                self.assertEqual(list(report), PLAN_KEYS + keys)
                self.assertGreaterEqual(report["predicted_seconds"], report["bound_seconds"])
                more = report["simulation"]
                text = json.loads(file.read_text())
                self.assertEqual(more["cluster"], text["name"])
                self.assertTrue(text["comment"] and text["sources"])
                self.assertEqual(len(more["moved_seconds"]), report["ranks"])
                self.assertLessEqual(max(more["moved_seconds"]), report["predicted_seconds"])
                one = json.loads(
                    program.done("plan", *REFIT, "--cluster", file, "--rank", 3, "--json")
                )
                self.assertEqual({k: report[k] for k in keys[:3]}, {k: one[k] for k in keys[:3]})
        text = program.done("plan", *REFIT, "--cluster", clusters / "one-host.json", "--rank", 3)
        self.assertRegex(text, r"on one host\n *predicted +[\d.]+ (us|ms)  until every rank is done")
        self.assertRegex(text, r"this rank +rank 3  first bytes after")

    def test_a_slower_link_makes_a_slower_prediction(self):
        cluster = {"name": "slow", "ranks_per_host": 2, "nics": {"bytes_per_second": 1e9}}
        file = self.d / "cluster.json"
        apart = (*REFIT[:-1], "vllm:tp=4,offset=8", "--cluster", file, "--json")
        file.write_text(json.dumps(cluster))
        fast = json.loads(program.done("plan", *apart))
        self.assertRegex(fast["bound_by"], r"^NIC 0 of host \d, (sending|receiving)$")
        cluster["nics"]["bytes_per_second"] = 5e8
        file.write_text(json.dumps(cluster))
        slow = json.loads(program.done("plan", *apart))
        self.assertAlmostEqual(slow["bound_seconds"], 2 * fast["bound_seconds"], places=6)
        self.assertGreater(slow["predicted_seconds"], 1.9 * fast["predicted_seconds"])

    def test_a_cluster_that_cannot_be_simulated_is_refused(self):
        file = self.d / "cluster.json"
        for text, said in (
            ("{", "byte"),
            ("[" * 100_000, "cluster.json"),
            ('{"name": "x", "ranks_per_host": 1e400}', "cluster.json"),
            ('{"name": "x", "ranks_per_host": 4, "nic": {}}', 'unknown key "nic"'),
            ('{"name": "x", "ranks_per_host": 2, "hosts": 1}', "has places for 2 ranks"),
        ):
            with self.subTest(text[:40]):
                file.write_text(text)
                done = program.run("plan", *REFIT, "--cluster", file)
                code = 2 if "has places" in said else 1  # for other layouts that file is right
                self.assertEqual((done.returncode, done.stdout), (code, ""))
                self.assertIn(said, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn("no-such", program.run("plan", *REFIT, "--cluster", "no-such").stderr)

    def test_inspect(self):
        self.golden(
            "inspect.txt",
            program.done("inspect", "demo-moe", "--layout", "megatron:pp=4,tp=2,ep=2,etp=1"),
        )
        self.golden(
            "inspect_rank.txt",
            program.done(
                "inspect", "qwen3-4b", "--layers", 1, "--layout", "megatron:tp=2", "--rank", 1
            ),
        )

    def test_inspect_of_several_layouts(self):
        layouts = ("--layout", "megatron:tp=2,vocab_multiple=1", "--layout", "vllm:tp=8")
        report = json.loads(
            program.done("inspect", "qwen3-30b-a3b", "--layers", 1, *layouts, "--json")
        )
        self.assertNotIn("ranks", report)
        megatron, vllm = report["layouts"]
        self.assertEqual(megatron["layout"], "megatron:tp=2,vocab_multiple=1")
        self.assertEqual((megatron["ranks"], vllm["ranks"]), (2, 8))
        for layout in report["layouts"]:
            self.assertLessEqual(layout["min_bytes"], layout["max_bytes"])
            self.assertGreater(layout["min_bytes"], report["bytes"] // 8)
            known = {kind["pattern"] for kind in report["kinds"]}
            self.assertEqual({kind["pattern"] for kind in layout["kinds"]}, known)

        def of(layout, name):
            (kind,) = [k for k in layout["kinds"] if k["pattern"].endswith(name)]
            return {k: kind[k] for k in ("local", "shape", "count", "how")}

        self.assertEqual(
            of(megatron, "q_proj.weight"),
            {
                "local": "decoder.layers.N.self_attention.linear_qkv.weight",
                "shape": [2560, 2048],
                "count": 1,
                "how": "dim 0 over tp=2; in 4 pieces; beside 2 others",
            },
        )
        self.assertEqual(
            of(vllm, "k_proj.weight")["how"], "dim 0 over tp=8, repeated; beside 2 others; by rule 8"
        )
        self.assertEqual(of(megatron, "embed_tokens.weight")["how"], "dim 0 over tp=2")
        self.assertEqual(of(megatron, "experts.N.up_proj.weight")["count"], 128)
        text = program.done("inspect", "qwen3-30b-a3b", "--layers", 1, *layouts)
        self.assertEqual(text.count("local tensors in all"), 2)
        self.assertIn(", repeated;", text)

    def test_inspect_says_what_the_published_weights_are(self):
        self.assertIn('as BF16 (its checkpoint is in "mxfp4")', program.done("inspect", "gpt-oss-20b"))
        self.assertIn("1 module for multi-token", program.done("inspect", "qwen3-next-80b-a3b"))
        report = json.loads(program.done("inspect", "deepseek-v3", "--layers", 4, "--json"))
        self.assertEqual((report["quantization"], report["layers"]), ("fp8", 4))
        self.assertEqual(
            report["layer_kinds"],
            {"latent attention and MLP": 3, "latent attention and experts": 1},
        )
        hybrid = program.done("inspect", "nemotron-3-nano-30b-a3b")
        for line in ("23 layers of Mamba-2", "23 layers of experts", "6 layers of attention"):
            self.assertIn(f"  {line}\n", hybrid)

    def test_every_example_has_the_published_parameters(self):
        parameters = {
            "demo-moe": 75_833_344,
            "llama-3.1-8b": 8_030_261_248,
            "llama-3.1-70b": 70_553_706_496,
            "llama-3.1-405b": 405_853_388_800,
            "mixtral-8x7b": 46_702_792_704,
            "qwen3-4b": 4_022_468_096,
            "qwen3-30b-a3b": 30_532_122_624,
            "qwen3-235b-a22b": 235_093_634_560,
            "gemma-3-1b": 999_885_952,
            "gpt-oss-20b": 20_914_757_184,
            "gpt-oss-120b": 116_829_156_672,
            "nemotron-3-nano-30b-a3b": 31_577_940_288,
            # With one module for multi-token prediction each, but for Kimi.
            "kimi-k2": 1_026_408_232_448,
            "deepseek-v3": 682_636_487_424,
            "glm-4.5": 356_785_898_816,
            "glm-4.5-air": 109_227_310_848,
            "qwen3-next-80b-a3b": 79_674_391_296 + 1_650_471_424,
            "nemotron-3-super-120b-a12b": 123_611_012_096 + 41 * 512,
        }
        examples = pathlib.Path(__file__).parents[2] / "examples" / "configs"
        self.assertEqual({path.stem for path in examples.glob("*.json")}, set(parameters))
        for name, number in parameters.items():
            with self.subTest(name):
                report = json.loads(program.done("inspect", name, "--json"))
                self.assertEqual(report["parameters"], number)
                few = json.loads(program.done("inspect", name, "--layers", 3, "--json"))
                self.assertEqual(few["layers"], 3)

    def test_the_architectures_of_the_documentation_are_those_known(self):
        (self.d / "config.json").write_text('{"architectures": ["Unknown"]}')
        said = program.run("inspect", self.d / "config.json").stderr
        known = re.search(r"known are (.*?);", said).group(1).split(", ")
        page = pathlib.Path(__file__).parents[2] / "docs" / "models.md"
        self.assertEqual(re.findall(r"(?m)^\| `(\w+ForCausalLM)` \|", page.read_text()), known)

    def test_colours_only_for_terminals(self):
        for arguments in (("plan", *REFIT), ("inspect", "demo-moe"), ("transports",)):
            self.assertNotIn("\x1b", program.done(*arguments, env={"TERM": "xterm-256color"}))

    def on_a_terminal(self, *arguments, **env):
        """What the program writes to a terminal."""
        master, terminal = pty.openpty()
        process = subprocess.Popen(
            [program.BINARY, *arguments],
            stdout=terminal,
            stderr=terminal,
            env=os.environ | {"TERM": "xterm-256color"} | env,
        )
        os.close(terminal)
        text = b""
        try:
            while part := os.read(master, 65536):
                text += part
        except OSError:  # how Linux says that the other end was closed
            pass
        os.close(master)
        self.assertEqual(process.wait(), 0)
        return text.decode()

    def test_colours_for_terminals(self):
        self.assertIn("\x1b[1m", self.on_a_terminal("transports"))
        self.assertNotIn("\x1b", self.on_a_terminal("transports", NO_COLOR="1"))
        self.assertNotIn("\x1b", self.on_a_terminal("transports", TERM="dumb"))
        self.assertNotIn("\x1b", self.on_a_terminal("transports", "--json"))

    def test_plan_json(self):
        plan = json.loads(program.done("plan", *REFIT, "--json"))
        self.assertEqual(list(plan), PLAN_KEYS)
        self.assertEqual(plan["ranks"], 4)
        self.assertEqual(plan["bytes_total"], plan["bytes_wire"] + plan["bytes_local"])
        self.assertGreater(plan["messages"], 0)
        self.assertGreaterEqual(plan["transfers"], plan["messages"])
        self.assertRegex(plan["digest"], r"^[0-9a-f]{16}$")
        self.assertGreater(plan["plan_seconds"], 0)
        self.assertGreater(plan["peak_rss_bytes"], 1_000_000)
        again = json.loads(program.done("plan", *REFIT, "--json", "--threads", 3))
        figures = ("plan_seconds", "peak_rss_bytes")
        self.assertEqual(
            {k: v for k, v in plan.items() if k not in figures},
            {k: v for k, v in again.items() if k not in figures},
        )

    def test_the_parts_of_the_ranks_add_up_to_the_plan(self):
        plan = json.loads(program.done("plan", *REFIT, "--json"))
        parts = [json.loads(program.done("plan", *REFIT, "--json", "--rank", r)) for r in range(4)]
        for r, part in enumerate(parts):
            self.assertEqual(list(part), ["schema", "rank", *PLAN_KEYS[1:]])
            self.assertEqual(part["rank"], r)
            self.assertEqual(part["digest"], plan["digest"])
        for key in ("bytes_total", "bytes_wire", "bytes_local"):
            self.assertEqual(sum(part[key] for part in parts), plan[key], key)
        for key in ("max_egress_bytes", "max_ingress_bytes"):
            self.assertEqual(max(part[key] for part in parts), plan[key], key)
            self.assertEqual(sum(part[key] for part in parts), plan["bytes_wire"], key)
        self.assertEqual(
            sum(part["messages"] for part in parts), 2 * plan["messages"], "each has two ends"
        )

    def test_the_listed_transfers_are_the_rank_part(self):
        part = json.loads(program.done("plan", *REFIT, "--json", "--rank", 2, "--transfers", "all"))
        self.assertEqual(len(part["list"]), part["transfers"])
        self.assertEqual(sum(t["bytes"] for t in part["list"] if t["to"] == 2), part["bytes_total"])
        self.assertEqual(
            sum(t["bytes"] for t in part["list"] if t["from"] == 2 != t["to"]),
            part["max_egress_bytes"],
        )

    def test_run_json(self):
        for path in ("direct", "message"):
            for arguments, verified in (((), None), (("--verify",), True)):
                ran = json.loads(
                    program.done("run", *REFIT, "--json", "--repeat", 2, "--path", path, *arguments)
                )
                self.assertEqual(list(ran)[: len(PLAN_KEYS)], PLAN_KEYS)
                self.assertEqual(len(ran["seconds"]), 2)
                self.assertGreater(min(ran["seconds"]), 0)
                self.assertGreater(ran["gb_per_s"], 0)
                self.assertGreater(ran["memcpy_gb_per_s"], 0)
                self.assertIs(ran["verified"], verified)
                self.assertEqual(ran["verified_tensors"] is None, verified is None)
                if path == "message":  # a session: the rate without waiting
                    moving = ran["bytes_delivered"] / ran["phases"]["move"] / 1e9
                    self.assertAlmostEqual(ran["moving_gb_per_s"] / moving, 1, places=2)

    def test_verification_counts_what_moved(self):
        config = program.write_json(self.d / "config.json", program.MTP)
        pair = ("run", "--model", config, "--from", "hf", "--to", "vllm:tp=2", "--verify")
        plan = json.loads(program.done("plan", *pair[1:-1], "--json"))
        tensors = json.loads(program.done("inspect", config, "--json"))["tensors"]
        moved = tensors - len(plan["omitted"])
        self.assertLess(0, len(plan["omitted"]))
        ran = json.loads(program.done(*pair, "--json"))
        self.assertEqual((ran["verified"], ran["verified_tensors"]), (True, moved))
        self.assertIn(f"verified: {moved} tensors ", program.done(*pair))

    def test_run_of_a_checkpoint(self):
        program.done("synth", "demo-moe", self.d / "hf", "--layers", 1)
        program.done("convert", self.d / "hf", self.d / "ranks", "--to", "vllm:tp=2")
        for source in ("hf", "ranks"):
            ran = json.loads(
                program.done("run", "--model", self.d / source, *REFIT[4:], "--json", "--verify")
            )
            self.assertIs(ran["verified"], True)

    def test_verify(self):
        program.done("synth", "demo-moe", self.d / "a", "--layers", 1)
        program.done("convert", self.d / "a", self.d / "ranks", "--to", "vllm:tp=2,replicas=2")
        self.assertIn("the same", program.done("verify", self.d / "a", self.d / "ranks"))
        path = self.d / "a" / "model.safetensors"
        tensors = program.read_safetensors(path)
        name = "model.layers.0.self_attn.q_proj.weight"
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, shape, data[:-1] + bytes([data[-1] ^ 1]))
        gone = tensors.pop("lm_head.weight")
        tensors["new.weight"] = gone
        program.write_safetensors(path, tensors)
        result = program.run("verify", self.d / "a", self.d / "ranks", "--json")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, "")
        said = json.loads(result.stdout)
        self.assertIs(said["equal"], False)
        self.assertEqual([d["tensor"] for d in said["differing"]], [name])
        self.assertEqual((said["only_a"], said["only_b"]), (["new.weight"], ["lm_head.weight"]))
        text = program.run("verify", self.d / "a", self.d / "ranks")
        self.assertEqual(text.returncode, 1)
        self.assertIn("not the same: 1 differ, 1 only in A, 1 only in B", text.stdout)

    def test_verify_compares_replicas(self):
        program.done("synth", "demo-moe", self.d / "a", "--layers", 1)
        program.done("convert", self.d / "a", self.d / "ranks", "--to", "megatron:tp=2")
        path = self.d / "ranks" / "rank-00001.safetensors"  # norms are on both ranks
        tensors = program.read_safetensors(path)
        name = next(name for name in tensors if "final_layernorm" in name)
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, shape, bytes([data[0] ^ 1]) + data[1:])
        program.write_safetensors(path, tensors)
        result = program.run("verify", self.d / "a", self.d / "ranks")
        self.assertEqual(result.returncode, 1)
        self.assertIn("model.norm.weight", result.stdout)
        self.assertIn("differs from rank 0", result.stdout)

    def test_transports(self):
        listed = json.loads(program.done("transports", "--json"))["transports"]
        inproc = next(t for t in listed if t["name"] == "inproc")
        self.assertTrue(inproc["available"])
        for transport in listed:
            self.assertTrue(transport["available"] or transport["reason"], transport)
            self.assertEqual(
                set(transport),
                {"name", "built", "available", "version", "reason", "gpu_messages", "gpu_reason", "purpose"},
            )
            self.assertTrue(transport["gpu_messages"] or transport["gpu_reason"], transport)

    def test_the_program_works_without_the_modules_beside_it(self):
        alone = self.d / "bin" / "reshard"
        alone.parent.mkdir()
        shutil.copy(program.BINARY, alone)
        environment = {k: v for k, v in os.environ.items() if k != "RESHARD_MODULES"}
        said = subprocess.run(
            [alone, "transports", "--json"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertEqual(said.stderr, "")
        for transport in json.loads(said.stdout)["transports"]:
            if transport["name"] in ("mpi", "gloo", "ucx", "nccl", "nvshmem"):
                self.assertFalse(transport["available"], transport)
                self.assertEqual(transport["version"], "")
                words = str(alone.parent) if transport["built"] else "this build"
                self.assertIn(words, transport["reason"])

    def test_inspect_json_counts_every_element(self):
        said = json.loads(
            program.done("inspect", "demo-moe", "--layout", "vllm:tp=8", "--rank", 7, "--json")
        )
        width = {"BF16": 2, "F32": 4}
        for local in said["local"]:
            elements = 1
            for size in local["shape"]:
                elements *= size
            held = 0
            for fragment in local["fragments"]:
                sizes = [
                    int(b) - int(a) for a, b in re.findall(r"\[(\d+),(\d+)\)", fragment["box"])
                ]
                part = 1
                for size in sizes:
                    part *= size
                held += part
            self.assertEqual(held + local["padding"], elements, local["name"])
        self.assertEqual(sum(kind["bytes"] for kind in said["kinds"]), said["bytes"])
        self.assertEqual(said["bytes"], said["parameters"] * width["BF16"])

    def test_synth_is_a_function_of_config_and_seed(self):
        for name, seed in (("a", 1), ("b", 1), ("c", 2)):
            program.done(
                "synth", "demo-moe", self.d / name, "--layers", 1, "--seed", seed, "--threads", seed
            )
        a, b, c = (program.files_of(self.d / name) for name in "abc")
        self.assertEqual(a, b)
        self.assertEqual(a["config.json"], c["config.json"])
        self.assertNotEqual(a["model.safetensors"], c["model.safetensors"])
        self.assertEqual(json.loads(a["config.json"])["num_hidden_layers"], 1)
        tensors = program.read_safetensors(self.d / "a" / "model.safetensors")
        for name, (dtype, _, data) in tensors.items():
            self.assertEqual(dtype, "BF16")
            exponents = {
                (data[i + 1] & 0x7F) << 1 | data[i] >> 7 for i in range(0, min(len(data), 2000), 2)
            }
            self.assertLessEqual(
                max(exponents), 127 - 5, f"{name}: values too large for a model to run on"
            )

    def test_examples_are_found_where_the_environment_says(self):
        program.write_json(self.d / "mine.json", program.LLAMA)
        here = {"RESHARD_EXAMPLES": str(self.d)}
        self.assertIn("LlamaForCausalLM", program.done("inspect", "mine", env=here))
        result = program.run("inspect", "demo-moe", env=here)
        self.assertEqual(result.returncode, 1)
        self.assertIn("examples are mine", result.stderr)


if __name__ == "__main__":
    if UPDATE:
        sys.argv.remove("--update-goldens")
        GOLDEN.mkdir(exist_ok=True)
    os.environ.pop("NO_COLOR", None)
    unittest.main()
